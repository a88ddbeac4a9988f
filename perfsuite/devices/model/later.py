"""Compute later, or never: operators on a modelled card are put off until something reads their results.

What is counted depends on shapes alone. While steps are counted, an operator's results are memory that nobody
has written to, and a log says how to compute them. Who reads a value (`.item()`, a copy to the host, a mask)
makes the log run, in the order and with the arguments of the calls. What nobody reads is never computed, so
that a step costs the same whatever its sizes are.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.nn import Parameter

from perfsuite.devices.index_launches import masks_in
from perfsuite.devices.model.memory import Memory
from perfsuite.devices.model.put_off import Layout, Needed, Operator, Slot, TooMuch, View, run_all
from perfsuite.devices.model.shapes import Given, New, Outcome, mapped, outcome, tensor_description
from perfsuite.devices.operators import Rule, tensors_of

_PLAIN = frozenset({torch.Tensor, Parameter, torch.nn.Buffer})
_LASTING = frozenset({"parameters", "gradients", "optimizer"})  # kinds of memory that outlive a step
_MOST_OPERATORS = 60_000  # that are remembered: about 200 MB
_MOST_INPUTS, _FEW_INPUTS = 500_000, 100  # of operators that are computed to answer one question
_MOST_BYTES = 2**29  # of results that are there at a time because somebody asked
_FEW_FLOPS, _FEW_BYTES = 1e6, 2**18  # what is so cheap is always computed
_MOST_FLOPS = 1e11  # for all of a test's questions: a second or two
_POINTERS = ("data_ptr", "numpy", "__array__", "__dlpack__", "storage")
_COPIES = ("tolist", "__reduce_ex__", "__deepcopy__")
_BLANK = frozenset({"empty", "empty_strided", "empty_like", "new_empty", "new_empty_strided"})
_VALUELESS = _BLANK | {
    *("detach", "alias", "lift", "lift_fresh", "is_same_size", "_reshape_alias"),
    *("unsafe_split", "unsafe_split_with_sizes", "unsafe_chunk"),
}
_ONLY_HERE = 1  # references to a storage
_HIDDEN_WRITES = {"native_batch_norm": ((3, "running_mean"), (4, "running_var"))}  # schemas do not say so
NOW: Any = object()  # the answer for an operator that cannot wait


class Traits:
    """What decides whether an operator can wait."""

    __slots__ = ("can_wait", "is_layout", "is_random", "mutates")

    def __init__(self, func: Any, rule: Rule) -> None:
        tags = func.tags
        self.is_layout = torch.Tag.inplace_view in tags
        is_dynamic = torch.Tag.dynamic_output_shape in tags or torch.Tag.data_dependent_output in tags
        is_bare = not (rule.has_kernel or rule.name in _BLANK) or bool(rule.reads) or self.is_layout
        self.can_wait = not is_bare and (not is_dynamic or rule.is_index)
        self.is_random = torch.Tag.nondeterministic_seeded in tags
        written = [
            (place, argument.name)
            for place, argument in enumerate(func._schema.arguments)
            if argument.alias_info is not None
            and argument.alias_info.is_write
            # Whether gradients are finite is presumed: they are, in almost every step.
            and not ("non_finite_check" in rule.name and argument.name == "found_inf")
        ]
        self.mutates = _HIDDEN_WRITES.get(rule.name, tuple(written))

    def mutated(self, args: Sequence[Any], kwargs: dict[str, Any]) -> list[Any]:
        """Return the tensors that a call writes into."""
        if not self.mutates:
            return []
        values = (args[place] if place < len(args) else kwargs.get(name) for place, name in self.mutates)
        return tensors_of(tuple(values))


class Later:
    """Put operators off while steps are counted, and compute what is read."""

    def __init__(self, memory: Memory, is_on_card: Callable[[Any], bool]) -> None:
        self._memory = memory
        self._is_on_card = is_on_card
        self.not_computed = 0  # values that were read, and were too expensive
        self.is_off = False  # everything is computed: where somebody has a pointer to memory, from there on
        self._operators: deque[Operator] = deque()  # put off, in order
        self._count = 0  # of them so far
        self._is_full = False  # the first of them were forgotten
        self._spent_flops = 0.0
        self._computed: dict[int, int] = {}  # live memory that has been written to after all, and its bytes
        self._computed_bytes = 0
        self._last: Operator | None = None
        self._slots: dict[int, Slot] = {}
        self._traits: dict[Any, Traits] = {}
        self._outcomes: dict[Any, Outcome | None] = {}

    def traits(self, func: Any, rule: Rule) -> Traits:
        """Return what decides whether an operator can wait."""
        found = self._traits.get(func)
        if found is None:
            found = self._traits[func] = Traits(func, rule)
        return found

    def put_off(self, func: Any, rule: Rule, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Return memory for an operator's results, or NOW if it must be computed."""
        traits = self.traits(func, rule)
        if self.is_off or not traits.can_wait or (rule.is_index and masks_in(args[1])):
            return NOW
        tensors = tensors_of(args)
        if kwargs:
            tensors += tensors_of(tuple(kwargs.values()))
        mutated = traits.mutated(args, kwargs) if traits.mutates else ()
        if not all(map(_is_plain, tensors)) or not all(map(self._is_on_card, mutated)):
            return NOW
        layouts = _layouts(args), _layouts(tuple(kwargs.values()))
        found = self._outcome((func, torch.is_grad_enabled(), *layouts, *kwargs), args, kwargs)
        if found is None or not (tensors or _has_extent(found)):  # numbers belong to the host
            return NOW
        result, made = _made(found, tensors)
        if self._is_full and any(slot.is_lost for tensor in tensors if (slot := self._known(tensor))):
            for tensor in mutated:
                (self._known(tensor) or self._new_slot(tensor, is_made=False)).lose()
            for part in made:
                if part is not None:
                    self._new_slot(part[0], is_made=True).lose()
            return result
        operator = self._last = Operator(self._count, func, self._noted(args, layouts[0]))
        if kwargs:
            operator.kwargs = dict(zip(kwargs, self._noted(kwargs.values(), layouts[1]), strict=True))
        operator.mutated = tuple(map(self._slot, mutated))
        operator.made = tuple(
            part and View(self._new_slot(part[0], is_made=True), part[1], 0) for part in made
        )
        if traits.is_random:
            drawn = torch.empty((), dtype=torch.int64).random_(generator=kwargs.get("generator"))
            operator.seed = int(drawn)
        self._write_down(operator)
        return result

    def _outcome(self, key: tuple[Any, ...], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Outcome | None:
        try:
            if key not in self._outcomes:
                self._outcomes[key] = outcome(key[0], args, kwargs)
            return self._outcomes[key]
        except TypeError:  # an argument without a hash
            return None

    def _write_down(self, operator: Operator) -> None:
        operator.link()
        self._count += 1
        self._operators.append(operator)
        if len(self._operators) > _MOST_OPERATORS:
            self._is_full = True
            oldest = self._operators.popleft()
            if oldest.is_linked:
                oldest.lose()

    def _noted(self, values: Iterable[Any], layouts: Iterable[Any]) -> list[Any]:
        """Return how arguments are remembered: by their memory, or copies of what the host may change."""
        noted: list[Any] = []
        for value, layout in zip(values, layouts, strict=True):
            if isinstance(value, torch.Tensor):
                is_ours = self._is_on_card(value)
                view = View(self._slot(value), layout, int(value.storage_offset())) if is_ours else None
                noted.append(view or value.detach().clone())
            elif isinstance(value, list | tuple):
                noted.append(self._noted(value, layout))
            else:
                noted.append(value)
        return noted

    def _new_slot(self, tensor: Any, *, is_made: bool) -> Slot:
        storage = tensor.untyped_storage()
        key = storage._cdata
        slot = self._slots[key] = Slot(storage, lambda _: self._died(key), is_made=is_made)
        return slot

    def _slot(self, tensor: Any) -> Slot:
        storage = tensor.untyped_storage()
        key = storage._cdata
        slot = self._slots.get(key)
        if slot is None:
            slot = self._new_slot(tensor, is_made=False)
        if slot.kept is None and not slot.is_waiting:
            if self._is_lasting(tensor, storage):
                slot.kept = storage  # held rather than copied
            else:
                slot.keep()
        return slot

    def _died(self, key: int) -> None:
        self._slots.pop(key, None)
        self._computed_bytes -= self._computed.pop(key, 0)

    def _is_lasting(self, tensor: Any, storage: Any) -> bool:
        block = self._memory.block(storage)
        return type(tensor) is Parameter or (block is not None and block.kind in _LASTING)

    def note_flops(self, flops: float) -> None:
        """Set what the last operator would take."""
        if self._last is not None:
            self._last.flops, self._last = flops, None

    def before(self, func: Any, rule: Rule, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any]:
        """Compute what an operator needs that cannot wait, and return its arguments.

        Where that is too much, weights are as they were, and what steps made is zero.
        """
        if not self._slots or rule.name in _VALUELESS or (traits := self.traits(func, rule)).is_layout:
            return args, kwargs
        mutated = [slot for tensor in traits.mutated(args, kwargs) if (slot := self._known(tensor))]
        given = tensors_of((*args, *kwargs.values()))
        waiting = [slot for tensor in given if (slot := self._known(tensor))]
        if not mutated and not any(slot.is_waiting for slot in waiting):
            return args, kwargs
        if self._compute(waiting, mutated):
            return args, kwargs
        self.not_computed += 1
        for slot in mutated:
            slot.lose()

        def or_substitute(tensor: Any) -> Any:
            slot = self._known(tensor)
            is_blank = slot is not None and slot.is_waiting and slot.is_made
            return tensor_description(tensor).make().zero_() if is_blank else tensor

        named = {name: mapped(or_substitute, value) for name, value in kwargs.items()}
        return mapped(or_substitute, args), named

    def _known(self, tensor: Any) -> Slot | None:
        if type(tensor) not in _PLAIN or tensor.layout is not torch.strided:
            return None
        return self._slots.get(tensor.untyped_storage()._cdata)

    def is_waiting(self, tensor: Any) -> bool:
        """Return whether a tensor's value is not there."""
        slot = self._known(tensor)
        return slot is not None and slot.is_waiting

    def _compute(self, slots: Sequence[Slot], mutated: Sequence[Slot] = ()) -> bool:
        """Compute what waits, and who reads what is to be written; return whether that was not too much."""
        # Who has asked for too much is likely to ask again; only what is cheap is looked into then.
        most = _MOST_INPUTS if not self.not_computed else _FEW_INPUTS
        flops, size = _MOST_FLOPS - self._spent_flops, _MOST_BYTES - self._computed_bytes
        needed = Needed(most, max(flops, _FEW_FLOPS), max(size, _FEW_BYTES))
        try:
            needed.add(slots)
            needed.add(slot for read in mutated for reader in read.readers for slot in reader.writes())
            operators = needed.in_order()
        except TooMuch:
            return False
        run_all(operators)
        for operator in operators:
            self._spent_flops += operator.flops
            for slot in operator.writes():
                alive = slot.alive()
                if alive is not None and alive._cdata not in self._computed:
                    self._computed[alive._cdata] = slot.size_bytes
                    self._computed_bytes += slot.size_bytes
        return True

    def unseen(self, tensor: Any, *, is_pointer: bool) -> None:
        """Compute what somebody reads past torch's operators; who has a pointer may do so at any time."""
        if self.is_off or not (self.is_waiting(tensor) or (is_pointer and self._is_on_card(tensor))):
            return
        slots = list(self._slots.values()) if is_pointer else [self._slots[tensor.untyped_storage()._cdata]]
        if not self._compute(slots):
            self.not_computed += 1
        self.is_off = is_pointer

    def let_go(self) -> None:
        """Count memory as freed that only the waiting operators hold."""
        for slot in self._slots.values():
            kept = slot.kept
            is_held = kept is not None and kept is slot.alive()
            if is_held and torch._C._storage_Use_Count(kept._cdata) == _ONLY_HERE:
                self._memory.forget(kept)

    def end(self) -> None:
        """Forget what was put off: what it would have changed is as it was, what it would have made zero."""
        for slot in list(self._slots.values()):
            storage = slot.alive()
            if storage is not None and slot.is_waiting and slot.is_made:
                storage.fill_(0)
        for operator in self._operators:
            operator.forget()
        self._slots = {}
        self._operators.clear()


@contextmanager
def watch_unseen(later: Later, is_counting: Callable[[], bool]) -> Iterator[None]:
    """Notice who reads tensors past torch's operators."""
    tensor: Any = torch.Tensor
    originals = {name: getattr(tensor, name) for name in (*_POINTERS, *_COPIES)}

    def noticed(name: str) -> Callable[..., Any]:
        def call(self: Any, *args: Any, **kwargs: Any) -> Any:
            later.unseen(self, is_pointer=name in _POINTERS and is_counting())
            return originals[name](self, *args, **kwargs)

        return call

    own = {name for name in originals if name in vars(tensor)}
    for name in originals:
        setattr(tensor, name, noticed(name))
    try:
        yield
    finally:
        for name, original in originals.items():
            if name in own:
                setattr(tensor, name, original)
            else:
                delattr(tensor, name)


def _is_plain(tensor: Any) -> bool:
    return (
        type(tensor) in _PLAIN
        and tensor.layout is torch.strided
        and tensor.is_cpu
        and not (tensor.is_conj() or tensor.is_neg())
    )


def _layouts(values: Iterable[Any]) -> tuple[Any, ...]:
    """Return what results depend on, with the places of tensors; 1 and 1.0 and True are not the same."""
    return tuple(
        (value.shape, value.stride(), value.dtype)
        if isinstance(value, torch.Tensor)
        else _layouts(value)
        if isinstance(value, list | tuple)
        else (value.__class__, value)
        for value in values
    )


def _has_extent(found: Outcome) -> bool:
    return any(isinstance(part, New) and len(part.size) > 0 for part in found.parts)


def _made(found: Outcome, tensors: Sequence[Any]) -> tuple[Any, list[tuple[Any, Layout] | None]]:
    """Return an operator's result, and which of its parts are new."""
    parts: list[Any] = []
    made: list[tuple[Any, Layout] | None] = []
    for part in found.parts:
        if isinstance(part, New):
            parts.append(part.make())
            made.append((parts[-1], (part.size, part.stride, part.dtype)))
        else:
            parts.append(tensors[part.number] if isinstance(part, Given) else part)
            made.append(None)
    return parts[0] if found.kind is None else found.kind(parts), made
