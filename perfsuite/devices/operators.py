"""Cost rules of torch's operators: the kernels each becomes on a GPU, their FLOPs and their bytes."""

import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Literal

import torch

from perfsuite.devices.kernels import Kernel, KernelKind
from perfsuite.devices.launches import work_of
from perfsuite.devices.problems import NO_PROBLEM, convolution_problem, recurrence_problem
from perfsuite.devices.work import Call

Unit = Literal["matmul", "conv", "rnn"]  # each has its own TF32 switch; cuDNN's are on by default
_UNITS: dict[KernelKind, Unit] = {
    KernelKind.LINEAR: "matmul",
    KernelKind.BMM: "matmul",
    KernelKind.ATTENTION: "matmul",
    KernelKind.CONVOLUTION: "conv",
    KernelKind.RECURRENCE: "rnn",
}
Shape = tuple[int, ...]


def unit_of(kind: KernelKind) -> Unit | None:
    """Return the TF32 switch of a kind of kernels; None for those that multiply no matrices."""
    return _UNITS.get(kind)


def is_allowed(unit: Unit) -> bool:
    """Return whether TF32 is on, by whichever of torch's two settings it was switched."""
    backend = torch.backends.cuda.matmul if unit == "matmul" else getattr(torch.backends.cudnn, unit, None)
    precision = getattr(backend, "fp32_precision", None)
    if precision is not None:
        return bool(precision == "tf32")
    # Before torch 2.9 there was one switch for all of cuDNN, and no other setting.
    owner = torch.backends.cuda.matmul if unit == "matmul" else torch.backends.cudnn
    return bool(owner.allow_tf32)


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


# No kernel: they create or describe memory, or run on the host.
_NO_KERNEL = _names("""
    empty empty_like new_empty empty_strided new_empty_strided set_ resize_ detach detach_ alias lift
    lift_fresh is_same_size _local_scalar_dense record_stream _version sym_size sym_stride sym_numel size
    stride is_pinned _reshape_alias _unsafe_view view_as_real view_as_complex _pin_memory
""")


# The host needs values or sizes before it can go on: how many.
SYNCS: Mapping[str, int] = {
    **dict.fromkeys(
        _names("""
    _local_scalar_dense nonzero masked_select equal unique_dim unique_consecutive _unique _unique2 is_nonzero
"""),
        1,
    ),
    "bincount": 2,  # the least and the largest
}


FACTORIES = _names(
    "empty empty_strided zeros ones full rand randn randint randperm arange linspace eye scalar_tensor"
)


_ROW_KINDS: Mapping[str, KernelKind] = {
    "_softmax": KernelKind.SOFTMAX,
    "_log_softmax": KernelKind.SOFTMAX,
    "_safe_softmax": KernelKind.SOFTMAX,
    "_softmax_backward_data": KernelKind.SOFTMAX,
    "_log_softmax_backward_data": KernelKind.SOFTMAX,
    "native_layer_norm": KernelKind.LAYER_NORM,
    "native_layer_norm_backward": KernelKind.LAYER_NORM,
    "_fused_rms_norm": KernelKind.LAYER_NORM,
    "_fused_rms_norm_backward": KernelKind.LAYER_NORM,
    "native_group_norm": KernelKind.LAYER_NORM,
    "native_group_norm_backward": KernelKind.LAYER_NORM,
    "native_batch_norm": KernelKind.LAYER_NORM,
    "native_batch_norm_backward": KernelKind.LAYER_NORM,
    "_native_batch_norm_legit": KernelKind.LAYER_NORM,
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


_PRODUCTS = {
    "mm": (0, 1),
    "addmm": (1, 2),
    "addmm_": (1, 2),
    "bmm": (0, 1),
    "baddbmm": (1, 2),
    "baddbmm_": (1, 2),
}


_KIND_PARTS = (
    ("_foreach_", KernelKind.MULTI_TENSOR),
    ("_fused_adam", KernelKind.MULTI_TENSOR),
    ("_fused_sgd", KernelKind.MULTI_TENSOR),
    ("_fused_adagrad", KernelKind.MULTI_TENSOR),
    ("_amp_foreach", KernelKind.MULTI_TENSOR),
    ("convolution", KernelKind.CONVOLUTION),
    ("_scaled_dot_product", KernelKind.ATTENTION),
    ("rnn_layer", KernelKind.RECURRENCE),
    ("_cudnn_rnn", KernelKind.RECURRENCE),
)


def base_name(func: Any) -> str:
    """Return an operator's name without its overload."""
    return str(func.overloadpacket.__name__)


def has_kernel(func: Any) -> bool:
    """Return whether an operator launches a kernel: views and empty memory do not."""
    return not (func.is_view or base_name(func) in _NO_KERNEL)


def has_rule(name: str) -> bool:
    """Return whether an operator has a cost rule beyond its bytes."""
    return kind_of(name) is not KernelKind.BYTES


def kernel_of(
    func: Any,
    inputs: Sequence[Any],
    outputs: Sequence[Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any] = MappingProxyType({}),
    *,
    is_tf32: bool = False,
) -> Kernel:
    """Return an operator's kernel; called once for each combination of operator and shapes."""
    name = base_name(func)
    read = sum(_bytes(tensor) for tensor in inputs)
    written = sum(_bytes(tensor) for tensor in outputs)
    kind = kind_of(name)
    precision = _precision([*inputs, *outputs])
    precision = "tf32" if is_tf32 and precision == "float32" else precision
    work = work_of(Call(name, args, kwargs, outputs))
    launches = work.kernels
    problem, flops = NO_PROBLEM, 0.0
    if name in _PRODUCTS:
        problem = product(tuple(args[_PRODUCTS[name][0]].shape), tuple(args[_PRODUCTS[name][1]].shape))
        flops = 2.0 * math.prod(problem)
        kind = KernelKind.BMM if problem[0] > 1 else KernelKind.LINEAR
    elif kind is KernelKind.CONVOLUTION:
        flops = _convolution_flops(name, args, outputs)
        problem = convolution_problem(name, args, outputs)
    elif kind is KernelKind.ATTENTION:
        flops = _attention_flops(name, args)
        batch, heads, rows, width = _attention_shape(name, args)
        problem = (batch * heads, rows, rows, width)
    elif kind is KernelKind.RECURRENCE:
        steps, flops = _recurrence(name, args)
        problem = recurrence_problem(name, args)
        launches = 2 * steps + 1
    elif kind in (KernelKind.SOFTMAX, KernelKind.LAYER_NORM) and inputs[0].dim():
        width = max(int(inputs[0].shape[-1]), 1)
        problem = (1, max(inputs[0].numel() // width, 1), width, 0)
    return Kernel(
        *(name, kind, flops, read, written, precision, launches, problem), work.copies, work.scratch_bytes
    )


def product(left: Shape, right: Shape) -> tuple[int, int, int, int]:
    """Return batch, m, n and k of a matrix product."""
    batch = math.prod(left[:-2]) if len(left) > 2 else 1
    return (int(batch), int(left[-2]), int(right[-1]), int(left[-1]))


def is_product(name: str) -> bool:
    """Return whether an operator multiplies matrices or convolves."""
    return name in _PRODUCTS or "convolution" in name


def kind_of(name: str) -> KernelKind:
    """Return the cost rule of an operator by its name."""
    if name in _PRODUCTS:
        return KernelKind.LINEAR
    if name in _ROW_KINDS:
        return _ROW_KINDS[name]
    for part, kind in _KIND_PARTS:
        if part in name:
            return kind
    plain = name.rstrip("_")
    if plain in _REDUCTIONS:
        return KernelKind.REDUCTION
    return KernelKind.ELEMENTWISE if plain in _ELEMENTWISE or name in _ELEMENTWISE else KernelKind.BYTES


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
        gradients = sum(bool(needed) for needed in args[-1][:2])
        return float(gradients * conv_flop_count(inputs, weight, gradient, transposed=bool(args[7])))
    inputs, weight = list(args[0].shape), list(args[1].shape)
    return float(conv_flop_count(inputs, weight, list(outputs[0].shape), transposed=bool(args[6])))


def _attention_shape(name: str, args: Sequence[Any]) -> tuple[int, int, int, int]:
    query = args[1] if "backward" in name else args[0]
    batch, heads, rows, width = (int(size) for size in query.shape)
    return batch, heads, rows, width


def _attention_flops(name: str, args: Sequence[Any]) -> float:
    """Count two products forward and five backward (scores are recomputed), without a causal discount."""
    shift = 1 if "backward" in name else 0
    batch, heads, rows, width = _attention_shape(name, args)
    keys = int(args[shift + 1].shape[-2])
    value_width = int(args[shift + 2].shape[-1])
    score, mix = 2.0 * batch * heads * rows * keys * width, 2.0 * batch * heads * rows * keys * value_width
    return 3 * score + 2 * mix if shift else score + mix


def _recurrence(name: str, args: Sequence[Any]) -> tuple[int, float]:
    """Return time steps and FLOPs of a recurrent layer; its backward takes two products for each."""
    sequence = args[0]
    # cuDNN has all weights and biases of all layers in a list, oneDNN two weights of one layer.
    weights = args[1] if isinstance(args[1], list | tuple) else args[1:3]
    rows = sequence.numel() // max(int(sequence.shape[-1]), 1)  # of all time steps, packed or not
    flops = 2.0 * rows * sum(weight.numel() for weight in weights if weight.dim() > 1)
    return int(sequence.shape[0]), flops * (2 if "backward" in name else 1)


class Rule:
    """The properties of an operator that do not depend on shapes."""

    __slots__ = (
        *("has_kernel", "is_factory", "is_index", "is_transfer", "is_view", "name", "read_bytes", "reads"),
        "tf32_unit",
    )

    def __init__(self, func: Any) -> None:
        self.name = base_name(func)
        self.has_kernel = has_kernel(func)
        is_marker = func.namespace in ("profiler", "prim")  # used by profilers and tracers, does no work
        self.is_view = is_marker or bool(func.is_view) or self.name in ("detach", "_unsafe_view")
        self.reads = SYNCS.get(self.name, 0)
        self.read_bytes = 8 if "unique" in self.name or self.name == "bincount" else 4
        self.is_index = self.name in ("index", "index_put", "index_put_", "_index_put_impl_")
        self.is_transfer = self.name in ("_to_copy", "copy_")
        self.is_factory = self.name in FACTORIES
        self.tf32_unit = unit_of(kind_of(self.name))

    def is_tf32(self) -> bool:
        """Return whether float32 would be multiplied in TF32 now; a test may switch between two steps."""
        return self.tf32_unit is not None and is_allowed(self.tf32_unit)


def has_extent(tensors: list[Any]) -> bool:
    """Return whether any of the tensors has at least one dimension."""
    return any(tensor.dim() > 0 for tensor in tensors)


def sequence_number() -> int:
    """Return autograd's number of the operator that is being recorded."""
    number: int = torch.autograd._get_sequence_nr() - 1  # type: ignore[attr-defined]
    return number


def tensors_of(values: tuple[Any, ...]) -> list[Any]:
    """Return the tensors among arguments, including those inside lists."""
    tensors = []
    for value in values:
        if isinstance(value, torch.Tensor):
            tensors.append(value)
        elif isinstance(value, (list, tuple)):
            tensors += [entry for entry in value if isinstance(entry, torch.Tensor)]
    return tensors
