"""Times that cannot be are no measurement."""

import math

import pytest

from perfsuite.judge.validity import collapsed
from perfsuite.measure.step import implausible
from tests.readings import changed, make_reading

READING = make_reading(
    "step", "step", "cpu", 10, 3, 100, 1.0, (0.1,) * 10, step_seconds=0.1, samples_per_s=10.0
)


@pytest.mark.parametrize(
    ("steps", "may_repeat", "told"),
    [
        ([0.1, 0.2] * 5, False, ""),
        ([0.1] * 10, False, "exactly 0.1 s"),
        ([0.1] * 10, True, ""),
        ([0.1] * 9, False, ""),
        ([0.0] * 10, True, "no time at all"),
        ([0.0, 0.0, 0.0, 0.1], True, "no time at all"),
        ([0.1, math.nan], True, "not a number"),
        ([0.1, math.inf], True, "not a number"),
        ([0.1, -0.1], True, "not a number"),
        ([], True, "not a number"),
    ],
)
def test_zero_nan_and_constant_times_are_named(steps, may_repeat, told):
    """Each with its reason; a clock that may repeat itself is not suspected of it."""
    found = implausible(steps, may_repeat=may_repeat)
    assert bool(told) is bool(found)
    assert told in "".join(found)


@pytest.mark.parametrize(("now", "is_collapsed"), [(0.1, False), (0.006, False), (0.004, True), (1e-9, True)])
def test_a_step_twenty_times_faster_than_its_baseline_lost_its_work(now, is_collapsed):
    """An optimization is believed up to a factor; beyond it the step is asked for."""
    reading = changed(READING, step_seconds=now)
    assert is_collapsed is bool(collapsed(reading, {"step_time": 0.1}))
    assert () == collapsed(reading, {})


def test_the_direction_of_a_rate_is_known():
    """A loop's samples/s collapse upwards."""
    loop = changed(READING, kind="loop", samples_per_s=1e6)
    (told,) = collapsed(loop, {"samples_per_s": 10.0})
    assert "samples/s collapsed to 1,000,000" in told
    assert () == collapsed(changed(loop, samples_per_s=0.1), {"samples_per_s": 10.0})
