"""Collectives in a profile: how long, and how much of it work hides."""

import pytest

from perfsuite.devices.ranks.collectives import Seen, split, steps_of

RANGE = Seen("perfsuite collectives", 0.0, 1.0, False)


def host(name, start, end):
    return Seen(name, start, end, False)


def card(name, start, end):
    return Seen(name, start, end, True)


@pytest.mark.parametrize(
    ("collective", "expected_hidden"), [((0.1, 0.3), 1.0), ((0.3, 0.5), 0.5), ((0.5, 0.7), 0.0)]
)
def test_what_work_covers_is_hidden(collective, expected_hidden):
    """Work until 0.4 s; a collective inside, across its end, and behind it."""
    seen = split([RANGE, host("aten::mm", 0.0, 0.4), host("gloo:all_reduce", *collective)], 0.5)
    assert pytest.approx(0.1) == seen.figures["collective_seconds"]
    assert pytest.approx(expected_hidden) == seen.figures["collective_hidden_share"]
    assert pytest.approx(0.2 * (1 - expected_hidden)) == seen.clues["collective_exposed_share"]
    assert pytest.approx(1.0) == sum(seen.shares.values())


def test_a_card_is_judged_by_its_kernels_not_by_its_host():
    """NCCL's kernels are collectives, the host's operators no work where there is a card."""
    seen = split(
        [
            RANGE,
            host("aten::mm", 0.0, 1.0),
            card("sgemm", 0.0, 0.4),
            card("ncclDevKernel_AllReduce_Sum_f32_RING_LL", 0.2, 0.8),
        ],
        1.0,
    )
    assert pytest.approx(0.6) == seen.figures["collective_seconds"]
    assert pytest.approx(0.2 / 0.6) == seen.figures["collective_hidden_share"]


def test_calls_of_collectives_are_no_work():
    """The host that waits inside c10d hides nothing."""
    seen = split([RANGE, host("c10d::allreduce_", 0.0, 1.0), host("gloo:all_reduce", 0.0, 1.0)], 1.0)
    assert 0.0 == seen.figures["collective_hidden_share"]


def test_without_collectives_there_is_no_share_of_them():
    """None of them is hidden, and none is not."""
    seen = split([RANGE, host("aten::mm", 0.0, 0.5)], 1.0)
    assert "collective_hidden_share" not in seen.figures
    assert 0.0 == seen.figures["collective_seconds"]


def test_several_stretches_are_held_against_each_other():
    """Two collectives, each half under one of two kernels: half of it is hidden."""
    works = [host("aten::mm", 0.0, 0.2), host("aten::mm", 0.5, 0.7)]
    collectives = [host("gloo:all_reduce", 0.1, 0.3), host("gloo:all_reduce", 0.6, 0.8)]
    seen = split([RANGE, *works, *collectives], 1.0)
    assert pytest.approx(0.4) == seen.figures["collective_seconds"]
    assert pytest.approx(0.5) == seen.figures["collective_hidden_share"]


def test_the_middle_of_several_stretches_counts():
    """A burst of work elsewhere makes one step wait; what is profiled is told of the timed step."""
    seen = []
    for number, waited in enumerate((0.2, 0.9, 0.2, 0.3, 0.2)):
        start = 2.0 * number
        seen += [
            host("perfsuite collectives", start, start + 1.0),
            host("aten::mm", start, start + 0.1),
            host("gloo:all_reduce", start + 0.1, start + 0.1 + waited),
        ]
    found = split(seen, 0.01)
    assert pytest.approx(0.002) == found.figures["collective_seconds"]
    assert pytest.approx(0.2) == found.clues["collective_exposed_share"]


def test_what_reaches_beyond_a_stretch_counts_inside_of_it():
    """The profiler's events need not end where a step does."""
    found = split([RANGE, host("gloo:all_reduce", 0.8, 1.7), host("gloo:all_reduce", 5.0, 6.0)], 1.0)
    assert pytest.approx(0.2) == found.figures["collective_seconds"]


@pytest.mark.parametrize(
    ("step_seconds", "steps"), [(0.0, 20), (0.001, 20), (0.1, 5), (0.3, 3), (1.9, 3), (2.0, 1)]
)
def test_short_steps_are_looked_at_more_often(step_seconds, steps):
    """Three of a millisecond are a matter of luck."""
    assert steps == steps_of(step_seconds)


def test_of_several_profiled_steps_the_middle_one_counts():
    """Another process's turn in one of them is no time in collectives."""
    ranges = [RANGE._replace(start=float(i), end=i + 1.0) for i in range(3)]
    lengths = (0.9, 0.2, 0.1)
    collectives = [host("gloo:all_reduce", float(i), i + length) for i, length in enumerate(lengths)]
    assert pytest.approx(0.2) == split([*ranges, *collectives], 1.0).figures["collective_seconds"]
