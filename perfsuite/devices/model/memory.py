"""The device's memory as the CUDA allocator would hold it: blocks of 512 bytes, their kinds, their peak."""

import gc
import weakref
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.nn import Parameter
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from perfsuite.devices.code_lines import Place
from perfsuite.devices.model.allocator import WORKSPACE_BYTES, LargePool, Piece
from perfsuite.devices.work import rounded

_CUBLAS_THREADS = 2  # the user's and autograd's have a workspace each, taken before a test as on a card
KINDS = ("parameters", "gradients", "optimizer", "activations", "other")
_Description = tuple[Any, ...]


class Block:
    """One allocation; its kind may become known only later."""

    __slots__ = (
        *("filled_by", "saved_shapes", "is_dead", "kind", "piece", "pinned", "place", "reference"),
        *("resident", "size", "stand_ins"),
    )

    def __init__(self, size: int, resident: bool, kind: str, place: Place | None) -> None:
        self.size = size
        self.resident = resident
        self.kind = kind
        self.place = place
        self.piece: Piece | None = None  # of a large one
        self.pinned = False
        self.filled_by: Any = None  # the launch of a number that waits for who uses it
        self.saved_shapes = 0  # tensors saved for backward of which only the shape was kept
        self.is_dead = False
        self.reference: Any = None
        self.stand_ins: list[Any] = []


@dataclass(frozen=True)
class Peak:
    """The peak of a window: in total, by kind, and by the line that allocated."""

    size_bytes: int = 0
    by_kind: dict[str, int] = field(default_factory=dict)
    by_place: dict[Place, int] = field(default_factory=dict)


class Memory:
    """Track every storage from its allocation until it is freed."""

    def __init__(self, workspace_bytes: int = WORKSPACE_BYTES) -> None:
        self._blocks: dict[int, Block] = {}
        self._pool = LargePool()
        for _ in range(_CUBLAS_THREADS):
            self._pool.take(workspace_bytes)  # not counted, but it takes the room of large tensors
        self.live_bytes = 0
        self._history: list[tuple[Block, bool]] = []
        self._at_start: list[Block] = []
        self._peak = 0
        self._peak_index = 0
        self._is_open = False
        self.highest_bytes = 0

    def block(self, storage: Any) -> Block | None:
        """Return a storage's block, None for an unknown storage."""
        return self._blocks.get(storage._cdata)

    def add(self, storage: Any, *, resident: bool, kind: str, place: Place | None) -> Block:
        """Track a new storage."""
        key = storage._cdata
        block = Block(rounded(storage.nbytes()), resident, kind, place)
        block.reference = weakref.ref(storage, lambda _: self._died(key, block))
        self._blocks[key] = block
        if resident:
            self._count(block, born=True)
        return block

    def place_on_device(self, block: Block) -> None:
        """Move a host block to the device."""
        if not block.resident:
            block.resident = True
            self._count(block, born=True)

    def touch(self, size_bytes: int, place: Place) -> None:
        """Take memory and return it at once, as an operator does that needs it while it runs."""
        block = Block(size_bytes, True, "other", place)
        self._count(block, born=True)
        self._count(block, born=False)

    def stand_in(self, storage: Any, block: Block) -> None:
        """Let a storage stand for a block whose storage is gone; freeing it changes nothing."""
        key = storage._cdata
        self._blocks[key] = block
        block.stand_ins.append(weakref.ref(storage, lambda _: self._forget(key, block)))

    def _forget(self, key: int, block: Block) -> None:
        if self._blocks.get(key) is block:
            del self._blocks[key]

    def hold(self, block: Block) -> None:
        """Keep counting a block though its tensor may be freed: on a real card it would be held."""
        block.saved_shapes += 1

    def release(self, block: Block) -> None:
        """Undo one `hold`."""
        block.saved_shapes -= 1
        if block.is_dead and block.saved_shapes == 0 and block.resident:
            self._count(block, born=False)

    def _died(self, key: int, block: Block) -> None:
        if self._blocks.get(key) is block:
            del self._blocks[key]
        block.is_dead = True
        if block.resident and block.saved_shapes == 0:
            self._count(block, born=False)

    def _count(self, block: Block, *, born: bool) -> None:
        if born:
            block.piece = self._pool.take(block.size)
            block.size = block.size if block.piece is None else block.piece.size
        elif block.piece is not None:
            self._pool.give(block.piece)
        self.live_bytes += block.size if born else -block.size
        self.highest_bytes = max(self.highest_bytes, self.live_bytes)
        if not self._is_open:
            return
        self._history.append((block, born))
        if self.live_bytes > self._peak:
            self._peak, self._peak_index = self.live_bytes, len(self._history)

    def open(self) -> None:
        """Start recording a peak."""
        self._history = []
        self._at_start = [block for block in self._blocks.values() if block.resident]
        self._peak = self.live_bytes
        self._peak_index = 0
        self._is_open = True

    def close(self) -> Peak:
        """Stop recording and return the peak; kinds are those known by now."""
        self._is_open = False
        alive: Counter[Block] = Counter(self._at_start)
        for block, born in self._history[: self._peak_index]:
            alive[block] += 1 if born else -1
        by_kind: Counter[str] = Counter(dict.fromkeys(KINDS, 0))
        by_place: Counter[Place] = Counter()
        for block, count in alive.items():
            if count > 0:
                by_kind[block.kind] += block.size
                if block.place is not None:
                    by_place[block.place] += block.size
        self._history = []
        self._at_start = []
        return Peak(self._peak, dict(by_kind), dict(by_place))


@contextmanager
def watch_optimizers(memory: Memory) -> Iterator[None]:
    """Set the kind of gradients before and of the state after every optimizer step."""

    def before(optimizer: Any, _args: Any, _kwargs: Any) -> None:
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                _set_kind(memory, parameter, "parameters")
                _set_kind(memory, parameter.grad, "gradients")

    def after(optimizer: Any, _args: Any, _kwargs: Any) -> None:
        for state in optimizer.state.values():
            for value in state.values():
                _set_kind(memory, value, "optimizer")

    hooks = [register_optimizer_step_pre_hook(before), register_optimizer_step_post_hook(after)]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def find_parameters(memory: Memory) -> list[Any]:
    """Find all parameters on the device; a model without an optimizer has some too."""
    parameters = [item for item in gc.get_objects() if type(item) is Parameter]
    return [parameter for parameter in parameters if _set_kind(memory, parameter, "parameters")]


def classify_gradients(memory: Memory, parameters: list[Any]) -> None:
    """Set the kind of the gradients that a step leaves behind."""
    for parameter in parameters:
        _set_kind(memory, parameter.grad, "gradients")


def _set_kind(memory: Memory, tensor: Any, kind: str) -> bool:
    if tensor is None or not hasattr(tensor, "untyped_storage"):
        return False
    block = memory.block(tensor.untyped_storage())
    if block is not None:
        block.kind = kind
    return block is not None


class ShapesOnly:
    """Remember the shape of an operator's result and return uninitialized memory of it the next time."""

    def __init__(self) -> None:
        self._known: dict[Any, list[_Description] | None] = {}

    def run(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Return the operator's result, or memory of that shape."""
        if func._schema.is_mutable:
            return self._in_place(func, args, kwargs)
        key = (func, *map(_described, args), *((name, _described(value)) for name, value in kwargs.items()))
        if key in self._known:
            known = self._known[key]
            return func(*args, **kwargs) if known is None else _empty_result(known)
        result = func(*args, **kwargs)
        self._known[key] = _outcome(result)
        return result

    def _in_place(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Return the tensor unchanged if it is all that the operator returns."""
        is_plain = func.overloadpacket.__name__.endswith("_") and len(func._schema.returns) == 1
        return args[0] if is_plain and isinstance(args[0], torch.Tensor) else func(*args, **kwargs)


def _described(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return (value.shape, value.stride(), value.dtype, value.requires_grad)
    return tuple(map(_described, value)) if isinstance(value, list | tuple) else value


def _outcome(result: Any) -> list[_Description] | None:
    """Describe a result that consists of tensors; None for any other."""
    if isinstance(result, torch.Tensor):
        return [(result.shape, result.stride(), result.dtype)]
    if not isinstance(result, tuple) or not all(
        part is None or isinstance(part, torch.Tensor) for part in result
    ):
        return None
    return [() if part is None else (part.shape, part.stride(), part.dtype) for part in result] + [("tuple",)]


def _empty_result(known: list[_Description]) -> Any:
    parts = [
        torch.empty_strided(entry[0], entry[1], dtype=entry[2]) if len(entry) == 3 else None
        for entry in known
    ]
    return tuple(parts[:-1]) if known[-1] == ("tuple",) else parts[0]


class SavedShape:
    """A tensor saved for backward of which only shape, stride and type were kept."""

    __slots__ = ("_block", "_memory", "dtype", "shape", "stride")

    def __init__(self, tensor: Any, block: Block, memory: Memory) -> None:
        self.shape, self.stride, self.dtype = tensor.shape, tensor.stride(), tensor.dtype
        self._block, self._memory = block, memory
        memory.hold(block)

    def stand_in(self) -> Any:
        """Return memory of the same shape, counted as the block it stands for."""
        with torch._C._DisableTorchDispatch():  # this allocation is not the step's
            tensor = torch.empty_strided(self.shape, self.stride, dtype=self.dtype)
            if not tensor.is_floating_point():
                tensor.zero_()  # uninitialized values used as an index could point anywhere
        self._memory.stand_in(tensor.untyped_storage(), self._block)
        return tensor

    def __del__(self) -> None:
        self._memory.release(self._block)


class ShapeSaver:
    """Replace the tensors that autograd saves by their shapes, once a step holds more than a budget."""

    def __init__(self, memory: Memory, budget_bytes: int) -> None:
        self._memory = memory
        self.threshold_bytes = memory.live_bytes + budget_bytes
        self.is_on = False
        self.count = 0
        self.shapes = ShapesOnly()

    def begin(self) -> None:
        """Keep only shapes from here to the end of the step."""
        if not self.is_on:
            torch._C._autograd._push_saved_tensors_default_hooks(self._pack, self._unpack)
            self.is_on = True

    def end(self) -> None:
        """Save whole tensors again."""
        if self.is_on:
            torch._C._autograd._pop_saved_tensors_default_hooks()
            self.is_on = False

    def _pack(self, tensor: Any) -> Any:
        block = self._memory.block(tensor.untyped_storage())
        # Weights and inputs stay alive anyway and cost nothing to keep.
        if block is None or block.kind != "activations":
            return tensor
        self.count += 1
        return SavedShape(tensor, block, self._memory)

    def _unpack(self, saved: Any) -> Any:
        return saved.stand_in() if isinstance(saved, SavedShape) else saved
