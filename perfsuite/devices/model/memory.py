"""The device's memory as the CUDA allocator would hold it: blocks of 512 bytes, their kinds, their peak."""

import gc
import weakref
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

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


class Block:
    """One allocation; its kind may become known only later."""

    __slots__ = (
        *("filled_by", "is_dead", "kind", "piece", "pinned", "place", "reference"),
        *("resident", "size"),
    )

    def __init__(self, size: int, resident: bool, kind: str, place: Place | None) -> None:
        self.size = size
        self.resident = resident
        self.kind = kind
        self.place = place
        self.piece: Piece | None = None  # of a large one
        self.pinned = False
        self.filled_by: Any = None  # the launch of a number that waits for who uses it
        self.is_dead = False
        self.reference: Any = None


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

    def forget(self, storage: Any) -> None:
        """Count a storage as freed that something outside the step still holds."""
        block = self.block(storage)
        if block is not None:
            self._died(storage._cdata, block)

    def _died(self, key: int, block: Block) -> None:
        if self._blocks.get(key) is block:
            del self._blocks[key]
        if block.resident and not block.is_dead:
            self._count(block, born=False)
        block.is_dead = True

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
