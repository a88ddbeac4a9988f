"""What one operator gives the card to do, and what copying a tensor takes there."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

_BLOCK_BYTES = 512


class Work(NamedTuple):
    """What one operator gives the card to do."""

    kernels: int = 1
    copies: int = 0  # memory copied as it is: no kernel
    scratch_bytes: int = 0  # taken and returned by the operator itself

    def __add__(self, other: Any) -> "Work":
        return Work(
            self.kernels + other.kernels, self.copies + other.copies, self.scratch_bytes + other.scratch_bytes
        )


class Call(NamedTuple):
    """One call of an operator."""

    name: str
    args: Sequence[Any]
    kwargs: Mapping[str, Any]
    outputs: Sequence[Any]

    def given(self, place: int, name: str, default: Any = None) -> Any:
        """Return an argument, however it was given."""
        return self.args[place] if len(self.args) > place else self.kwargs.get(name, default)


NOTHING, ONE, TWO = Work(0), Work(1), Work(2)


def rounded(size_bytes: int) -> int:
    """Return the bytes the CUDA allocator takes for a tensor: whole blocks, none for an empty one."""
    return -(-size_bytes // _BLOCK_BYTES) * _BLOCK_BYTES


def size_of_tensor(tensor: Any) -> int:
    """Return what a tensor takes that is laid out without gaps."""
    return rounded(tensor.numel() * tensor.element_size())


def size_like(shape: Sequence[int], like: Any) -> int:
    """Return what a tensor of that shape takes with the numbers of another."""
    return rounded(math.prod(shape) * like.element_size())


def is_flat(*tensors: Any) -> bool:
    """Tell whether tensors of one shape lie in memory alike and without gaps: what a plain copy needs."""
    first = tensors[0]
    if first.numel() <= 1:
        return True
    dims = [dim for dim, size in enumerate(first.shape) if size > 1]
    strides = [first.stride(dim) for dim in dims]
    if any([other.stride(dim) for dim in dims] != strides for other in tensors[1:]):
        return False
    expected = 1
    for dim in sorted(dims, key=first.stride):
        if first.stride(dim) != expected:
            return False
        expected *= first.shape[dim]
    return True


def copy(source: Any, target: Any) -> Work:
    """Return what copying one tensor into another takes."""
    if not target.numel():
        return NOTHING
    if source.dtype == target.dtype and source.shape != target.shape:
        source = source.expand(target.shape)
    return Work(0, 1) if source.dtype == target.dtype and is_flat(source, target) else ONE


def with_contiguous(work: Work, *tensors: Any) -> Work:
    """Add the copies of what an operator wants contiguous and did not get so."""
    for tensor in tensors:
        if tensor is not None and not tensor.is_contiguous():
            work += Work(1, 0, size_of_tensor(tensor))
    return work
