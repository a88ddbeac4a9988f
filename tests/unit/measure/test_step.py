"""Measuring with scripted time: order of events, samples, data wait, when to stop."""

import gc
import itertools
from dataclasses import replace
from random import Random
from types import SimpleNamespace

import pytest

from perfsuite.devices.scripted import ScriptedDevice, ScriptedWindow
from perfsuite.errors import UnusableStep
from perfsuite.measure.loop import measure_loop
from perfsuite.measure.step import Plan, measure_step

BRIEF = Plan(min_seconds=0.0, max_seconds=10.0)


def test_the_clock_starts_after_warm_up_and_nothing_waits_between_steps():
    """Warm-up steps are waited for one by one; measured steps only marked, and one stop at the end."""
    device = ScriptedDevice()

    def step():
        device.spend(1.0)
        device.events.append("step")

    measure_step(step, device, Plan(0.0, 100.0, min_steps=8), 1)
    warm = ["step", "wait"] * 4
    assert warm + ["start"] + ["step", "mark"] * 8 + ["stop"] == device.events


def test_samples_per_second_are_of_the_whole_time_and_step_time_is_the_median():
    """One slow step in ten shows in samples/s and not in the step time."""
    device = ScriptedDevice()
    durations = itertools.chain([0.01] * 10, itertools.cycle([0.01] * 9 + [0.11]))
    reading = measure_step(lambda: device.spend(next(durations)), device, Plan(2.0, 2.0), 64)
    assert 64 / 0.02 == pytest.approx(reading.samples_per_s, rel=0.01)
    assert 0.01 == pytest.approx(reading.step_seconds)
    assert len(reading.rounds) == reading.steps
    assert reading.steps * 64 == reading.samples


def test_steady_steps_stop_early_and_noisy_ones_use_the_budget():
    """The figure's own error decides how many steps are enough."""
    steady, noisy = ScriptedDevice(), ScriptedDevice()
    random = Random(1)
    quick = measure_step(lambda: steady.spend(0.01), steady, BRIEF, 1)
    long = measure_step(lambda: noisy.spend(random.lognormvariate(-5, 2)), noisy, BRIEF, 1)
    assert quick.wall_seconds < 1
    assert long.wall_seconds >= 10


def test_the_minimum_time_is_kept():
    """Steady or not, a window is at least as long as planned."""
    device = ScriptedDevice()
    assert 3.0 <= measure_step(lambda: device.spend(0.01), device, Plan(3.0, 10.0), 1).wall_seconds < 3.5


def test_a_step_slower_than_the_budget_is_measured_once():
    """One step is better than none."""
    device = ScriptedDevice()
    assert 1 == measure_step(lambda: device.spend(100.0), device, BRIEF, 1).steps


class AheadDevice(ScriptedDevice):
    """A device whose host only submits: a step takes it `host` seconds, and the device `seconds`."""

    def __init__(self, host, seconds, **settings):
        super().__init__(**settings)
        self.host, self.seconds, self.finishes = host, seconds, 0.0

    def step(self):
        self.spend(self.host)
        self.finishes = max(self.finishes, self.now()) + self.seconds

    def wait(self):
        self.spend(max(self.finishes - self.now(), 0.0))

    def start(self):
        return AheadWindow(self)


class AheadWindow(ScriptedWindow):
    """Knows a step once the device has finished it."""

    def __init__(self, device):
        super().__init__(device, {}, (), (), {})

    def mark(self):
        self._marks.append(self._device.finishes)

    def known(self):
        done = [mark for mark in self._marks if mark <= self._device.now()]
        return [after - before for before, after in itertools.pairwise(done)]

    def stop(self):
        self._device.wait()
        return super().stop()


@pytest.mark.parametrize("host", [1e-6, 1e-4, 0.01, 0.2])
def test_the_time_of_a_window_is_the_devices_not_the_hosts(host):
    """A host that queues steps of 50 ms within microseconds must not queue 10 s of submitting them."""
    device = AheadDevice(host, 0.05)
    reading = measure_step(device.step, device, Plan(2.0, 2.0), 1)
    slower = max(host, 0.05)
    assert 2.0 == pytest.approx(reading.steps * slower, rel=0.15)


def test_a_device_faster_than_in_its_warm_up_gets_its_whole_time():
    """Waiting for each step made the warm-up slow; what the device has finished corrects the expectation."""
    device = AheadDevice(1e-3, 1e-4)
    assert 2.0 <= measure_step(device.step, device, Plan(2.0, 2.0), 1).wall_seconds < 2.1


@pytest.mark.parametrize(("needs", "seconds"), [(False, 1.0), (True, 6.0)])
def test_a_limit_on_utilization_makes_the_window_long_enough(needs, seconds):
    """The device knows after the warm-up how long that is; without such a limit nobody waits for it."""
    device = ScriptedDevice()
    device.utilization_seconds = lambda: 6.0
    plan = Plan(1.0, 2.0, needs_utilization=needs)
    wall = measure_step(lambda: device.spend(0.01), device, plan, 1).wall_seconds
    assert seconds <= wall < seconds + 0.2


class Loader:
    """Hand out batches of 8 on a scripted clock; the first ones after a pause cost no waiting."""

    def __init__(self, device, wait, epoch=50, workers=0, ahead=0):
        self.device, self.wait, self.epoch = device, wait, epoch
        self.num_workers, self.prefetch_factor = workers, ahead or None

    def __iter__(self):
        for _ in range(self.epoch):
            self.device.spend(self.wait)
            yield {"x": [1] * 3, "n": Tensor(8)}


class Tensor:
    def __init__(self, length):
        self.shape = (length, 2)


def test_the_time_blocked_in_the_loader_is_accounted_apart():
    """3 ms of waiting before 1 ms of work are 75 % data wait, over as many epochs as it takes."""
    device = ScriptedDevice()
    reading = measure_loop(
        Loader(device, 0.003), lambda batch: device.spend(0.001), device, BRIEF, samples=None
    )
    assert 0.75 == pytest.approx(reading.data_wait)
    assert 8 / 0.004 == pytest.approx(reading.samples_per_s)


def test_prefetched_batches_are_not_measured():
    """Behind 3 workers × 4 batches, 12 batches are taken before the clock starts, and 60 measured."""
    device = ScriptedDevice()
    steps = []
    reading = measure_loop(
        Loader(device, 0.001, workers=3, ahead=4),
        lambda batch: (device.spend(0.001), steps.append(len(device.events)), device.events.append("step")),
        device,
        BRIEF,
        samples=8,
    )
    before = device.events[: device.events.index("start")].count("step")
    assert reading.warmup_steps + 12 == before
    assert reading.steps >= 60


class Failing(ScriptedDevice):
    """A device whose looks into a step fail."""

    def inspect(self, step, step_seconds, resident=None):
        raise RuntimeError("illegal memory access\nCompile with TORCH_USE_CUDA_DSA")

    def counted(self, step):
        raise StopIteration


def test_a_failed_inspection_is_a_note_and_costs_no_finished_measurement():
    """Neither of a step nor of a loop; whatever was raised."""
    device = Failing()
    for reading in (
        measure_step(lambda: device.spend(0.01), device, BRIEF, 8),
        measure_loop(Loader(device, 0.001), lambda batch: device.spend(0.009), device, BRIEF, samples=8),
    ):
        assert 0.01 == pytest.approx(reading.step_seconds)
        assert reading.notes == (
            "inspection: failed after the measurement, RuntimeError: illegal memory access",
            "counts: failed after the measurement, StopIteration",
        )


def test_a_rank_whose_inspection_fails_does_not_go_on_alone():
    """The others would wait for it in their next collective."""
    device = Failing()
    plan = replace(BRIEF, together=SimpleNamespace(size=2, first=lambda flag: flag))
    with pytest.raises(RuntimeError, match="illegal memory access"):
        measure_step(lambda: device.spend(0.01), device, plan, 8)


def test_an_empty_loader_is_refused():
    """Nothing to measure is an error that says so."""
    device = ScriptedDevice()
    with pytest.raises(UnusableStep, match="gave no batch"):
        measure_loop([], lambda batch: None, device, BRIEF, samples=1)


def test_an_iterator_that_ends_is_refused():
    """A generator cannot be restarted; the message says to pass the loader."""
    device = ScriptedDevice()
    batches = iter([1, 2, 3])
    with pytest.raises(UnusableStep, match="not an iterator"):
        measure_loop(batches, lambda batch: device.spend(1.0), device, BRIEF, samples=1)


def test_tiny_steps_end_before_their_marks_fill_the_memory():
    """200,000 steps are enough, however short."""
    device = ScriptedDevice()
    assert 200_000 == measure_step(lambda: device.spend(1e-9), device, Plan(1.0, 10.0), 1).steps


def test_a_batch_of_unknown_size_is_refused():
    """Where samples cannot be counted, the remedy is named."""
    device = ScriptedDevice()
    with pytest.raises(UnusableStep, match="samples_per_step"):
        measure_loop([object()], lambda batch: None, device, BRIEF, samples=None)


class Number:
    """A count as an array library gives it."""

    def __init__(self, value):
        self.value = value

    def __int__(self):
        return int(self.value)

    def __eq__(self, other):
        return self.value == other

    __hash__ = None


@pytest.mark.parametrize("counted", [8, 8.0, Number(8), Number(8.0)])
def test_samples_may_be_counted_by_a_function(counted):
    """Any integer type is accepted; the reading has an int."""
    device = ScriptedDevice()
    reading = measure_loop(
        Loader(device, 0.0), lambda batch: device.spend(1.0), device, BRIEF, samples=lambda _: counted
    )
    assert int is type(reading.samples)
    assert 8.0 == reading.samples_per_s


@pytest.mark.parametrize("counted", [0.5, -1, "8", None, float("nan"), Number(2.5)])
def test_a_function_that_counts_no_samples_is_refused(counted):
    """With what it returned."""
    device = ScriptedDevice()
    with pytest.raises(UnusableStep, match="must return a whole number of samples, got"):
        measure_loop(
            Loader(device, 0.0), lambda batch: device.spend(1.0), device, BRIEF, samples=lambda _: counted
        )


def test_a_loop_without_a_single_sample_is_refused():
    """Without samples there is no rate."""
    device = ScriptedDevice()
    with pytest.raises(UnusableStep, match="counted no sample in"):
        measure_loop(Loader(device, 0.0), lambda batch: device.spend(1.0), device, BRIEF, samples=lambda _: 0)


def test_garbage_collection_is_quiet_while_measuring_and_back_after_an_error():
    """The collector is off inside, on after, whatever happens."""
    device = ScriptedDevice()
    enabled = []

    def step():
        enabled.append(gc.isenabled())
        device.spend(0.1)
        if len(enabled) == 15:
            raise RuntimeError("step failed")

    with pytest.raises(RuntimeError, match="step failed"):
        measure_step(step, device, BRIEF, 1)
    assert {False} == set(enabled)
    assert gc.isenabled()


def test_progress_is_reported_by_phase():
    """Progress reports warm-up and measuring with the number of steps."""
    device = ScriptedDevice()
    reports = []
    measure_step(
        lambda: device.spend(0.01), device, Plan(0.0, 1.0, progress=lambda *report: reports.append(report)), 1
    )
    assert ("warm-up", 0, 0.0) == reports[0]
    assert "measuring" == reports[-1][0]
