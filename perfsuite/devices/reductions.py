"""How torch's CUDA reductions split their work: many blocks for one result take memory for their parts.

Follows setReduceConfig of ATen/native/cuda/Reduce.cuh, for a card of 72 multiprocessors with 1,536 threads
each (an A10): on others the number of blocks is another only for inputs whose length does not limit it.
"""

import math
from collections.abc import Sequence
from typing import Any

from perfsuite.devices.work import Call, rounded

_WARP, _MAX_THREADS = 32, 512
_FEW_VALUES, _MANY_VALUES = 16, 256  # a thread's, at least and at most
_MULTIPROCESSORS, _THREADS = 72, 1_536
_VECTOR = 4
_UNIT_BYTES = 4  # of a partial result


def scratch_of(call: Call) -> int:
    """Return the bytes a reduction takes while it runs."""
    tensor, out = call.args[0], call.outputs[0]
    if not tensor.numel() or not out.numel():
        return 0
    dims = _reduced(call, tensor)
    lengths = sorted((tensor.stride(dim), dim) for dim in range(tensor.dim()) if tensor.shape[dim] > 1)
    if not lengths:
        return 0
    is_along = lengths[0][1] in dims
    is_all = all(dim in dims for _, dim in lengths)
    is_flat = is_all and tensor.is_contiguous()
    kept = [tensor.shape[dim] for _, dim in lengths if dim not in dims]
    return _scratch(out.numel(), tensor.numel() // out.numel(), is_along, is_flat, kept[0] if kept else 1)


def _reduced(call: Call, tensor: Any) -> set[int]:
    place = 2 if call.name == "linalg_vector_norm" else 1
    dims = call.args[place] if len(call.args) > place else None
    if isinstance(dims, int) and not isinstance(dims, bool):
        dims = [dims]
    if not isinstance(dims, Sequence) or not dims:
        return set(range(tensor.dim()))
    return {dim % tensor.dim() for dim in dims} if tensor.dim() else set()


def _scratch(outputs: int, inputs: int, is_along: bool, is_flat: bool, fastest: int) -> int:
    vector = 1
    first, second = (inputs, outputs) if is_along else (outputs, inputs)
    if is_along and is_flat and first > 128:
        first //= _VECTOR
    elif not is_along:
        vector = next(size for size in (4, 2, 1) if fastest % size == 0)
        first //= vector
    width, height = _block(first, second, _MAX_THREADS // vector)
    step_in, step_out = (width, 1) if is_along else (1, width)
    if -(-inputs // step_in) < min(height * 16, _MANY_VALUES):
        return 0  # no split among warps, and none among blocks
    step_in *= height
    values = -(-inputs // step_in)
    grid = -(-(outputs // vector) // step_out)
    target = _MULTIPROCESSORS * (_THREADS // (width * height))
    if values < _MANY_VALUES or grid > target:
        return 0
    blocks = max(min(-(-target // grid), -(-values // _FEW_VALUES)), -(-values // _MANY_VALUES))
    if blocks <= 1:
        return 0
    each = _UNIT_BYTES * outputs * blocks * (1 if is_along else width * vector)
    return rounded(each) + rounded(4 * grid)


def _block(first: int, second: int, threads: int) -> tuple[int, int]:
    wide, high = (min(2 ** int(math.log2(max(size, 1))), threads) for size in (first, second))
    height = min(high, threads // min(wide, _WARP))
    return min(wide, threads // height), height
