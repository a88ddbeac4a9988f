"""Where torch's caching allocator puts large tensors: a piece may be larger than the tensor in it.

Memory comes from the driver in segments, which are cut into pieces. A tensor takes the smallest free piece
that is large enough, and the rest is cut off only if it is larger than 1 MiB: otherwise it stays with the
tensor and counts as allocated. Tensors up to 1 MiB lie in other segments, where every rest is cut off.
"""

from bisect import bisect_left, insort

_LARGE = 2**20  # a larger tensor, or rest, is a large one
_SHARED_SEGMENT = 20 * 2**20  # for tensors that leave room for others
_SEGMENT_ALONE = 10 * 2**20  # from this size on a tensor gets a segment of its own,
_SEGMENT_UNIT = 2 * 2**20  # in whole units
WORKSPACE_BYTES = 4096 * 1024 * 2 + 16 * 1024 * 8  # what torch gives a handle of cuBLAS to work in
WORKSPACE_BYTES_BY_GENERATION = {"hopper": 4096 * 1024 * 8}


class Piece:
    """A part of a segment, between its neighbours."""

    __slots__ = ("address", "before", "behind", "is_free", "size")

    def __init__(self, address: int, size: int) -> None:
        self.address = address
        self.size = size
        self.is_free = True
        self.before: Piece | None = None
        self.behind: Piece | None = None

    @property
    def order(self) -> tuple[int, int]:
        """Return what free pieces are sorted by: the smallest that fits is taken, the first of equal ones."""
        return self.size, self.address


class LargePool:
    """The segments of large tensors."""

    def __init__(self) -> None:
        self._free: list[Piece] = []
        self._end = 0  # segments follow each other

    def take(self, size: int) -> Piece | None:
        """Return the piece for a tensor of that many bytes; None for a small one, which takes just those."""
        if size <= _LARGE:
            return None
        at = bisect_left(self._free, (size, 0), key=lambda piece: piece.order)
        piece = self._free.pop(at) if at < len(self._free) else self._segment(size)
        piece.is_free = False
        if piece.size - size > _LARGE:
            self._cut(piece, size)
        return piece

    def give(self, piece: Piece) -> None:
        """Take a piece back and join it with free neighbours."""
        for neighbour in (piece.before, piece.behind):
            if neighbour is not None and neighbour.is_free:
                self._free.remove(neighbour)
                piece = self._joined(*sorted((neighbour, piece), key=lambda one: one.address))
        piece.is_free = True
        insort(self._free, piece, key=lambda one: one.order)

    def _segment(self, size: int) -> Piece:
        units = -(-size // _SEGMENT_UNIT)
        piece = Piece(self._end, _SHARED_SEGMENT if size < _SEGMENT_ALONE else units * _SEGMENT_UNIT)
        self._end += piece.size
        return piece

    def _cut(self, piece: Piece, size: int) -> None:
        rest = Piece(piece.address + size, piece.size - size)
        rest.before, rest.behind = piece, piece.behind
        if rest.behind is not None:
            rest.behind.before = rest
        piece.size, piece.behind = size, rest
        insort(self._free, rest, key=lambda one: one.order)

    @staticmethod
    def _joined(first: Piece, second: Piece) -> Piece:
        first.size += second.size
        first.behind = second.behind
        if first.behind is not None:
            first.behind.before = first
        return first
