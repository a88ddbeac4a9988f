"""The order of windows: repeatable, and shared among processes without overlap or loss."""

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from social_xlstm.data.loader import EpochOrder
from social_xlstm.errors import InputError


def _orders(windows: int, batch_size: int, world_size: int, drop_last: bool) -> list[EpochOrder]:
    return [
        EpochOrder(windows, batch_size, True, 3, drop_last, rank, world_size) for rank in range(world_size)
    ]


@settings(max_examples=120, deadline=None)
@given(st.integers(1, 200), st.integers(1, 12), st.integers(1, 6), st.integers(0, 3))
def test_processes_share_all_windows(windows: int, batch_size: int, world_size: int, epoch: int) -> None:
    """Without drop_last every window is in one batch of one process, and all have equally many batches."""
    try:
        orders = _orders(windows, batch_size, world_size, drop_last=False)
    except InputError:
        # Only where it cannot be done: fewer windows than batches for the process that has fewest.
        assert windows // world_size < -(-windows // (batch_size * world_size))
        return
    batches = [list(order.batches(epoch)) for order in orders]
    assert {len(orders[0])} == {len(own) for own in batches}
    assert all(1 <= len(batch) <= batch_size for own in batches for batch in own)
    assert list(range(windows)) == sorted(
        np.concatenate([batch for own in batches for batch in own]).tolist()
    )


@settings(max_examples=120, deadline=None)
@given(st.integers(1, 200), st.integers(1, 12), st.integers(1, 6))
def test_dropping_the_last_keeps_shapes_constant(windows: int, batch_size: int, world_size: int) -> None:
    """With drop_last all batches are full, no window comes twice, and less than one step is left out."""
    assume(windows >= batch_size * world_size)
    orders = _orders(windows, batch_size, world_size, drop_last=True)
    batches = [batch for order in orders for batch in order.batches(0)]
    assert {batch_size} == {len(batch) for batch in batches}
    used = np.concatenate(batches).tolist()
    assert len(used) == len(set(used))
    assert windows - len(used) < batch_size * world_size


def test_a_step_of_all_processes_is_a_step_of_one() -> None:
    """Two processes with half the batch see, together, the batches of one process with the whole."""
    one = list(EpochOrder(100, 20, True, 7, True).batches(2))
    two = [list(EpochOrder(100, 10, True, 7, True, rank, 2).batches(2)) for rank in range(2)]
    for whole, *halves in zip(one, *two, strict=True):
        assert sorted(whole.tolist()) == sorted(np.concatenate(halves).tolist())


def test_epochs_and_seeds_give_their_own_order() -> None:
    """The same seed and epoch give the same order, another of either another; unshuffled is in order."""

    def first(seed: int, epoch: int, shuffle: bool = True) -> list[int]:
        return next(EpochOrder(1000, 10, shuffle, seed, True).batches(epoch)).tolist()

    assert first(1, 2) == first(1, 2)
    assert len({tuple(first(seed, epoch)) for seed in (1, 2) for epoch in (0, 1, 2)}) == 6
    assert list(range(10)) == first(1, 5, shuffle=False)


def test_an_epoch_can_be_entered_anywhere() -> None:
    """From batch k on, the rest of the epoch is the same as without the interruption."""
    order = EpochOrder(55, 10, True, 0, False)
    whole = [batch.tolist() for batch in order.batches(4)]
    for start in range(len(order) + 1):
        assert whole[start:] == [batch.tolist() for batch in order.batches(4, start)]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"windows": 5, "batch_size": 6}, "do not fill one batch"),
        ({"windows": 0, "drop_last": False}, "do not fill one batch"),
        ({"windows": 5, "batch_size": 3, "world_size": 2}, "do not fill one batch"),
        ({"windows": 1, "world_size": 2, "drop_last": False}, "cannot be shared by 2 processes"),
        ({"windows": 3, "batch_size": 1, "world_size": 2, "drop_last": False}, "cannot be shared"),
        ({"batch_size": 0}, "batch_size is 0"),
        ({"rank": 2, "world_size": 2}, "rank 2 is not one of 2"),
    ],
)
def test_what_cannot_be_shared_is_refused(arguments: dict, words: str) -> None:
    """An epoch without a batch, or with unequally many, is refused with a remedy."""
    plain = {"windows": 10, "batch_size": 2, "shuffle": True, "seed": 0, "drop_last": True}
    with pytest.raises(InputError, match=words):
        EpochOrder(**{**plain, **arguments})
