"""Comparing two variants: turns, order, interval, equal results."""

import itertools
import math

import pytest

from perfsuite.devices.scripted import ScriptedDevice
from perfsuite.errors import UnusableStep
from perfsuite.measure.pair import _alone_seconds, measure_pair
from perfsuite.measure.step import Plan

PLAN = Plan(min_seconds=0.0, max_seconds=10.0)


def compare(device, slow=0.02, fast=0.01, results=(1.0, 1.0), read=None, order=None):
    def arm(name, seconds, value):
        def run():
            device.spend(next(seconds) if isinstance(seconds, itertools.cycle) else seconds)
            if order is not None:
                order.append(name)
            return value

        return run

    return measure_pair(
        arm("A", slow, results[0]),
        arm("B", fast, results[1]),
        device,
        PLAN,
        samples_per_step=4,
        read_result=read,
    )


def test_the_speed_up_is_the_ratio_of_the_pairs():
    """Twice as fast is 2.00×, and the reading's figures are those of the faster variant."""
    reading = compare(ScriptedDevice())
    assert 2.0 == pytest.approx(reading.speedup)
    assert 4 / 0.01 == pytest.approx(reading.samples_per_s)
    assert 4 / 0.02 == pytest.approx(reading.without.samples_per_s)
    assert "comparison" == reading.kind


def test_the_order_alternates_from_pair_to_pair():
    """Neither variant always runs with warm caches."""
    order = []
    compare(ScriptedDevice(), order=order)
    text = "".join(order)
    assert "ABBAABBAABBA" in text


def test_drift_of_the_machine_hits_both_arms_alike():
    """A machine that gets ten times slower half-way does not change the ratio."""
    device = ScriptedDevice()
    drift = itertools.count()

    def arm(seconds):
        return lambda: device.spend(seconds * (1 + next(drift) / 20))

    reading = measure_pair(arm(0.03), arm(0.02), device, PLAN, samples_per_step=1)
    assert 1.5 == pytest.approx(reading.speedup, rel=0.05)


def test_noise_widens_the_interval_and_keeps_the_middle():
    """The interval contains the true ratio and shows how little is known."""
    device = ScriptedDevice()
    reading = compare(device, slow=itertools.cycle([0.02, 0.03, 0.016, 0.024, 0.02, 0.05, 0.02]))
    assert reading.speedup_low < 2.0 < reading.speedup_high or math.isclose(2.0, reading.speedup_low)
    assert 2.0 == pytest.approx(reading.speedup, rel=0.2)


def test_equal_results_are_checked_when_they_can_be_read():
    """The largest relative difference is part of the reading; unread results leave it out."""
    assert compare(ScriptedDevice()).difference is None
    same = compare(ScriptedDevice(), results=([1.0, 2.0], [1.0, 2.0]), read=lambda out: out)
    off = compare(ScriptedDevice(), results=({"loss": 2.0}, {"loss": 2.2}), read=lambda out: out["loss"])
    assert 0.0 == same.difference
    assert 0.1 == pytest.approx(off.difference)


def test_a_result_that_is_not_a_number_does_not_count_as_equal():
    """NaN agrees with nothing, not even with NaN."""
    reading = compare(ScriptedDevice(), results=(math.nan, math.nan), read=lambda out: out)
    assert math.isnan(reading.difference)


def test_results_of_different_size_are_refused():
    """Two shapes cannot be compared; the message counts both."""
    with pytest.raises(UnusableStep, match="2 and 1 numbers"):
        compare(ScriptedDevice(), results=([1.0, 2.0], [1.0]), read=lambda out: out)


def test_the_host_waits_around_every_step_of_a_pair():
    """On an accelerator no variant hides behind work the other one queued."""
    device = ScriptedDevice()
    measure_pair(
        lambda: (device.spend(0.01), device.events.append("A")),
        lambda: (device.spend(0.01), device.events.append("B")),
        device,
        Plan(0.0, 0.3),
        samples_per_step=1,
    )
    paired = device.events[: device.events.index("stop")][-6:]
    assert ["wait", paired[1], "wait", "wait", paired[4], "wait"] == paired[:6]


@pytest.mark.parametrize(
    ("is_accelerator", "asked", "alone"),
    [(False, 5.0, 0.5), (True, 1.0, 2.5), (True, 5.0, 2.5), (True, 20.0, 20.0)],
)
def test_an_arm_runs_alone_as_long_as_its_utilization_takes(is_accelerator, asked, alone):
    """A driver updates it every sixth of a second, or every second: a longer requested time is used."""
    device = ScriptedDevice()
    device.is_accelerator, device.min_seconds = is_accelerator, 5.0
    assert alone == pytest.approx(_alone_seconds(device, Plan(asked, 30.0)))


def test_pairs_are_watched():
    """A device that was throttled while the pairs ran makes the comparison worthless."""
    device = ScriptedDevice(invalid=[("hot",), (), ()], conditions={"sm_clock_mhz": 1400.0})
    reading = compare(device)
    assert (("hot",), {"sm_clock_mhz": 1400.0}) == (reading.invalid, reading.conditions)
