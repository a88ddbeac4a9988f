"""What snapshots of a card add up to: throttling, clocks under load."""

import pytest

from perfsuite.devices.cuda.card import Memory
from perfsuite.devices.cuda.window_checks import Snapshot, summarise


@pytest.mark.parametrize(("thermal", "counts"), [(0.0, True), (0.2, True), (0.21, False)])
def test_a_hundredth_of_a_window_may_be_throttled(thermal, counts):
    """20 s of window: 0.2 s of throttling still count, more do not."""
    summary = summarise([], {"thermal": thermal, "power_brake": 0.0}, 20.0)
    assert counts is (summary.invalid == ())


@pytest.mark.parametrize(
    ("reasons", "expected"),
    [
        ([0x8, 0, 0x8, 0], ()),
        ([0, 0x8, 0x8, 0], ("the hardware slowed its clocks down",)),
        ([0x1, 0x2, 0x100, 0x10], ()),
        ([None, None], ()),
    ],
)
def test_a_slowdown_must_last(reasons, expected):
    """A snapshot may hit a change of clocks; idle, application and display clocks are no throttling."""
    assert expected == summarise([Snapshot(reasons=bits) for bits in reasons], {}, 2.0).invalid


def test_clocks_are_those_under_load():
    """The median of busy snapshots, at least three of them, and how far it moved."""
    snapshots = [Snapshot(sm_clock=clock, is_busy=clock > 500) for clock in (210, 1400, 1410, 1395, 210)]
    conditions = summarise(snapshots, {}, 2.0).conditions
    assert (1400, 15) == (conditions["sm_clock_mhz"], conditions["sm_clock_moved_mhz"])
    assert {} == summarise(snapshots[:3], {}, 2.0).conditions


def test_the_most_memory_is_total_minus_free():
    """NVML's own «used» is never read."""
    snapshots = [Snapshot(memory=Memory(100.0, free, None)) for free in (60.0, 30.0, 50.0)]
    assert 70.0 == summarise(snapshots, {}, 1.0).reported["device_used_bytes"]
