"""Steps in turns with references: the ratio ignores the machine's speed, and the steadiest timing judges."""

import itertools

import pytest

from perfsuite.collect.limits import SecondStage, timing_limits
from perfsuite.devices.cpu import CpuDevice, references
from perfsuite.devices.scripted import ScriptedDevice
from perfsuite.measure.references import measure_in_rounds
from perfsuite.records import Settings


def relative(speeds, step=0.02, hiccups=()):
    """Measure a step in turns with a reference of 1 ms, on a machine whose speed changes."""
    device, speed, number = ScriptedDevice(), itertools.cycle(speeds), itertools.count()
    now = {"speed": next(speed)}

    def run():
        now["speed"] = next(speed)
        device.spend(step * now["speed"] * (50 if next(number) in hiccups else 1))

    def reference():
        device.spend(0.001 * now["speed"])

    return measure_in_rounds(run, {"step_in_tiny_ops": reference}, device, 3.0)["step_in_tiny_ops"]


def test_a_step_is_told_in_rounds_of_the_reference():
    """20 ms of steps and 1 ms of reference are 20 rounds."""
    assert 20 == pytest.approx(relative([1.0]))


def test_a_machine_that_slows_down_changes_nothing():
    """Half the speed throughout, or for long stretches: the same ratio."""
    assert relative([2.0]) == pytest.approx(relative([1.0]))
    assert relative([1.0] * 30 + [2.0] * 30) == pytest.approx(20, rel=0.02)


def test_slower_code_shows_in_full():
    """10 % more work is 10 % more rounds."""
    assert 1.1 == pytest.approx(relative([1.0], step=0.022) / relative([1.0]))


def test_hiccups_are_trimmed():
    """A few steps of fifty times the length do not move it."""
    assert 20 == pytest.approx(relative([1.0], hiccups=(30, 70, 100)))


def test_the_cpu_brings_three_references():
    """Each is a metric of its own, and each can be run."""
    assert {"step_in_products", "step_in_copies", "step_in_tiny_ops"} == set(CpuDevice().references())
    for workload in references().values():
        workload()


@pytest.mark.parametrize(
    ("plain", "tiny", "expected"),
    [
        ((10, 14, 9, 13, 11), (20, 20.2, 19.8, 20.1, 19.9), "step_in_tiny_ops"),  # the machine moves
        ((10, 10.1, 9.9, 10, 10), (20, 26, 18, 25, 19), "step_time"),  # the reference does not fit
        ((10, 10.2, 9.8, 10, 10), (20, 20.35, 19.65, 20, 20), "step_time"),  # hardly better: seconds stay
    ],
)
def test_a_step_is_judged_by_seconds_unless_a_reference_is_clearly_steadier(plain, tiny, expected):
    """One timing judges, never two."""
    sessions = {"step_time": plain, "step_in_tiny_ops": tiny, "samples_per_s": plain}
    limits = timing_limits(sessions, Settings(), SecondStage(5))
    judged = [limit.metric.name for limit in limits if "step" in limit.metric.gated_kinds]
    assert [expected] == judged


def test_four_sessions_make_no_limit():
    """Their spread is a guess."""
    assert () == timing_limits({"step_time": (1, 1.1, 0.9, 1)}, Settings(), SecondStage(5))
