"""Collectives in a profile: how long they take, and how much of that work hides."""

import pytest

from perfsuite.devices import profiler
from perfsuite.devices.profiler import Interval
from perfsuite.devices.ranks.collectives import split, steps_of

RANGE = Interval(profiler.RANGE, 0.0, 1.0, False)


def host(name, start, end):
    return Interval(name, start, end, False)


def card(name, start, end):
    return Interval(name, start, end, True)


@pytest.mark.parametrize(
    ("collective", "expected_hidden"), [((0.1, 0.3), 1.0), ((0.3, 0.5), 0.5), ((0.5, 0.7), 0.0)]
)
def test_what_work_covers_is_hidden(collective, expected_hidden):
    """Work until 0.4 s; a collective inside, across its end, and behind it."""
    insight = split([RANGE, host("aten::mm", 0.0, 0.4), host("gloo:all_reduce", *collective)], 0.5)
    assert pytest.approx(0.1) == insight.figures["collective_seconds"]
    assert pytest.approx(expected_hidden) == insight.figures["collective_hidden_share"]
    assert pytest.approx(0.2 * (1 - expected_hidden)) == insight.clues["collective_exposed_share"]
    assert pytest.approx(1.0) == sum(insight.shares.values())


def test_a_card_is_judged_by_its_kernels_not_by_its_host():
    """NCCL's kernels are collectives; the host's operators are not work where there is a card."""
    insight = split(
        [
            RANGE,
            host("aten::mm", 0.0, 1.0),
            card("sgemm", 0.0, 0.4),
            card("ncclDevKernel_AllReduce_Sum_f32_RING_LL", 0.2, 0.8),
        ],
        1.0,
    )
    assert pytest.approx(0.6) == insight.figures["collective_seconds"]
    assert pytest.approx(0.2 / 0.6) == insight.figures["collective_hidden_share"]


def test_calls_of_collectives_are_no_work():
    """The host that waits inside c10d hides nothing."""
    insight = split([RANGE, host("c10d::allreduce_", 0.0, 1.0), host("gloo:all_reduce", 0.0, 1.0)], 1.0)
    assert 0.0 == insight.figures["collective_hidden_share"]


def test_without_collectives_there_is_no_share_of_them():
    """Nothing to hide, so no hidden share."""
    insight = split([RANGE, host("aten::mm", 0.0, 0.5)], 1.0)
    assert "collective_hidden_share" not in insight.figures
    assert 0.0 == insight.figures["collective_seconds"]


def test_several_intervals_overlap_pairwise():
    """Two collectives, each half under one of two kernels: half of it is hidden."""
    works = [host("aten::mm", 0.0, 0.2), host("aten::mm", 0.5, 0.7)]
    collectives = [host("gloo:all_reduce", 0.1, 0.3), host("gloo:all_reduce", 0.6, 0.8)]
    insight = split([RANGE, *works, *collectives], 1.0)
    assert pytest.approx(0.4) == insight.figures["collective_seconds"]
    assert pytest.approx(0.5) == insight.figures["collective_hidden_share"]


def test_the_median_of_several_ranges_counts():
    """A burst of work elsewhere makes one step wait; the profiled share is applied to the timed step."""
    intervals = []
    for number, waited in enumerate((0.2, 0.9, 0.2, 0.3, 0.2)):
        start = 2.0 * number
        intervals += [
            host(profiler.RANGE, start, start + 1.0),
            host("aten::mm", start, start + 0.1),
            host("gloo:all_reduce", start + 0.1, start + 0.1 + waited),
        ]
    insight = split(intervals, 0.01)
    assert pytest.approx(0.002) == insight.figures["collective_seconds"]
    assert pytest.approx(0.2) == insight.clues["collective_exposed_share"]


def test_what_reaches_beyond_a_range_counts_inside_of_it():
    """The profiler's events need not end where a step does."""
    insight = split([RANGE, host("gloo:all_reduce", 0.8, 1.7), host("gloo:all_reduce", 5.0, 6.0)], 1.0)
    assert pytest.approx(0.2) == insight.figures["collective_seconds"]


@pytest.mark.parametrize(
    ("step_seconds", "steps"), [(0.0, 20), (0.001, 20), (0.1, 5), (0.3, 3), (1.9, 3), (2.0, 1)]
)
def test_short_steps_are_profiled_more_often(step_seconds, steps):
    """Three steps of a millisecond would be a matter of luck."""
    assert steps == steps_of(step_seconds)


def test_of_several_profiled_steps_the_median_counts():
    """Time of another process in one of them is not time in collectives."""
    ranges = [RANGE._replace(start=float(i), end=i + 1.0) for i in range(3)]
    lengths = (0.9, 0.2, 0.1)
    collectives = [host("gloo:all_reduce", float(i), i + length) for i, length in enumerate(lengths)]
    assert pytest.approx(0.2) == split([*ranges, *collectives], 1.0).figures["collective_seconds"]
