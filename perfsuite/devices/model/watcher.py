"""Watch every torch operator of a step on CPU tensors, and record what it would do on a GPU."""

import warnings
from pathlib import Path
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from perfsuite.devices import operators
from perfsuite.devices.code_lines import UNKNOWN, Place, Places
from perfsuite.devices.index_launches import masks_in
from perfsuite.devices.kernels import VIEW, Copy, Event, HostWork, Kernel, Launch, Sync
from perfsuite.devices.launches import BY_ARGUMENTS
from perfsuite.devices.model.allocator import WORKSPACE_BYTES
from perfsuite.devices.model.later import NOW, Later
from perfsuite.devices.model.memory import Block, Memory
from perfsuite.devices.operators import Rule, has_extent, sequence_number, tensors_of

TARGET = torch.device("cpu", 0)  # a second name of the CPU: what is moved here is on the card

_ZEROS = frozenset({"zeros", "new_zeros", "zeros_like"})
_NOT_COMPUTED = (
    "a value of counted steps was too expensive to compute (docs/modelled-gpu.md): weights are as before "
    "them, what they made is zero; read it on a card, or let the test count fewer steps"
)
_aten: Any = torch.ops.aten
# Gradients that torch writes in place, unless a mode like ours looks on.
_IN_PLACE = {
    "index_put": _aten._index_put_impl_,
    "scatter": _aten.scatter_,
    "scatter_add": _aten.scatter_add_,
    "index_add": _aten.index_add_,
    "masked_scatter": _aten.masked_scatter_,
}


class Watcher(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Track where tensors are, and while counting record launches, syncs and copies in order."""

    def __init__(self, root: Path, workspace_bytes: int = WORKSPACE_BYTES) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.places = Places(root)
        self.memory = Memory(workspace_bytes)
        self.events: list[Event] = []
        self.is_counting = False
        self.all_resident = False  # nothing was ever moved: every tensor counts as on the device
        self.is_user_factory = False  # the running factory was called by the user, who chose the device
        self.goes_to_host = False  # the running copy is an explicit one to the host
        self.has_residents = False
        self.later = Later(self.memory, self.is_on_card)
        self.by_bytes: set[str] = set()  # operators without a rule
        self.misplaced: dict[Place, int] = {}  # host tensors used as if they were on the device
        self._rules: dict[Any, Rule] = {}
        self._fresh_zeros: int | None = None  # the storage that the running gradient just made
        self._kernels: dict[Any, Kernel] = {}
        self._launches: dict[tuple[int, Place], Launch] = {}

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # Compiled functions run as written here; torch's guard against compiling this mode costs 7 µs per
        # operator.
        return False

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run the operator, then record it."""
        kwargs = kwargs or {}
        rule = self._rule(func)
        if rule.is_view:
            return self._view(func, args, kwargs)
        if self._fresh_zeros is not None:
            func, rule, args = self._in_place(func, rule, args)
        result = self._run(func, rule, args, kwargs)
        self._record(func, rule, args, kwargs, result)
        return result

    def _view(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        result = func(*args, **kwargs)
        if self.is_counting:
            self.events.append(VIEW)
            if torch._C._current_autograd_node() is None:
                self.places.note_forward(sequence_number(), self.places.here())
        return result

    def _run(self, func: Any, rule: Rule, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Put an operator off whose results stay on the card, or compute it."""
        if self.is_counting and self._stays(rule, args, kwargs):
            result = self.later.put_off(func, rule, args, kwargs)
            if result is not NOW:
                return result
        before = self.later.not_computed
        given, named = self.later.before(func, rule, args, kwargs)
        if self.later.not_computed > before and not self.is_counting:
            warnings.warn(_NOT_COMPUTED, stacklevel=3)
        result = func(*given, **named)
        return args[0] if args and result is given[0] else result

    def _stays(self, rule: Rule, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Return whether an operator runs on the card, and its results are not on the host."""
        if self.goes_to_host:
            return False
        if kwargs and kwargs.get("device") == TARGET:
            return True
        inputs = tensors_of(args)
        if not inputs:
            is_internal = self.has_residents and not self.is_user_factory
            return rule.is_factory and (self.all_resident or is_internal)
        return any(self.is_on_card(tensor) for tensor in inputs)

    def is_on_card(self, tensor: Any) -> bool:
        """Return whether a tensor's memory is the card's."""
        block = self.memory.block(tensor.untyped_storage())
        return (block is not None and block.resident) or (self.all_resident and tensor.dim() > 0)

    def _rule(self, func: Any) -> Rule:
        rule = self._rules.get(func)
        if rule is None:
            rule = self._rules[func] = Rule(func)
        return rule

    def _in_place(self, func: Any, rule: Rule, args: tuple[Any, ...]) -> tuple[Any, Rule, tuple[Any, ...]]:
        """Write into fresh zeros in place, as gradients are made where no mode like ours is looking."""
        zeros, self._fresh_zeros = self._fresh_zeros, None
        swap = _IN_PLACE.get(rule.name)
        if swap is None or args[0].untyped_storage()._cdata != zeros:
            return func, rule, args
        if rule.name == "index_put":
            args = (*args[:3], args[3] if len(args) > 3 else False, True)
        func = getattr(swap, "default" if rule.name == "index_put" else func._overloadname)
        return func, self._rule(func), args

    def _record(
        self, func: Any, rule: Rule, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any
    ) -> None:
        inputs = tensors_of(args)
        if kwargs:
            inputs += tensors_of(tuple(kwargs.values()))
        outputs = tensors_of(result if isinstance(result, tuple) else (result,))
        node = torch._C._current_autograd_node()
        place = self._place(node)
        if rule.is_transfer and self._transfer(rule, args, kwargs, outputs, place):
            return
        resident = self._is_on_device(rule, inputs, outputs, kwargs, place)
        if rule.name in _ZEROS and _is_torchs_gradient(node):
            self._fresh_zeros = outputs[0].untyped_storage()._cdata
        find = self.memory.block
        for tensor in outputs:
            storage = tensor.untyped_storage()
            if find(storage) is None:
                self._follow(storage, resident, place, is_backward=node is not None)
        if rule.is_factory and not resident and not self.is_user_factory and not has_extent(outputs):
            found = self.memory.block(outputs[0].untyped_storage())
            if found is not None:
                found.filled_by = self._launch(self._kernel(func, rule, (args, kwargs), [], outputs), place)
            return
        if self.is_counting:
            self._record_event(func, rule, (args, kwargs), inputs, outputs, resident=resident, place=place)

    def _place(self, node: Any) -> Place:
        """Return the line that called the running operator; for a gradient, the forward operator's."""
        if node is None:
            place = self.places.here(4)
            if self.is_counting:
                self.places.note_forward(sequence_number(), place)
            return place
        return self.places.of_backward(node._sequence_nr()) or self.places.here(4)

    def _is_on_device(
        self, rule: Rule, inputs: list[Any], outputs: list[Any], kwargs: dict[str, Any], place: Place
    ) -> bool:
        """Return whether an operator runs on the device: if requested, or if any of its inputs is there."""
        is_requested = kwargs.get("device") == TARGET if kwargs else False
        if not inputs:
            # Tensors that torch creates inside an operator are where the operator runs; numbers are not.
            is_internal = self.has_residents and not self.is_user_factory and rule.is_factory
            return is_requested or ((is_internal or self.all_resident) and has_extent(outputs))
        blocks = [self.memory.block(tensor.untyped_storage()) for tensor in inputs]
        here = [block is not None and block.resident for block in blocks]
        if all(here):
            return True
        # Tensors of a single number, such as an optimizer's step count, stay on the host whatever uses them.
        if not (any(here) or is_requested or (self.all_resident and has_extent(inputs))):
            return False
        for tensor, block, is_here in zip(inputs, blocks, here, strict=True):
            if block is not None and block.filled_by is not None:
                self._fill(block)
            elif not is_here and tensor.dim() > 0:
                self._adopt(tensor, block, place)
        return True

    def _fill(self, block: Block) -> None:
        """Make a number on the card: torch itself put it into a tensor, for an operator that runs there."""
        self.memory.place_on_device(block)
        if self.is_counting:
            self.events.append(block.filled_by)
        block.filled_by = None

    def _adopt(self, tensor: Any, block: Block | None, place: Place) -> None:
        """Treat a host tensor used with device tensors as a device tensor, and count that it happened."""
        if block is None:
            block = self.memory.add(tensor.untyped_storage(), resident=False, kind="other", place=UNKNOWN)
        self.memory.place_on_device(block)
        if not self.all_resident:
            self.misplaced[place] = self.misplaced.get(place, 0) + 1

    def _follow(self, storage: Any, resident: bool, place: Place, *, is_backward: bool) -> Block:
        kind = "activations" if self.is_counting and not is_backward else "other"
        self.has_residents = self.has_residents or resident
        return self.memory.add(storage, resident=resident, kind=kind, place=place)

    def settle(self, tensor: Any, place: Place, *, resident: bool = True) -> Block:
        """Set where a tensor is that no operator has shown."""
        block = self.memory.block(tensor.untyped_storage())
        if block is None:
            return self._follow(tensor.untyped_storage(), resident, place, is_backward=False)
        if resident:
            self.memory.place_on_device(block)
            self.has_residents = True
        return block

    def _transfer(
        self, rule: Rule, args: tuple[Any, ...], kwargs: dict[str, Any], outputs: list[Any], place: Place
    ) -> bool:
        """Record a copy between host and device; return whether it was one."""
        if self.all_resident:
            return False
        source = args[1] if rule.name == "copy_" else args[0]
        target = args[0] if rule.name == "copy_" else None
        if not isinstance(source, torch.Tensor):
            return False
        origin = self.memory.block(source.untyped_storage())
        from_device = origin is not None and origin.resident
        if target is None:
            to_device = kwargs.get("device") == TARGET or (from_device and not self.goes_to_host)
        else:
            end = self.memory.block(target.untyped_storage())
            to_device = end is not None and end.resident
        if from_device == to_device:
            return False
        for tensor in outputs:
            self.settle(tensor, place, resident=to_device)
        positional = args[2] if rule.name == "copy_" and len(args) > 2 else False
        non_blocking = bool(kwargs.get("non_blocking", positional))
        self.note_copy(source, "h2d" if to_device else "d2h", place, non_blocking=non_blocking)
        return True

    def note_copy(self, tensor: Any, direction: Any, place: Place, *, non_blocking: bool) -> None:
        """Record a copy over the bus; only a pinned source lets the host go on."""
        if not self.is_counting:
            return
        block = self.memory.block(tensor.untyped_storage())
        pinned = block is not None and block.pinned
        size = tensor.numel() * tensor.element_size()
        # To the host, an asynchronous copy returns before its values have arrived; a plain one waits.
        blocking = not (non_blocking and (pinned or direction == "d2h"))
        self.events.append(Copy(direction, size, pinned, blocking, place))
        if direction == "d2h" and blocking:
            self.events.append(Sync("copy to the host", place))

    def _record_event(
        self,
        func: Any,
        rule: Rule,
        given: tuple[tuple[Any, ...], dict[str, Any]],
        inputs: list[Any],
        outputs: list[Any],
        *,
        resident: bool,
        place: Place,
    ) -> None:
        if not resident:
            if rule.has_kernel:
                size = sum(tensor.numel() * tensor.element_size() for tensor in (*inputs, *outputs))
                self.events.append(HostWork(rule.name, size, place))
            return
        reads = rule.reads + (len(masks_in(given[0][1])) if rule.is_index else 0)
        for _ in range(reads):
            # The number that the host waits for comes over the bus.
            size = inputs[0].element_size() if rule.name == "_local_scalar_dense" else rule.read_bytes
            self.events += (Copy("d2h", size, True, True, place), Sync(rule.name, place))
        if rule.has_kernel:
            kernel = self._kernel(func, rule, given, inputs, outputs)
            self.later.note_flops(kernel.flops)
            if kernel.scratch_bytes:
                self.memory.touch(kernel.scratch_bytes, place)
            self.events.append(self._launch(kernel, place) if kernel.commands else VIEW)

    def _launch(self, kernel: Kernel, place: Place) -> Launch:
        key = (id(kernel), place)
        launch = self._launches.get(key)
        if launch is None:
            launch = self._launches[key] = Launch(kernel, place)
        return launch

    def _kernel(
        self,
        func: Any,
        rule: Rule,
        given: tuple[tuple[Any, ...], dict[str, Any]],
        inputs: list[Any],
        outputs: list[Any],
    ) -> Kernel:
        """Return an operator's kernel, computed once per combination of shapes: a step has few of them."""
        is_tf32 = rule.is_tf32()
        numbers = _numbers(given[0]) if rule.name in BY_ARGUMENTS else None
        laid = ((t.shape, t.stride(), t.dtype) for t in (*inputs, *outputs))
        key = (func, is_tf32, numbers, len(inputs), *laid)
        kernel = self._kernels.get(key)
        if kernel is None:
            kernel = operators.kernel_of(func, inputs, outputs, *given, is_tf32=is_tf32)
            self._kernels[key] = kernel
            if not operators.has_rule(kernel.op):
                self.by_bytes.add(kernel.op)
        return kernel


def _is_torchs_gradient(node: Any) -> bool:
    """Return whether torch computes a gradient, rather than the user or a recomputation for one."""
    is_own = isinstance(node, torch.autograd.function.BackwardCFunction)
    return node is not None and not is_own and not torch.is_grad_enabled()


def _numbers(args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return what is no tensor among arguments, as a part of a key."""
    return tuple(
        tuple(entry for entry in value if not isinstance(entry, torch.Tensor))
        if isinstance(value, (list, tuple))
        else value
        for value in args
        if not isinstance(value, torch.Tensor)
    )
