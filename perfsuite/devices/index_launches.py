"""What indices launch on CUDA: masks become positions, gradients at one position are sorted together."""

import math
from collections.abc import Sequence
from typing import Any

import torch

from perfsuite.devices.work import NOTHING, ONE, TWO, Call, Work, rounded, size_of_tensor, with_contiguous

_INDEX_BYTES = 8
_SMALL_EMBEDDING = 3_072  # indices: more are sorted
_ONE_TILE_COUNT, _ONE_TILE_SORT = 4_096, 2_304  # elements that cub reduces or sorts with one kernel
_SMALL_SORT = 4_096  # in a row: sorted in place
_RADIX_BITS = 8


def masks_in(indices: Sequence[Any]) -> list[Any]:
    """Return the masks among indices: each becomes positions, whose number the host must know."""
    return [index for index in indices if index is not None and index.dtype in (torch.bool, torch.uint8)]


def nonzero(call: Call) -> Work:
    """Turn a mask into positions that are the result."""
    work = _positions(call.args[0], call.outputs[0].shape[0])
    return work._replace(scratch_bytes=max(work.scratch_bytes - size_of_tensor(call.outputs[0]), 0))


def _positions(mask: Any, found: int) -> Work:
    """Turn a mask into positions: count, choose, and of several dimensions compute them from the place."""
    if not mask.numel():
        return NOTHING
    is_small = mask.numel() <= _ONE_TILE_COUNT
    work = Work(3 if is_small else 4, 0, 1_536 if is_small else 9_728)
    return work + Work(int(mask.dim() > 1 and found > 0), 0, rounded(_INDEX_BYTES * found * mask.dim()))


def _selected(mask: Any) -> int:
    # On a real or emulated card the question would launch and wait: there it is an estimate of time alone.
    return int(mask.sum()) if mask.is_cpu else int(mask.numel())


def index(call: Call) -> Work:
    """Gather by positions."""
    out = call.outputs[0]
    work = ONE if out.numel() else NOTHING
    for mask in masks_in(call.args[1]):
        work += _positions(mask, _selected(mask) if out.numel() else 0)
    return work


def index_put(call: Call) -> Work:
    """Write to positions; adding up takes them sorted, and a check that none lies outside."""
    target, indices = call.args[:2]
    given = [index for index in indices if index is not None]
    masks = masks_in(indices)
    sizes = [index.numel() for index in given]
    chosen = max(sizes) if sizes and all(sizes) else 0
    work = NOTHING
    for mask in masks:
        chosen = _selected(mask)
        work += _positions(mask, chosen)
    if not chosen or not target.numel():
        return work
    if not call.given(3, "accumulate", False):
        return work + ONE
    count = len(given) + sum(mask.dim() - 1 for mask in masks)
    bits = max(math.prod(target.shape[:count]), 2).bit_length()
    is_checked = not call.given(4, "unsafe", False)  # gradients of positions that were read need no check
    kernels = (2 + 6 * is_checked) * count + (count - 1) + 3 + _sort_kernels(chosen, bits)
    return work + Work(kernels, 0, 4 * rounded(_INDEX_BYTES * chosen) + 512)


def embedding_backward(call: Call) -> Work:
    """Add rows up: few in one kernel, many by sorted segments."""
    gradient, indices, is_scaled = call.args[0], call.args[1], bool(call.args[4])
    count = indices.numel()
    if count <= _SMALL_EMBEDDING and not is_scaled:
        return with_contiguous(TWO, gradient, indices)
    work = Work(11 + 4 * is_scaled + _sort_kernels(count, 64), 0, 4 * rounded(_INDEX_BYTES * count))
    return with_contiguous(work, gradient, indices)


def sort(call: Call) -> Work:
    """Sort rows, short ones in place."""
    tensor, dim = call.args[0], call.given(1, "dim", -1)
    if not tensor.numel():
        return NOTHING
    length = tensor.shape[-1 if isinstance(dim, bool) else dim] if tensor.dim() else 1
    if length > _SMALL_SORT:
        return Work(11, 1)
    return Work(2, 3) if tensor.numel() == length else Work(3, 2)


def _sort_kernels(count: int, bits: int) -> int:
    return 1 if count <= _ONE_TILE_SORT else 2 + -(-bits // _RADIX_BITS)
