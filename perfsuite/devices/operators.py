"""Cost rules of torch's operators: which kernels one becomes on a GPU, their FLOPs and their bytes."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from perfsuite.devices.kernels import Family, Kernel

Shape = tuple[int, ...]


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


# No kernel: they make or describe memory, or live on the host.
_NO_KERNEL = _names("""
    empty empty_like new_empty empty_strided new_empty_strided set_ resize_ detach detach_ alias lift
    lift_fresh is_same_size _local_scalar_dense record_stream _version sym_size sym_stride sym_numel size
    stride is_pinned _reshape_alias _unsafe_view view_as_real view_as_complex _pin_memory
""")
# The host needs a value or a size before it can go on.
SYNCS = _names("""
    _local_scalar_dense nonzero masked_select equal unique_dim unique_consecutive _unique _unique2 bincount
    is_nonzero
""")
FACTORIES = _names(
    "empty empty_strided zeros ones full rand randn randint randperm arange linspace eye scalar_tensor"
)
_ROW_FAMILIES: Mapping[str, Family] = {
    "_softmax": Family.SOFTMAX,
    "_log_softmax": Family.SOFTMAX,
    "_safe_softmax": Family.SOFTMAX,
    "_softmax_backward_data": Family.SOFTMAX,
    "_log_softmax_backward_data": Family.SOFTMAX,
    "native_layer_norm": Family.LAYER_NORM,
    "native_layer_norm_backward": Family.LAYER_NORM,
    "native_group_norm": Family.LAYER_NORM,
    "native_group_norm_backward": Family.LAYER_NORM,
    "native_batch_norm": Family.LAYER_NORM,
    "native_batch_norm_backward": Family.LAYER_NORM,
    "_native_batch_norm_legit": Family.LAYER_NORM,
}
_REDUCTIONS = _names("""
    sum mean amax amin max min prod any all argmax argmin norm linalg_vector_norm var std var_mean logsumexp
    cumsum cumprod nll_loss_forward mse_loss
""")
_ELEMENTWISE = _names("""
    add sub rsub mul div pow neg abs sgn sign exp exp2 expm1 log log2 log1p log_sigmoid
    log_sigmoid_forward log_sigmoid_backward sqrt rsqrt square sigmoid sigmoid_backward tanh tanh_backward
    relu threshold_backward gelu gelu_backward silu silu_backward elu elu_backward leaky_relu
    leaky_relu_backward hardtanh hardtanh_backward softplus softplus_backward clamp clamp_min clamp_max
    maximum minimum where eq ne lt le gt ge logical_and logical_or logical_not bitwise_and bitwise_or
    bitwise_not sin cos erf reciprocal fill zero copy clone _to_copy masked_fill native_dropout
    native_dropout_backward bernoulli uniform normal randn rand zeros ones full zeros_like ones_like
    full_like rand_like randn_like new_zeros new_ones new_full scalar_tensor tril triu cat stack
    index_select gather scatter scatter_add index embedding arange addcmul addcdiv lerp mse_loss_backward
    nll_loss_backward constant_pad_nd repeat roll flip isnan isinf isfinite contiguous slice_backward
    select_backward eye trunc floor ceil round remainder fmod atan2 hypot
""")
# More than one kernel on CUDA: rules of thumb, no profile was at hand.
_LAUNCHES: Mapping[str, int] = {
    "native_layer_norm_backward": 2,
    "native_group_norm_backward": 2,
    "sort": 4,
    "topk": 2,
    "nonzero": 3,
    "masked_select": 4,
    "index_put_": 3,
    "embedding_dense_backward": 4,
    "cumsum": 2,
    "convolution_backward": 2,
    "_scaled_dot_product_flash_attention_for_cpu_backward": 3,
}
# Multi-tensor kernels take at most this many tensors (by number of lists) and 320 chunks a launch.
_MAX_TENSORS = (110, 64, 48, 36, 30)
_MAX_CHUNKS, _CHUNK = 320, 65_536
_PRODUCTS = {
    "mm": (0, 1),
    "addmm": (1, 2),
    "addmm_": (1, 2),
    "bmm": (0, 1),
    "baddbmm": (1, 2),
    "baddbmm_": (1, 2),
}


_FAMILY_PARTS = (
    ("_foreach_", Family.MULTI_TENSOR),
    ("_fused_adam", Family.MULTI_TENSOR),
    ("_fused_sgd", Family.MULTI_TENSOR),
    ("_fused_adagrad", Family.MULTI_TENSOR),
    ("convolution", Family.CONVOLUTION),
    ("_scaled_dot_product", Family.ATTENTION),
    ("rnn_layer", Family.RECURRENCE),
    ("_cudnn_rnn", Family.RECURRENCE),
)


def base_name(func: Any) -> str:
    """Return an operator's name without overload."""
    return str(func.overloadpacket.__name__)


def has_kernel(func: Any) -> bool:
    """Tell whether an operator launches anything: views and empty memory do not."""
    return not (func.is_view or base_name(func) in _NO_KERNEL)


def has_rule(name: str) -> bool:
    """Tell whether an operator is costed by more than its bytes."""
    return family_of(name) is not Family.BYTES


def kernel_of(
    func: Any, inputs: Sequence[Any], outputs: Sequence[Any], args: Sequence[Any], *, is_tf32: bool = False
) -> Kernel:
    """Return what an operator costs; called once for each combination of operator and shapes."""
    name = base_name(func)
    read = sum(_bytes(tensor) for tensor in inputs)
    written = sum(_bytes(tensor) for tensor in outputs)
    family = family_of(name)
    precision = _precision([*inputs, *outputs])
    precision = "tf32" if is_tf32 and precision == "float32" else precision
    launches = _LAUNCHES.get(name, 1)
    problem, flops = (1, 0, 0, 0), 0.0
    if name in _PRODUCTS:
        problem = product(tuple(args[_PRODUCTS[name][0]].shape), tuple(args[_PRODUCTS[name][1]].shape))
        flops = 2.0 * math.prod(problem)
        family = Family.BMM if problem[0] > 1 else Family.LINEAR
    elif family is Family.CONVOLUTION:
        flops = _convolution_flops(name, args, outputs)
        launches += name == "convolution_backward" and bool(args[-1][2])
    elif family is Family.ATTENTION:
        flops = _attention_flops(name, args)
        batch, heads, rows, width = _attention_shape(name, args)
        problem = (batch * heads, rows, rows, width)
    elif family is Family.RECURRENCE:
        steps, flops = _recurrence(name, args)
        launches = 2 * steps + 1
    elif family is Family.MULTI_TENSOR:
        launches = multi_tensor_launches(name, args)
    elif family in (Family.SOFTMAX, Family.LAYER_NORM) and inputs[0].dim():
        width = max(int(inputs[0].shape[-1]), 1)
        problem = (1, max(inputs[0].numel() // width, 1), width, 0)
    return Kernel(name, family, flops, read, written, precision, launches, problem)


def product(left: Shape, right: Shape) -> tuple[int, int, int, int]:
    """Return batch, m, n and k of a matrix product."""
    batch = math.prod(left[:-2]) if len(left) > 2 else 1
    return (int(batch), int(left[-2]), int(right[-1]), int(left[-1]))


def multi_tensor_launches(name: str, args: Sequence[Any]) -> int:
    """Return into how many launches a list of tensors is cut."""
    lists = [
        entry for entry in args if isinstance(entry, (list, tuple)) and entry and hasattr(entry[0], "numel")
    ]
    if not lists:
        return 1
    depth = min(len(lists) + (not name.endswith("_")), len(_MAX_TENSORS))
    chunks = sum(max(-(-int(tensor.numel()) // _CHUNK), 1) for tensor in lists[0])
    return max(-(-len(lists[0]) // _MAX_TENSORS[depth - 1]), -(-chunks // _MAX_CHUNKS))


def family_of(name: str) -> Family:
    """Return the cost rule of an operator by its name."""
    if name in _PRODUCTS:
        return Family.LINEAR
    if name in _ROW_FAMILIES:
        return _ROW_FAMILIES[name]
    for part, family in _FAMILY_PARTS:
        if part in name:
            return family
    plain = name.rstrip("_")
    if plain in _REDUCTIONS:
        return Family.REDUCTION
    return Family.ELEMENTWISE if plain in _ELEMENTWISE or name in _ELEMENTWISE else Family.BYTES


def _bytes(tensor: Any) -> int:
    # A broadcast tensor is read once: no more than its memory holds.
    return int(min(tensor.numel() * tensor.element_size(), tensor.untyped_storage().nbytes()))


def _precision(tensors: Sequence[Any]) -> str:
    floating = [str(tensor.dtype).removeprefix("torch.") for tensor in tensors if tensor.is_floating_point()]
    return min(floating, key=lambda name: ("64" in name, "32" in name), default="int")


def _convolution_flops(name: str, args: Sequence[Any], outputs: Sequence[Any]) -> float:
    from torch.utils.flop_counter import conv_flop_count

    if name == "convolution_backward":
        gradient, inputs, weight = (list(args[i].shape) for i in (0, 1, 2))
        wanted = sum(bool(asked) for asked in args[-1][:2])
        return float(wanted * conv_flop_count(inputs, weight, gradient, transposed=bool(args[7])))
    inputs, weight = list(args[0].shape), list(args[1].shape)
    return float(conv_flop_count(inputs, weight, list(outputs[0].shape), transposed=bool(args[6])))


def _attention_shape(name: str, args: Sequence[Any]) -> tuple[int, int, int, int]:
    query = args[1] if "backward" in name else args[0]
    batch, heads, rows, width = (int(size) for size in query.shape)
    return batch, heads, rows, width


def _attention_flops(name: str, args: Sequence[Any]) -> float:
    """Count two products forward and five backward (the scores are computed anew), no causal discount."""
    shift = 1 if "backward" in name else 0
    batch, heads, rows, width = _attention_shape(name, args)
    keys = int(args[shift + 1].shape[-2])
    value_width = int(args[shift + 2].shape[-1])
    score, mix = 2.0 * batch * heads * rows * keys * width, 2.0 * batch * heads * rows * keys * value_width
    return 3 * score + 2 * mix if shift else score + mix


def _recurrence(name: str, args: Sequence[Any]) -> tuple[int, float]:
    """Return time steps and FLOPs of one recurrent layer; its backward is two products for each."""
    sequence, weight_in, weight_hidden = args[0], args[1], args[2]
    steps, batch = int(sequence.shape[0]), int(sequence.shape[1])
    flops = 2.0 * steps * batch * (weight_in.numel() + weight_hidden.numel())
    return steps, flops * (2 if "backward" in name else 1)
