"""Watch every torch operator of a step on real CPU tensors, and book it as a GPU would have seen it."""

import sys
from pathlib import Path
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from perfsuite.devices import operators as op_rules
from perfsuite.devices.code_lines import UNKNOWN, Place, Places
from perfsuite.devices.kernels import VIEW, Copy, Event, HostWork, Kernel, Launch, Sync
from perfsuite.devices.model.ghosts import Ghosts
from perfsuite.devices.model.memory import Block, Memory
from perfsuite.devices.op_facts import Rule, has_extent, has_mask, sequence_number, tensors_of

TARGET = torch.device("cpu", 0)  # the CPU under a name of its own: what is moved here is on the card


class Watcher(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Follow where tensors live, and while counting note launches, syncs and copies in order."""

    def __init__(self, root: Path) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.places = Places(root)
        self.memory = Memory()
        self.events: list[Event] = []
        self.is_counting = False
        self.all_resident = False  # nothing was ever moved: take every tensor to be on the device
        self.is_asked = False  # the running factory was called by the user, who said where
        self.goes_to_host = False  # the running copy was asked for by name
        self.has_residents = False
        self.ghosts = Ghosts(self.memory, sys.maxsize)  # keeps shapes only, once a step outgrows the host
        self.by_bytes: set[str] = set()  # operators without a rule
        self.strangers: dict[Place, int] = {}  # host tensors used as if they were on the device
        self._rules: dict[Any, Rule] = {}
        self._kernels: dict[Any, Kernel] = {}
        self._launches: dict[tuple[int, Place], Launch] = {}

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # Compiled functions run as written here; torch's guard against compiling us costs 7 µs an operator.
        return False

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run the operator, then book it."""
        kwargs = kwargs or {}
        rule = self._rules.get(func)
        if rule is None:
            rule = self._rules[func] = Rule(func)
        if self.ghosts.is_on and not rule.is_view and torch._C._current_autograd_node() is not None:
            result = self.ghosts.shapes.run(func, args, kwargs)
        else:
            result = func(*args, **kwargs)
        if not rule.is_view:
            self._book(func, rule, args, kwargs, result)
        elif self.is_counting:
            self.events.append(VIEW)
            if torch._C._current_autograd_node() is None:
                self.places.note_forward(sequence_number(), self.places.here())
        return result

    def _book(
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
        find = self.memory.block
        for tensor in outputs:
            storage = tensor.untyped_storage()
            if find(storage) is None:
                self._follow(storage, resident, place, is_backward=node is not None)
        if self.is_counting:
            if self.memory.live_bytes > self.ghosts.threshold_bytes:
                self.ghosts.begin()
            self._note(func, rule, args, inputs, outputs, resident=resident, place=place)

    def _place(self, node: Any) -> Place:
        """Return the line behind the running operator: for a gradient the forward operator's."""
        if node is None:
            place = self.places.here(4)
            if self.is_counting:
                self.places.note_forward(sequence_number(), place)
            return place
        return self.places.of_backward(node._sequence_nr()) or self.places.here(4)

    def _is_on_device(
        self, rule: Rule, inputs: list[Any], outputs: list[Any], kwargs: dict[str, Any], place: Place
    ) -> bool:
        """Tell where an operator runs: on the device if it is asked to, or if any of its inputs is there."""
        is_asked = kwargs.get("device") == TARGET if kwargs else False
        if not inputs:
            # What torch makes by itself inside an operator lies where the operator runs; a number does not.
            by_itself = self.has_residents and not self.is_asked and rule.is_factory and has_extent(outputs)
            return is_asked or by_itself or (self.all_resident and has_extent(outputs))
        blocks = [self.memory.block(tensor.untyped_storage()) for tensor in inputs]
        here = [block is not None and block.resident for block in blocks]
        if all(here):
            return True
        # Numbers in a tensor, such as an optimizer's step, stay on the host whoever uses them.
        if not (any(here) or is_asked or (self.all_resident and has_extent(inputs))):
            return False
        for tensor, block, is_here in zip(inputs, blocks, here, strict=True):
            if not is_here and tensor.dim() > 0:
                self._adopt(tensor, block, place)
        return True

    def _adopt(self, tensor: Any, block: Block | None, place: Place) -> None:
        """Take a host tensor among device tensors for a device tensor, and remember that it was so."""
        if block is None:
            block = self.memory.add(tensor.untyped_storage(), resident=False, kind="other", place=UNKNOWN)
        self.memory.place_on_device(block)
        if not self.all_resident:
            self.strangers[place] = self.strangers.get(place, 0) + 1

    def _follow(self, storage: Any, resident: bool, place: Place, *, is_backward: bool) -> Block:
        kind = "activations" if self.is_counting and not is_backward else "other"
        self.has_residents = self.has_residents or resident
        return self.memory.add(storage, resident=resident, kind=kind, place=place)

    def settle(self, tensor: Any, place: Place, *, resident: bool = True) -> Block:
        """Say where a tensor lives that no operator told of."""
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
        """Book a copy between host and device; tell whether it was one."""
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
        asked = kwargs.get("non_blocking", args[2] if rule.name == "copy_" and len(args) > 2 else False)
        self.note_copy(source, "h2d" if to_device else "d2h", place, non_blocking=bool(asked))
        return True

    def note_copy(self, tensor: Any, direction: Any, place: Place, *, non_blocking: bool) -> None:
        """Note bytes over the bus; only a pinned source lets the host go on."""
        if not self.is_counting:
            return
        block = self.memory.block(tensor.untyped_storage())
        pinned = block is not None and block.pinned
        size = tensor.numel() * tensor.element_size()
        # To the host, an asynchronous copy returns before its values are there; a plain one waits.
        blocking = not (non_blocking and (pinned or direction == "d2h"))
        self.events.append(Copy(direction, size, pinned, blocking, place))
        if direction == "d2h" and blocking:
            self.events.append(Sync("copy to the host", place))

    def _note(
        self,
        func: Any,
        rule: Rule,
        args: tuple[Any, ...],
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
        if rule.is_sync or (rule.is_index and has_mask(args)):
            self.events.append(Sync(rule.name, place))
        if rule.has_kernel:
            kernel = self._kernel(func, rule, args, inputs, outputs)
            key = (id(kernel), place)
            launch = self._launches.get(key)
            if launch is None:
                launch = self._launches[key] = Launch(kernel, place)
            self.events.append(launch)

    def _kernel(
        self, func: Any, rule: Rule, args: tuple[Any, ...], inputs: list[Any], outputs: list[Any]
    ) -> Kernel:
        """Cost an operator once for each combination of shapes; a step repeats few of them many times."""
        is_tf32 = rule.is_tf32()
        key = (func, is_tf32, *((t.shape, t.dtype) for t in inputs), *(t.shape for t in outputs))
        kernel = self._kernels.get(key)
        if kernel is None:
            kernel = self._kernels[key] = op_rules.kernel_of(func, inputs, outputs, args, is_tf32=is_tf32)
            if not op_rules.has_rule(kernel.op):
                self.by_bytes.add(kernel.op)
        return kernel
