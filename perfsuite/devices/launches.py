"""What torch's operators launch on CUDA: kernels, copies within the card, and memory only while they run.

Read off torch 2.12 for CUDA 13 on an emulated card, operator by operator (docs/emulated-counts.md). A call of
cuBLAS or cuDNN counts as one kernel.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from perfsuite.devices import index_launches
from perfsuite.devices.reductions import scratch_of
from perfsuite.devices.work import (
    NOTHING,
    ONE,
    TWO,
    Call,
    Work,
    copy,
    rounded,
    size_like,
    size_of_tensor,
    with_contiguous,
)

# Multi-tensor kernels take at most this many tensors (by number of lists) and chunks a launch: seven times
# what fitted before kernels could have 32 KB of arguments.
_MAX_TENSORS = (770, 448, 336, 252, 210)
_MAX_TENSORS_WITH_NUMBERS = (672, 448, 336, 252, 210)  # a number for each tensor
_MAX_CHUNKS, _CHUNK = 2_240, 65_536
_TO_NUMBERS = frozenset({"_foreach_norm", "_foreach_max"})  # zeros before, the last sums behind
_MAX_CAT = 128
_MAX_CAT_DIMS = 4
_MANY_ROWS, _FEW_COLUMNS = 64 * 1024, 36 * 32  # a layer norm's weights get their gradients in parts
_KEY_TILE, _TILE_BYTES = 64, 64 * 64 * 4 + 16  # of memory-efficient attention in backward, with its lock
_ROWS_TILE = 128  # of flash attention in backward
_Rule = Callable[[Call], Work]


def work_of(call: Call) -> Work:
    """Return what an operator launches; one that has nothing to write launches nothing."""
    rule = _RULES.get(call.name)
    if rule is not None:
        return rule(call)
    if call.name.startswith(("_foreach_", "_fused_", "_amp_foreach_")):
        return Work(_launches_for_lists(call))
    if call.outputs and not any(tensor.numel() for tensor in call.outputs):
        return NOTHING
    if call.name in _REDUCTIONS:
        return Work(1, 0, scratch_of(call))
    return _wanting_contiguous(call, Work(_KERNELS.get(call.name, 1)))


def _wanting_contiguous(call: Call, work: Work) -> Work:
    return with_contiguous(work, *(call.args[place] for place in _CONTIGUOUS.get(call.name, ())))


def _clone(call: Call) -> Work:
    return copy(call.args[0], call.outputs[0])


def _copy_in_place(call: Call) -> Work:
    return copy(call.args[1], call.args[0])


def _power(call: Call) -> Work:
    base, exponent = call.args[0], call.args[1]
    if isinstance(exponent, (int, float)) and exponent == 1 and isinstance(base, torch.Tensor):
        return copy(base, call.outputs[0])
    return ONE if call.outputs[0].numel() else NOTHING


def _part_backward(call: Call) -> Work:
    """Fill the whole with zeros and copy the part's gradient into its place."""
    gradient, whole = call.args[0], call.outputs[0]
    if call.name == "select_backward":
        part = whole.select(call.args[2], call.args[3])
    elif call.name == "slice_backward":
        dim, start, end, step = call.args[2:6]
        size = whole.shape[dim]
        start = min(max(start + size if start < 0 else start, 0), size)
        end = min(max(end + size if end < 0 else end, start), size)
        part = whole.narrow(dim, start, end - start)
        part = part if step == 1 else part.unfold(dim, 1, step).squeeze(-1)
    else:
        part = whole.diagonal(*call.args[2:5])
    return (ONE if whole.numel() else NOTHING) + copy(gradient, part)


def _pad(call: Call) -> Work:
    tensor, pads, out = call.args[0], list(call.args[1]), call.outputs[0]
    inner = tensor
    for place, (low, high) in enumerate(zip(pads[::2], pads[1::2], strict=True)):
        dim = tensor.dim() - 1 - place
        start, end = max(-low, 0), inner.shape[dim] - max(-high, 0)
        inner = inner.narrow(dim, start, end - start)
    if all(pad <= 0 for pad in pads):
        return copy(inner, out)
    hole = out
    for place, (low, high) in enumerate(zip(pads[::2], pads[1::2], strict=True)):
        dim = tensor.dim() - 1 - place
        hole = hole.narrow(dim, max(low, 0), out.shape[dim] - max(low, 0) - max(high, 0))
    return ONE + copy(inner, hole)


def _cloned(rule: _Rule) -> _Rule:
    """Return the rule of an operator that clones its first tensor and then works in place."""
    return lambda call: copy(call.args[0], call.outputs[0]) + rule(call)


def _one_if_any(call: Call) -> Work:
    return ONE if call.outputs[0].numel() else NOTHING


def _unfit(matrix: Any) -> bool:
    """Tell whether cuBLAS cannot read a matrix where it lies: neither rows nor columns are without gaps."""
    rows, columns = matrix.shape[-2:]
    down, along = matrix.stride()[-2:]
    is_by_rows = (along == 1 or columns == 1) and down >= max(1, columns)
    is_by_columns = (down == 1 or rows == 1) and along >= max(1, rows)
    return not (is_by_rows or is_by_columns)


def _product(call: Call) -> Work:
    """Count a product, what is copied before cuBLAS can read it, and a bias that it cannot add itself."""
    has_bias = call.name.startswith(("addmm", "baddbmm"))
    left, right = call.args[1:3] if has_bias else call.args[:2]
    out = call.outputs[0]
    if not out.numel():
        return NOTHING
    work = ONE
    for matrix in (left, right):
        if _unfit(matrix):
            work += Work(1, 0, size_like(matrix.shape, matrix))
    if not has_bias or call.name.endswith("_") or call.kwargs.get("beta", 1) == 0:
        return work
    bias = call.args[0]
    is_fused = call.name == "addmm" and bias.dim() == 1 and bias.is_contiguous() and min(right.shape) > 1
    if is_fused and bias.shape[0] == right.shape[1] and call.kwargs.get("beta", 1) == 1:
        return work
    return work + copy(bias, out)


def _convolution(call: Call) -> Work:
    has_bias = call.given(2, "bias") is not None
    inputs = call.args[0]
    work = ONE if _is_depthwise(inputs, call.args[1], call.args[8]) or not has_bias else TWO
    return work + _contiguous(inputs)


def _convolution_backward(call: Call) -> Work:
    return Work(sum(map(bool, call.args[-1]))) + _contiguous(call.args[0]) + _contiguous(call.args[1])


def _is_depthwise(inputs: Any, weight: Any, groups: int) -> bool:
    """Tell whether torch uses a kernel of its own, which adds the bias; many halves go to cuDNN."""
    channels = inputs.shape[1]
    is_own = groups == channels and channels > 1 and weight.shape[1] == 1
    return bool(is_own and (inputs.dtype == torch.float32 or channels < 32))


def _contiguous(tensor: Any) -> Work:
    if tensor.is_contiguous() or tensor.is_contiguous(memory_format=torch.channels_last) or tensor.dim() == 5:
        return NOTHING
    return Work(1, 0, size_of_tensor(tensor))


def _batch_norm(call: Call) -> Work:
    """cuDNN's where it can, else torch's three: statistics, running means, result."""
    inputs, weight, bias = call.args[:3]
    is_cudnn = (
        inputs.dim() >= 3 and weight is not None and bias is not None and inputs.dtype != torch.bfloat16
    )
    return ONE if is_cudnn or not call.args[5] else Work(3)


def _batch_norm_backward(call: Call) -> Work:
    return TWO if call.args[0].dim() < 3 else ONE


def _layer_norm_backward(call: Call) -> Work:
    gradient, inputs, shape, mask = call.args[0], call.args[1], call.args[2], call.args[-1]
    weights = sum(map(bool, mask[1:]))
    work = Work(int(mask[0]) + (weights > 0))
    columns = math.prod(shape)
    if weights and columns and inputs.numel() // columns > _MANY_ROWS and columns < _FEW_COLUMNS:
        work += Work(weights)
    return with_contiguous(work, gradient, inputs)


def _group_norm(call: Call) -> Work:
    inputs, weight, bias, rows, channels, length = call.args[:6]
    work = with_contiguous(ONE, inputs)
    if length == 1 or (weight is None and bias is None):
        return work + ONE
    return work + Work(2, 0, 2 * rounded(rows * channels * max(inputs.element_size(), 4)))


def _group_norm_backward(call: Call) -> Work:
    gradient, _, _, _, weight, rows, channels, length, groups, mask = call.args
    unit = max(gradient.element_size(), 4)
    each, grouped = rounded(rows * channels * unit), rounded(rows * groups * unit)
    has_weights = bool(mask[1] or mask[2])
    if length == 1:
        return Work(2 * bool(mask[0]) + has_weights, 0, 2 * each + 2 * grouped * bool(mask[0]))
    kernels = 1 + has_weights + (2 + (weight is not None) if mask[0] else 0)
    return Work(kernels, 0, (2 + (weight is not None and bool(mask[0]))) * each + 2 * grouped * bool(mask[0]))


def _cat(call: Call) -> Work:
    tensors = [tensor for tensor in call.args[0] if tensor.numel() or call.name == "stack"]
    out = call.outputs[0]
    if not out.numel():
        return NOTHING
    if len(tensors) == 1:
        return Work(0, 1) if tensors[0].is_contiguous() and tensors[0].dtype == out.dtype else ONE
    if out.dim() > _MAX_CAT_DIMS + (call.name == "stack") or any(
        tensor.dtype != out.dtype for tensor in tensors
    ):
        return Work(len(tensors))
    return Work(-(-len(tensors) // _MAX_CAT))


def _scan(call: Call) -> Work:
    """One kernel over rows or columns; over a single row cub's two."""
    tensor, out = call.args[0], call.outputs[0]
    if not out.numel():
        return NOTHING
    dim = call.args[1] if tensor.dim() else 0
    work = TWO if tensor.dim() and tensor.shape[dim] == tensor.numel() and tensor.dim() == 1 else ONE
    if tensor.dtype != out.dtype or not tensor.is_contiguous():
        work += Work(1, 0, size_like(tensor.shape, out))
    return work


def _sum(call: Call) -> Work:
    """Numbers that are no floats are made integers first."""
    tensor = call.args[0]
    is_cast = tensor.dtype != call.outputs[0].dtype and not tensor.is_floating_point()
    cast_bytes = size_like(tensor.shape, call.outputs[0]) if is_cast else 0
    return Work(1 + is_cast, 0, cast_bytes + scratch_of(call))


def _loss(call: Call) -> Work:
    if call.given(2, "reduction", 1) == 0:
        return ONE
    return Work(2, 0, size_of_tensor(call.args[0]))


def _entropy(call: Call) -> Work:
    work = _loss(Call(call.name, [*call.args[:2], call.given(3, "reduction", 1)], {}, call.outputs))
    return work + Work(0, work.kernels - 1)


def _entropy_of_logits(call: Call) -> Work:
    """Torch puts it together from five operators and a reduction."""
    work = _loss(Call(call.name, [*call.args[:2], call.given(4, "reduction", 1)], {}, call.outputs))
    has_weight = call.given(2, "weight") is not None
    return work + Work(4 + has_weight, 0, 2 * size_of_tensor(call.args[0]) - work.scratch_bytes)


def _nll(call: Call) -> Work:
    return TWO if call.given(3, "reduction", 1) == 0 else ONE


def _efficient_backward(call: Call) -> Work:
    """Sum gradient times output by rows, then one kernel; more than a tile of keys is added up from zeros."""
    gradient, query, key = call.args[0], call.args[1], call.args[2]
    batch, heads, rows, width = query.shape
    copied = 0 if gradient.transpose(1, 2).is_contiguous() else size_of_tensor(gradient)
    row = rounded(4 * batch * heads * rows)
    is_turned = rows > 1 and heads > 1
    tiles = -(-rows // _KEY_TILE) * -(-width // _KEY_TILE)
    kernels = 3 + (copied > 0) + is_turned + (key.shape[2] > _KEY_TILE)
    product = rounded(4 * gradient.numel()) + row + is_turned * row
    return Work(kernels, 0, copied + max(product, row + rounded(batch * heads * tiles * _TILE_BYTES)))


def _flash_backward(call: Call) -> Work:
    gradient, query, out = call.args[0], call.args[1], call.args[4]
    batch, heads, rows, width = query.shape
    copied = [
        size_of_tensor(tensor) for tensor in (gradient, out) if not tensor.transpose(1, 2).is_contiguous()
    ]
    rows = -(-rows // _ROWS_TILE) * _ROWS_TILE
    width = -(-width // 32) * 32 if width <= 128 else -(-width // 64) * 64
    return Work(3 + len(copied), 0, sum(copied) + 4 * batch * heads * rows * (1 + width))


def _softmax_backward(call: Call) -> Work:
    return with_contiguous(Work(2, 0, size_of_tensor(call.outputs[0])), *call.args[:2])


def _launches_for_lists(call: Call) -> int:
    """Return into how many launches lists of tensors are cut: by tensors, and by chunks of what they hold."""
    lists = [
        entry
        for entry in call.args
        if isinstance(entry, (list, tuple)) and entry and hasattr(entry[0], "numel")
    ]
    if not lists:
        return 1
    is_fused = call.name.startswith("_fused_")
    numbers = any(
        isinstance(entry, (list, tuple)) and entry and isinstance(entry[0], float) for entry in call.args
    )
    # A fused optimizer's step counters go along without counting; what is not in place writes a list more.
    depth = len(lists) - is_fused + (not call.name.endswith("_") and call.name not in _TO_NUMBERS)
    limits = _MAX_TENSORS_WITH_NUMBERS if numbers else _MAX_TENSORS
    launches = cut([int(tensor.numel()) for tensor in lists[0]], limits[min(max(depth, 1), len(limits)) - 1])
    return launches + (2 if call.name in _TO_NUMBERS else 0)


def cut(sizes: Sequence[int], most_tensors: int) -> int:
    """Return the launches for tensors of these sizes; a launch is full of tensors or of chunks."""
    launches = tensors = chunks = 0
    for size in sizes:
        left = -(-size // _CHUNK)
        if not left:
            continue
        tensors += 1
        while chunks + left >= _MAX_CHUNKS:
            left -= _MAX_CHUNKS - chunks
            launches, chunks, tensors = launches + 1, 0, 1 if left else 0
            if not left:
                break
        chunks += left
        if left and tensors == most_tensors:
            launches, chunks, tensors = launches + 1, 0, 0
    return launches + (chunks > 0)


_SEVERAL = """
    2 max_pool2d_with_indices_backward max_pool3d_with_indices_backward adaptive_max_pool2d_backward
    2 _adaptive_avg_pool2d_backward upsample_bilinear2d_backward reflection_pad2d_backward nll_loss_backward
    2 nll_loss2d_backward mse_loss_backward smooth_l1_loss_backward huber_loss_backward eye isinf dot topk
    2 equal diag_embed
    3 _unique2
    4 nll_loss2d_forward isfinite bincount
    5 _safe_softmax
    9 logsumexp
"""
_KERNELS: Mapping[str, int] = {
    name: int(line.split()[0]) for line in _SEVERAL.strip().splitlines() for name in line.split()[1:]
}
_REDUCTIONS = frozenset({"mean", "amax", "amin", "linalg_vector_norm", "any", "all"})
# Arguments that an operator copies first where they are not contiguous.
_CONTIGUOUS: Mapping[str, tuple[int, ...]] = {
    **dict.fromkeys(("_softmax", "_log_softmax", "native_layer_norm", "native_group_norm"), (0,)),
    **dict.fromkeys(
        ("_softmax_backward_data", "_log_softmax_backward_data", "embedding_dense_backward"), (0, 1)
    ),
    **dict.fromkeys(("nll_loss_forward", "max_pool2d_with_indices"), (0,)),
}
_RULES: Mapping[str, _Rule] = {
    **dict.fromkeys(("clone", "contiguous", "_to_copy"), _clone),
    **{"copy_": _copy_in_place, "pow": _power, "constant_pad_nd": _pad},
    **dict.fromkeys(("select_backward", "slice_backward", "diagonal_backward"), _part_backward),
    **dict.fromkeys(("masked_fill", "scatter", "scatter_add", "index_add"), _cloned(_one_if_any)),
    **dict.fromkeys(("index_fill", "index_copy"), _cloned(_one_if_any)),
    **dict.fromkeys(("mm", "addmm", "addmm_", "bmm", "baddbmm", "baddbmm_"), _product),
    **{"convolution": _convolution, "convolution_backward": _convolution_backward},
    **{"native_batch_norm": _batch_norm, "native_batch_norm_backward": _batch_norm_backward},
    **dict.fromkeys(("native_layer_norm_backward", "_fused_rms_norm_backward"), _layer_norm_backward),
    "_fused_rms_norm": lambda call: with_contiguous(ONE, call.args[0]),
    "binary_cross_entropy_with_logits": _entropy_of_logits,
    **{"native_group_norm": _group_norm, "native_group_norm_backward": _group_norm_backward},
    **dict.fromkeys(("cat", "stack"), _cat),
    **dict.fromkeys(("cumsum", "cumprod", "logcumsumexp"), _scan),
    **{"sum": _sum, "nll_loss_forward": _nll, "binary_cross_entropy": _entropy},
    **dict.fromkeys(("mse_loss", "smooth_l1_loss", "huber_loss"), _loss),
    "_softmax_backward_data": _softmax_backward,
    **{"sort": index_launches.sort, "nonzero": index_launches.nonzero, "index": index_launches.index},
    **dict.fromkeys(("index_put_", "_index_put_impl_"), index_launches.index_put),
    "index_put": _cloned(index_launches.index_put),
    "embedding_dense_backward": index_launches.embedding_backward,
    "_scaled_dot_product_efficient_attention_backward": _efficient_backward,
    "_scaled_dot_product_flash_attention_backward": _flash_backward,
}  # fmt: skip
# Whose launches depend on more than shapes: on numbers among their arguments.
_WITH_NUMBERS = """
    pow select_backward slice_backward diagonal_backward constant_pad_nd index index_put index_put_ nonzero
    _index_put_impl_ cumsum cumprod mse_loss smooth_l1_loss huber_loss nll_loss_forward binary_cross_entropy
    sum mean amax amin linalg_vector_norm any all binary_cross_entropy_with_logits _fused_rms_norm_backward
    native_layer_norm_backward native_group_norm_backward convolution_backward sort
"""
BY_ARGUMENTS = frozenset(_WITH_NUMBERS.split())
