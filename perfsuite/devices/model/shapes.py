"""What an operator returns, without computing it: shapes, layouts, which of its arguments it hands back."""

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch

from perfsuite.devices.model.cuda_choices import REPLACED
from perfsuite.devices.operators import base_name, is_product

# Their results have another layout or more memory than torch's meta device says, or it does not know them.
_COMPUTED = frozenset(REPLACED) | {
    *("mkldnn_rnn_layer", "mkldnn_rnn_layer_backward", "mse_loss", "smooth_l1_loss", "huber_loss", "l1_loss"),
    *("binary_cross_entropy", "soft_margin_loss"),
}
_Way = Callable[[Any, Sequence[Any], dict[str, Any]], "Outcome | None"]
_FAILURES = (RuntimeError, TypeError, ValueError, LookupError, AttributeError, AssertionError)  # on stand-ins
_SMALL = 2**16  # numbers of all arguments: computed, which is exact and takes no longer


class New(NamedTuple):
    """A tensor that the operator makes."""

    size: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    room: int = 0  # bytes of its memory, where they are more than it needs

    def make(self, device: str = "cpu") -> Any:
        """Return memory of that shape, which nobody has written to."""
        made: Any = torch.empty_strided(self.size, self.stride, dtype=self.dtype, device=device)
        if self.room:
            room: Any = torch.empty(self.room, dtype=torch.uint8)
            made.set_(room.untyped_storage(), 0, self.size, self.stride)
        return made


class Given(NamedTuple):
    """An argument that the operator returns: the number of the tensor among all of them."""

    number: int


class Outcome(NamedTuple):
    """What an operator returns: its parts in order, and whether it is one value or a sequence of them."""

    parts: tuple[Any, ...]
    kind: type | None


def tensor_description(tensor: torch.Tensor) -> New:
    """Describe a tensor by what results depend on."""
    return New(tuple(tensor.shape), tensor.stride(), tensor.dtype)


def leaves(value: Any) -> Iterator[Any]:
    """Yield what is no list or tuple, in order."""
    if isinstance(value, list | tuple) and not isinstance(value, torch.Size):
        for entry in value:
            yield from leaves(entry)
    else:
        yield value


def mapped(function: Callable[[Any], Any], value: Any) -> Any:
    """Return arguments with every tensor replaced; lists and tuples stay what they are."""
    if isinstance(value, torch.Tensor):
        return function(value)
    if isinstance(value, list | tuple) and not isinstance(value, torch.Size):
        return type(value)([mapped(function, entry) for entry in value])
    return value


def outcome(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Outcome | None:
    """Return what an operator would return; None if that cannot be known without its values."""
    for way in _ways(func, args):
        try:
            found = way(func, args, kwargs)
        except _FAILURES:  # where all ways fail, the user's own call shows what is wrong
            continue
        if found is not None:
            return found
    return None


def _ways(func: Any, args: Sequence[Any]) -> tuple[_Way, ...]:
    """Return how to find out, the best first: the meta device is not sure of layouts, but has no cost."""
    name = base_name(func)
    tensors = [value for value in leaves(args) if isinstance(value, torch.Tensor)]
    if name in _COMPUTED or (tensors and sum(tensor.numel() for tensor in tensors) <= _SMALL):
        return (_by_zeros,)
    if is_product(name) or all(tensor.is_contiguous() for tensor in tensors):
        return (_by_meta, _by_zeros)
    return (_by_few, _by_zeros) if torch.Tag.pointwise in func.tags else (_by_zeros,)


def _by_meta(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Outcome | None:
    if kwargs.get("device") is not None:
        kwargs = {**kwargs, "device": torch.device("meta")}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's own, about what it imports for that device
        return _by_stand_ins(func, args, kwargs, lambda new: new.make("meta"))


def _by_zeros(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Outcome | None:
    return _by_stand_ins(func, args, kwargs, lambda new: new.make().zero_())


def _by_few(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Outcome | None:
    """Try an element-wise operator with two elements in every dimension: the order of strides decides."""
    found = _by_stand_ins(func, args, kwargs, lambda new: _few(new).make().zero_())
    if found is None:
        return None
    shapes = [value.shape for value in leaves(args) if isinstance(value, torch.Tensor)]
    size = tuple(torch.broadcast_shapes(*shapes))  # type: ignore[no-untyped-call]
    parts = [_many(part, size) if isinstance(part, New) else part for part in found.parts]
    return None if None in parts else found._replace(parts=tuple(parts))


def _few(new: New) -> New:
    """Return a small tensor whose dimensions follow in the same order."""
    stride, step = [0] * len(new.size), 1
    for dim in _ordered(new):
        if new.stride[dim]:
            stride[dim] = step
            step *= min(new.size[dim], 2)
    return New(tuple(min(size, 2) for size in new.size), tuple(stride), new.dtype)


def _is_dense(new: New, dims: Sequence[int]) -> bool:
    expected = 1
    for dim in dims:
        if new.size[dim] > 1:
            if new.stride[dim] != expected:
                return False
            expected *= new.size[dim]
    return True


def _many(few: New, size: tuple[int, ...]) -> New | None:
    if len(few.size) != len(size) or few.room or not _is_dense(few, _ordered(few)):
        return None
    stride, step = [0] * len(size), 1
    for dim in _ordered(few):
        stride[dim] = step
        step *= size[dim]
    return New(size, tuple(stride), few.dtype)


def _ordered(new: New) -> list[int]:
    return sorted(range(len(new.size)), key=lambda dim: (new.stride[dim], new.size[dim]))


@contextmanager
def seeded(seed: int | None, kwargs: dict[str, Any]) -> Iterator[None]:
    """Draw random numbers from a seed, and leave the generator of a call as it was."""
    if seed is None:
        yield
        return
    generator = kwargs.get("generator") or torch.default_generator
    before = generator.get_state()
    generator.manual_seed(seed)
    try:
        yield
    finally:
        generator.set_state(before)


def _by_stand_ins(
    func: Any, args: Sequence[Any], kwargs: dict[str, Any], make: Callable[[New], torch.Tensor]
) -> Outcome | None:
    stand_ins: list[torch.Tensor] = []

    def stand_in(tensor: torch.Tensor) -> torch.Tensor:
        stand_ins.append(make(tensor_description(tensor)))
        return stand_ins[-1]

    given = mapped(stand_in, list(args))
    named = {name: mapped(stand_in, value) for name, value in kwargs.items()}
    with seeded(0, kwargs):  # some stand-ins draw, and the caller's numbers are not theirs
        result = func(*given, **named)
    storages = {tensor.untyped_storage()._cdata for tensor in stand_ins}
    numbers = {id(tensor): number for number, tensor in enumerate(stand_ins)}
    parts = []
    for part in leaves(result):
        if isinstance(part, torch.Tensor):
            found = Given(numbers[id(part)]) if id(part) in numbers else _new(part, storages)
            if found is None:
                return None
            parts.append(found)
        else:
            parts.append(part)
    kind = type(result) if isinstance(result, list | tuple) else None
    is_flat = kind is None or all(not isinstance(part, list | tuple) for part in result)
    return Outcome(tuple(parts), kind) if is_flat else None


def _new(tensor: torch.Tensor, storages: set[int]) -> New | None:
    """Describe a result that has memory of its own and fills it."""
    if tensor.layout is not torch.strided or type(tensor) is not torch.Tensor:
        return None
    if tensor.untyped_storage()._cdata in storages or tensor.storage_offset():
        return None
    described, size_bytes = tensor_description(tensor), tensor.untyped_storage().nbytes()
    is_whole = described.make("meta").untyped_storage().nbytes() == size_bytes
    return described if is_whole else described._replace(room=size_bytes)
