"""The device's memory as its allocator would hold it: blocks of 512 bytes, their kinds, their peak."""

import weakref
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from perfsuite.devices.code_lines import Place

KINDS = ("parameters", "gradients", "optimizer", "activations", "other")
_BLOCK_BYTES = 512


def rounded(size_bytes: int) -> int:
    """Return the bytes the CUDA allocator takes for a tensor: whole blocks, none for an empty one."""
    return -(-size_bytes // _BLOCK_BYTES) * _BLOCK_BYTES


class Block:
    """One allocation; its kind may be known only after its birth."""

    __slots__ = ("ghosts", "is_dead", "kind", "pinned", "place", "reference", "resident", "size", "stand_ins")

    def __init__(self, size: int, resident: bool, kind: str, place: Place | None) -> None:
        self.size = size
        self.resident = resident
        self.kind = kind
        self.place = place
        self.pinned = False
        self.ghosts = 0  # saved tensors of which only the shape was kept
        self.is_dead = False
        self.reference: Any = None
        self.stand_ins: list[Any] = []


@dataclass(frozen=True)
class Peak:
    """The highest point of a stretch: in all, by kind, and by the line that allocated."""

    size_bytes: int = 0
    by_kind: dict[str, int] = field(default_factory=dict)
    by_place: dict[Place, int] = field(default_factory=dict)


class Memory:
    """Follow every storage from its birth to its death."""

    def __init__(self) -> None:
        self._blocks: dict[int, Block] = {}
        self.live_bytes = 0
        self._history: list[tuple[Block, bool]] = []
        self._at_start: list[Block] = []
        self._peak = 0
        self._peak_index = 0
        self._is_open = False
        self.highest_bytes = 0

    def block(self, storage: Any) -> Block | None:
        """Return a storage's block, None for one that was never seen."""
        return self._blocks.get(storage._cdata)

    def add(self, storage: Any, *, resident: bool, kind: str, place: Place | None) -> Block:
        """Follow a new storage."""
        key = storage._cdata
        block = Block(rounded(storage.nbytes()), resident, kind, place)
        block.reference = weakref.ref(storage, lambda _: self._died(key, block))
        self._blocks[key] = block
        if resident:
            self._count(block, born=True)
        return block

    def place_on_device(self, block: Block) -> None:
        """Make a block of the host one of the device."""
        if not block.resident:
            block.resident = True
            self._count(block, born=True)

    def stand_in(self, storage: Any, block: Block) -> None:
        """Take a storage for a block whose own is gone; its life changes nothing."""
        key = storage._cdata
        self._blocks[key] = block
        block.stand_ins.append(weakref.ref(storage, lambda _: self._forget(key, block)))

    def _forget(self, key: int, block: Block) -> None:
        if self._blocks.get(key) is block:
            del self._blocks[key]

    def hold(self, block: Block) -> None:
        """Keep a block in the books though its tensor may go: somebody would have held it."""
        block.ghosts += 1

    def release(self, block: Block) -> None:
        """Let go of what was held."""
        block.ghosts -= 1
        if block.is_dead and block.ghosts == 0 and block.resident:
            self._count(block, born=False)

    def _died(self, key: int, block: Block) -> None:
        if self._blocks.get(key) is block:
            del self._blocks[key]
        block.is_dead = True
        if block.resident and block.ghosts == 0:
            self._count(block, born=False)

    def _count(self, block: Block, *, born: bool) -> None:
        self.live_bytes += block.size if born else -block.size
        self.highest_bytes = max(self.highest_bytes, self.live_bytes)
        if not self._is_open:
            return
        self._history.append((block, born))
        if self.live_bytes > self._peak:
            self._peak, self._peak_index = self.live_bytes, len(self._history)

    def open(self) -> None:
        """Begin a stretch whose peak is asked for."""
        self._history = []
        self._at_start = [block for block in self._blocks.values() if block.resident]
        self._peak = self.live_bytes
        self._peak_index = 0
        self._is_open = True

    def close(self) -> Peak:
        """End the stretch and return its peak; kinds are those known by now."""
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
