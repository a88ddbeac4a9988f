"""Operators that were put off: what they got, where their results belong, how to compute them after all.

Nothing here keeps a step's tensors alive, since the peak of memory is counted by when they die. Their memory
is known by slots: the live one if there is one, else memory that is made when the operators run.
"""

import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from typing import Any

import torch

from perfsuite.devices.model.shapes import leaves, seeded
from perfsuite.devices.operators import base_name, is_product

Layout = tuple[Sequence[int], Sequence[int], torch.dtype]  # size, stride and type of a tensor
_HALVES = (torch.float16, torch.bfloat16)
_AUTOCAST = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCPU)
_NOBODY: list[Any] = []  # for memory that is read or written by none, which most is


class Slot:
    """The memory of a tensor: alive or not, with its value or waiting for it."""

    __slots__ = ("alive", "is_lost", "is_made", "kept", "readers", "size_bytes", "writers")

    def __init__(self, storage: Any, died: Callable[[Any], None], *, is_made: bool) -> None:
        self.alive = weakref.ref(storage, died)
        self.size_bytes = storage.nbytes()
        self.is_made = is_made  # by an operator that was put off: nobody has written to it
        self.is_lost = False  # nothing knows any more how to compute it
        self.kept: Any = None  # memory with the value, should the live one be freed
        self.writers: list[Operator] = _NOBODY  # put off, in order
        self.readers: list[Operator] = _NOBODY

    def lose(self) -> None:
        """Give up its value, and who waits to read it."""
        self.is_lost = True
        for operator in (*self.readers, *self.writers):
            if operator.is_linked:
                operator.lose()

    @property
    def is_waiting(self) -> bool:
        """Return whether its value is not there."""
        return self.is_lost or bool(self.writers)

    def keep(self) -> None:
        """Keep a copy of the value: who waits for it may come when its tensor is freed."""
        alive = self.alive()
        self.kept = self.kept if alive is None else alive.clone()

    def storage(self) -> Any:
        """Return the memory that holds the value."""
        alive = self.alive()
        return self.kept if alive is None else alive


class View:
    """A tensor as an operator got or gave it: a part of a slot."""

    __slots__ = ("layout", "offset", "slot")

    def __init__(self, slot: Slot, layout: Layout, offset: int) -> None:
        self.slot, self.layout, self.offset = slot, layout, offset

    def tensor(self) -> Any:
        """Return it, on the slot's memory."""
        size, stride, dtype = self.layout
        empty: Any = torch.empty(0, dtype=dtype)
        return empty.set_(self.slot.storage(), self.offset, size, stride)

    def fill(self, value: Any) -> None:
        """Give the slot its value: memory that is dead takes over the result's."""
        if self.slot.alive() is not None:
            self.tensor().copy_(value)
        elif (value.shape, value.stride(), value.dtype) == self.layout and not value.storage_offset():
            self.slot.kept = value.untyped_storage()
        else:
            size, stride, dtype = self.layout
            self.slot.kept = torch.empty_strided(size, stride, dtype=dtype).untyped_storage()
            self.tensor().copy_(value)


class Operator:
    """One call that was put off."""

    __slots__ = (
        *("args", "flops", "func", "is_grad", "is_linked", "kwargs", "made", "mutated", "number", "reads"),
        "seed",
    )

    def __init__(self, number: int, func: Any, args: list[Any]) -> None:
        self.number = number
        self.func = func
        self.args = args  # a view in the place of a tensor, and copies of what the host may change
        self.kwargs: dict[str, Any] = {}
        self.reads: tuple[Slot, ...] = ()
        self.made: tuple[View | None, ...] = ()  # for every part of the result, in order
        self.mutated: tuple[Slot, ...] = ()
        self.is_grad = torch.is_grad_enabled()  # a recurrent layer keeps less without
        self.seed: int | None = None  # of its random numbers
        self.flops = 0.0

    def writes(self) -> Iterator[Slot]:
        """Yield the memory that it writes."""
        yield from self.mutated
        yield from (view.slot for view in self.made if view is not None)

    def run(self) -> None:
        """Compute it, and put the results where they belong."""
        args = [_tensors(value) for value in self.args]
        kwargs = {name: _tensors(value) for name, value in self.kwargs.items()}
        torch._C._set_grad_enabled(self.is_grad)
        with seeded(self.seed, kwargs):
            result = computed(self.func, args, kwargs)
        if self.made:
            for view, value in zip(self.made, leaves(result), strict=True):
                if view is not None:
                    view.fill(value)

    def lose(self) -> None:
        """Give it up: nobody knows any more what it would have written."""
        for slot in self.writes():
            slot.is_lost = True
        self.unlink()

    def forget(self) -> None:
        """Let go of the memory it uses, which would hold each other otherwise."""
        for slot in (*self.reads, *self.writes()):
            slot.readers = slot.writers = _NOBODY

    def link(self) -> None:
        """Let its memory know who reads and writes it."""
        self.is_linked = True
        self.reads = tuple(_slots_in(self.args))
        if self.kwargs:
            self.reads += tuple(_slots_in(self.kwargs.values()))
        for slot in self.reads:
            slot.readers = slot.readers or []
            slot.readers.append(self)
        for slot in self.writes():
            slot.writers = slot.writers or []
            slot.writers.append(self)

    def unlink(self) -> None:
        """Undo `link`; memory that nobody else needs is given back."""
        self.is_linked = False
        for slot in self.reads:
            slot.readers.remove(self)
        for slot in self.writes():
            slot.writers.remove(self)
        for slot in (*self.reads, *self.writes()):
            if not slot.readers and not slot.writers:
                slot.kept = None


class TooMuch(Exception):
    """What values depend on takes too long or too much memory, or nobody knows it any more."""


class Needed:
    """The operators that values depend on, up to a limit of what they take."""

    def __init__(self, most: int, most_flops: float, most_bytes: float) -> None:
        self._most, self._left_flops, self._most_bytes = most, most_flops, most_bytes
        self._found: set[Operator] = set()

    def add(self, slots: Iterable[Slot]) -> None:
        """Add what memory waits for."""
        queue: list[Operator] = []
        for slot in slots:
            queue += _writers(slot)
        while queue:
            operator = queue.pop()
            if operator not in self._found:
                self._take(operator)
                queue += _before(operator)

    def _take(self, operator: Operator) -> None:
        self._found.add(operator)
        self._most -= len(operator.reads)  # an optimizer's step has thousands
        self._left_flops -= operator.flops
        if self._most < 0 or self._left_flops < 0:
            raise TooMuch

    def in_order(self) -> list[Operator]:
        """Return them as they were called, unless their results need too much memory at a time."""
        operators = sorted(self._found, key=lambda operator: operator.number)
        if _peak_bytes(operators) > self._most_bytes:
            raise TooMuch
        return operators


def _peak_bytes(operators: Sequence[Operator]) -> int:
    """Return the most that results take at a time; those of dead tensors are freed after their last use."""
    now, peak = 0, 0
    ends: dict[int, int] = {}  # number of an operator → bytes that nobody needs after it
    for operator in operators:
        for slot in (view.slot for view in operator.made if view is not None):
            now += slot.size_bytes
            if slot.alive() is None:
                last = max(user.number for user in (*slot.readers, *slot.writers))
                ends[last] = ends.get(last, 0) + slot.size_bytes
        peak = max(peak, now)
        now -= ends.pop(operator.number, 0)
    return peak


def _writers(slot: Slot) -> list[Operator]:
    if slot.is_lost:
        raise TooMuch
    return slot.writers


def _before(operator: Operator) -> Iterator[Operator]:
    """Yield who must run before an operator: who wrote what it reads, and read what it writes."""
    number = operator.number
    for slot in operator.reads:
        yield from (writer for writer in _writers(slot) if writer.number < number)
    for slot in operator.mutated:
        yield from (reader for reader in slot.readers if reader.number < number)


def run_all(operators: Sequence[Operator]) -> None:
    """Compute operators as they were called; nobody watches."""
    with ExitStack() as stack:
        for guard in (torch._C._DisableTorchDispatch, torch._C.DisableTorchFunction):
            stack.enter_context(guard())
        stack.enter_context(torch._C._ExcludeDispatchKeyGuard(_AUTOCAST))
        stack.enter_context(torch._C._AutoDispatchBelowAutograd())
        stack.callback(torch._C._set_grad_enabled, torch.is_grad_enabled())
        for operator in operators:
            operator.run()
            operator.unlink()
        for slot in {slot for operator in operators for slot in operator.writes()}:
            if slot.readers and slot.kept is not slot.alive():
                slot.keep()


def _slots_in(values: Iterable[Any]) -> Iterator[Slot]:
    for value in values:
        if isinstance(value, View):
            yield value.slot
        elif isinstance(value, list):
            yield from _slots_in(value)


def _tensors(value: Any) -> Any:
    if isinstance(value, View):
        return value.tensor()
    return [_tensors(entry) for entry in value] if isinstance(value, list) else value


def computed(func: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """Compute an operator; products of half precision in float32, since a CPU takes ages for them."""
    dtypes = [value.dtype for value in args if isinstance(value, torch.Tensor)]
    is_half = any(dtype in _HALVES for dtype in dtypes)
    if not is_half or not is_product(base_name(func)) or func._schema.is_mutable:
        return func(*args, **kwargs)
    wide = [value.float() if isinstance(value, torch.Tensor) else value for value in args]
    result = func(*wide, **kwargs)
    if isinstance(result, torch.Tensor):
        return result.to(dtypes[0])
    return tuple(None if part is None else part.to(dtypes[0]) for part in result)
