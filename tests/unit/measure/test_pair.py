"""Comparing two variants: turns, order, interval, equal results."""

import itertools
import math

import pytest

from perfsuite.devices.scripted import ScriptedDevice
from perfsuite.errors import UnusableStep
from perfsuite.measure.blocks import _turn_steps
from perfsuite.measure.pair import _alone_seconds, difference, measure_pair
from perfsuite.measure.step import Plan
from perfsuite.plugin.fixture import Perf
from perfsuite.records import Insight

PLAN = Plan(min_seconds=0.0, max_seconds=10.0)


class QueueDevice(ScriptedDevice):
    """An accelerator on scripted time: the host queues work and runs ahead until it waits."""

    def __init__(self, **options):
        super().__init__(**options)
        self._busy_until = self._copied_until = 0.0

    def queue(self, seconds):
        self._busy_until = max(self._busy_until, self.now()) + seconds

    def copy_beside(self, seconds):
        """Queue a copy on a stream of its own; what is queued after it waits for it."""
        self._copied_until = max(self._copied_until, self.now()) + seconds
        self._busy_until = max(self._busy_until, self._copied_until)

    def wait(self):
        super().wait()
        self.spend(max(0.0, self._busy_until - self.now()))


def compare(device, slow=0.02, fast=0.01, order=None):
    def arm(name, seconds):
        def run():
            device.spend(next(seconds) if isinstance(seconds, itertools.cycle) else seconds)
            if order is not None:
                order.append(name)

        return run

    return measure_pair(arm("A", slow), arm("B", fast), device, PLAN, samples_per_step=4)


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
    compare(ScriptedDevice(is_accelerator=False), order=order)
    text = "".join(order)
    assert "ABBAABBAABBA" in text


def test_drift_of_the_machine_hits_both_arms_alike():
    """A machine that gets ten times slower half-way does not change the ratio."""
    device = ScriptedDevice(is_accelerator=False)
    drift = itertools.count()

    def arm(seconds):
        return lambda: device.spend(seconds * (1 + next(drift) / 20))

    reading = measure_pair(arm(0.03), arm(0.02), device, PLAN, samples_per_step=1)
    assert 1.5 == pytest.approx(reading.speedup, rel=0.05)


def test_noise_widens_the_interval_and_keeps_the_middle():
    """The interval contains the true ratio and shows how little is known."""
    device = ScriptedDevice(is_accelerator=False)
    reading = compare(device, slow=itertools.cycle([0.02, 0.03, 0.016, 0.024, 0.02, 0.05, 0.02]))
    assert reading.speedup_low < 2.0 < reading.speedup_high or math.isclose(2.0, reading.speedup_low)
    assert 2.0 == pytest.approx(reading.speedup, rel=0.2)


@pytest.mark.parametrize(
    ("results", "differs"),
    [
        (([1.0, 2.0], [1.0, 2.0]), 0.0),
        (({"loss": 2.0}, {"loss": 2.2}), 0.1),
        ((0.0, 0.5), 0.5),  # nothing to be relative to
    ],
)
def test_the_difference_is_relative_to_the_largest_value(results, differs):
    """Tensors, containers and numbers are flattened and compared one by one."""
    assert differs == pytest.approx(difference(*results, lambda result: result))


def test_a_result_that_is_not_a_number_does_not_count_as_equal():
    """NaN agrees with nothing, not even with NaN."""
    assert math.isnan(difference(math.nan, math.nan, lambda result: result))


def test_results_of_different_size_are_refused():
    """Two shapes cannot be compared; the message counts both."""
    with pytest.raises(UnusableStep, match="2 and 1 numbers"):
        difference([1.0, 2.0], [1.0], lambda result: result)


def test_results_are_compared_once_before_the_models_train_on():
    """A repetition after an invalid window keeps the difference that equal models had."""
    device = ScriptedDevice(invalid=[("hot",)])
    trained = itertools.count()

    def train():
        device.spend(0.01)
        return next(trained)

    perf = Perf(device, PLAN)
    reading = perf.compare(without=lambda: (device.spend(0.01), 0)[1], with_=train, result=lambda loss: loss)
    assert 0.0 == reading.difference
    assert "measured twice" in reading.notes[-1]


def test_on_a_host_a_turn_is_one_step():
    """A shared machine's speed changes quickly: the shorter the turns, the more alike what both meet."""
    device = ScriptedDevice(is_accelerator=False)
    measure_pair(
        lambda: (device.spend(0.01), device.events.append("A")),
        lambda: (device.spend(0.01), device.events.append("B")),
        device,
        Plan(0.0, 0.3),
        samples_per_step=1,
    )
    paired = device.events[: device.events.index("stop")][-6:]
    assert ["wait", paired[1], "wait", "wait", paired[4], "wait"] == paired[:6]


def host_work(device, host):
    return lambda: (device.spend(host), device.queue(0.004))


def reading_a_number(device):
    return lambda: (device.spend(0.002), device.queue(0.004), device.wait())


def blocking_copy(device):
    return lambda: (device.spend(0.001), device.wait(), device.spend(0.003), device.queue(0.004))


def prefetched_copy(device):
    return lambda: (device.spend(0.001), device.copy_beside(0.003), device.queue(0.004))


@pytest.mark.parametrize(
    ("without", "with_", "gain"),
    [
        (lambda d: host_work(d, 0.005), lambda d: host_work(d, 0.001), 5 / 4),  # a wait in each step: 9/5
        (reading_a_number, lambda d: host_work(d, 0.002), 6 / 4),  # a wait in each step: 6/6
        (blocking_copy, prefetched_copy, 7 / 4),  # a wait in each step: 8/8
    ],
    ids=["less host work", "no .item()", "prefetched copy"],
)
def test_an_accelerator_s_turns_gain_what_a_training_loop_gains(without, with_, gain):
    """The host runs ahead within a turn, as it does in a training: one wait at its end."""
    device = QueueDevice()
    reading = measure_pair(without(device), with_(device), device, PLAN, samples_per_step=2)
    assert gain == pytest.approx(reading.speedup, rel=0.05)
    assert 2 / 0.004 == pytest.approx(reading.samples_per_s, rel=0.05)
    assert reading.samples == 2 * reading.steps


@pytest.mark.parametrize(
    ("step_seconds", "steps"),
    [(0.0001, 2000), (0.01, 20), (0.1, 4), (0.2, 2), (0.5, 1), (10.0, 1), (0.0, 4)],
)
def test_a_turn_is_as_long_as_the_budget_allows(step_seconds, steps):
    """Short steps fill a fifth of a second; long ones have four steps while ten pairs fit into the time."""
    assert steps == _turn_steps(step_seconds, 10.0)


def test_both_variants_of_an_accelerator_are_inspected():
    """Kernels, syncs and the kernel-busy share are figures of each variant, not of the faster one alone."""
    device = ScriptedDevice(insight=Insight(figures={"kernel_busy": 0.8}, shares={"kernels": 1.0}))
    reading = compare(device)
    for variant in (reading, reading.without):
        assert (0.8, {"kernels": 1.0}) == (variant.figures["kernel_busy"], variant.shares)


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
