"""The pool of large tensors: which piece a tensor gets, and how large it is."""

from perfsuite.devices.model.allocator import WORKSPACE_BYTES, LargePool
from perfsuite.devices.model.memory import Memory

MIB = 2**20


def test_small_tensors_take_what_they_need():
    """They lie elsewhere: up to and with 1 MiB."""
    assert LargePool().take(MIB) is None
    assert MIB + 512 == LargePool().take(MIB + 512).size


def test_a_rest_is_cut_off_only_above_one_mib():
    """Of a segment of 20 MiB, one byte around the bound."""
    for taken, rest in ((17 * MIB, MIB), (17 * MIB - 512, 0)):
        pool = LargePool()
        assert 2 * MIB == pool.take(2 * MIB).size  # the first takes the segment
        assert taken + rest == pool.take(taken).size


def test_the_smallest_piece_that_fits_is_taken_first_of_equal_ones():
    """Neither the first in the segment nor the first that was given back."""
    pool = LargePool()
    pieces = [pool.take(size * MIB) for size in (2, 4, 2, 3, 2, 3, 2)]
    for at in (1, 5, 3):
        pool.give(pieces[at])
    taken = [pool.take(size).address for size in (7 * MIB // 2, 5 * MIB // 2)]
    assert [pieces[1].address, pieces[3].address] == taken


def test_neighbours_that_are_free_become_one():
    """A tensor fits where two smaller ones lay, whichever was given back first."""
    for order in ((0, 1, 2), (2, 1, 0), (0, 2, 1), (1, 2, 0)):
        pool = LargePool()
        pieces = [pool.take(2 * MIB) for _ in range(10)]  # a whole segment
        for at in order:
            pool.give(pieces[at])
        again = pool.take(6 * MIB)
        assert (0, 6 * MIB) == (again.address, again.size)
        assert 20 * MIB == pool.take(2 * MIB).address  # nothing was free beside it


def test_large_tensors_have_segments_in_units_of_two_mib():
    """From 10 MiB on; what is left of the last unit belongs to the tensor."""
    pool = LargePool()
    assert (10 * MIB, 12 * MIB) == (pool.take(10 * MIB).size, pool.take(11 * MIB + 512).size)
    assert 22 * MIB == pool.take(2 * MIB).address


class Storage:
    """As much of a storage as memory follows."""

    def __init__(self, size):
        self._cdata, self._size = id(self), size

    def nbytes(self):
        return self._size


def test_workspaces_lie_before_tensors_and_do_not_count():
    """Two tensors of 1.5 MiB beside cuBLAS's two: the second keeps the segment's last 0.75 MiB."""
    size = 3 * MIB // 2
    memory, kept = Memory(), [Storage(size), Storage(size)]
    assert 0 == memory.live_bytes
    memory.add(kept[0], resident=True, kind="activations", place=None)
    assert size == memory.live_bytes
    memory.add(kept[1], resident=True, kind="activations", place=None)
    left = 20 * MIB - 2 * WORKSPACE_BYTES - 2 * size
    assert (786_432, 2 * size + left) == (left, memory.live_bytes)
    del kept[1]
    assert size == memory.live_bytes
