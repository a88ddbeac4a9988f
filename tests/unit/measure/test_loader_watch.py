"""Clues about a loader: its settings, the cost of a sample, a slow sample, its workers' CPU time."""

import pytest
from torch.utils.data import DataLoader

from perfsuite import host
from perfsuite.devices.scripted import ScriptedDevice
from perfsuite.measure import loader_watch
from perfsuite.measure.loader_watch import LoaderWatch, sample_clues, shallow_copy
from perfsuite.measure.loop import Feed, measure_loop
from perfsuite.measure.step import Plan
from tests.unit.scripted_clock import Clock


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(loader_watch, "time", clock)
    monkeypatch.setattr(host, "time", clock)
    monkeypatch.setattr(host, "queued_seconds", lambda: clock.queued)
    return clock


class Samples:
    """Each sample takes 1 ms, half of it computing; a slow one a second."""

    def __init__(self, clock, slow=None, once=()):
        self._clock, self._slow, self._once = clock, slow, set(once)

    def __len__(self):
        return 64

    def __getitem__(self, index):
        is_slow = index == self._slow or index in self._once
        self._once.discard(index)
        self._clock.wall += 1.0 if is_slow else 0.001
        self._clock.cpu += 0.0005
        return 0.0


def clues(data):
    return sample_clues(DataLoader(data, batch_size=8, collate_fn=list))


def test_samples_are_timed_here_where_no_worker_hides_them(clock):
    """What a batch costs one process, and how much of it is computing."""
    timed = clues(Samples(clock))
    assert pytest.approx(0.008) == timed["batch_seconds"]
    assert pytest.approx(0.5) == timed["sample_cpu_share"]
    assert 64 == timed["samples_timed"]
    assert pytest.approx(1 / 64) == timed["slowest_sample_share"]


def test_a_sample_that_is_slow_again_is_slow_and_one_that_is_not_was_disturbed(clock):
    """A disturbance by another process must not look like a slow sample."""
    assert clues(Samples(clock, slow=5))["slowest_sample_share"] > 0.9
    assert clues(Samples(clock, once={5}))["slowest_sample_share"] < 0.2
    assert clues(Samples(clock, once={1, 5, 7}))["slowest_sample_share"] < 0.2
    assert clues(Samples(clock, slow=6, once={1, 5}))["slowest_sample_share"] > 0.9


def test_time_without_a_core_is_not_taken_for_a_wait(clock):
    """On a busy machine computing takes longer, but it is still computing."""

    class Crowded(Samples):
        def __getitem__(self, index):
            clock.wall += 0.004
            clock.queued += 0.004
            return super().__getitem__(index)

    assert pytest.approx(0.5) == clues(Crowded(clock))["sample_cpu_share"]


def test_what_the_look_itself_takes_is_not_taken_for_a_wait(clock, monkeypatch):
    """Reading the system's counters takes longer than a short sample."""

    def asked():
        clock.wall += 0.1
        return 0.0

    monkeypatch.setattr(host, "queued_seconds", asked)
    assert pytest.approx(0.5) == clues(Samples(clock))["sample_cpu_share"]


def test_a_plain_iterable_has_no_samples_to_time():
    """Nor is anything claimed of them."""
    assert {} == sample_clues([1, 2, 3])
    assert {} == sample_clues(DataLoader([], batch_size=8))


def test_waits_for_the_first_batches_of_epochs_are_told_apart():
    """Two epochs of four: three quarters of the wait falls on their starts."""
    device = ScriptedDevice()

    class Loader:
        num_workers = 0

        def __len__(self):
            return 4

        def __iter__(self):
            for number in range(4):
                device.spend(0.9 if number == 0 else 0.1)
                yield [number]

    loader = Loader()
    feed = Feed(loader, device.now, len)
    for _ in range(8):
        feed.next()
    waits = LoaderWatch(loader).clues(feed, 2.4)
    assert (2.0, 4.0) == (waits["epochs"], waits["epoch_steps"])
    assert pytest.approx(0.75) == waits["epoch_wait_share"]
    assert pytest.approx(1.2) == waits["epoch_seconds"]


def test_a_step_that_takes_its_batch_apart_can_be_given_it_again():
    """Removing a key changes the copy, not the batch."""
    batch = {"a": 1}
    shallow_copy(batch).pop("a")
    assert {"a": 1} == batch


@pytest.mark.parametrize(("refuses", "clue"), [(False, "resident_step_seconds"), (True, "resident_refusal")])
def test_a_starved_loop_is_run_again_on_one_batch(refuses, clue):
    """The time of the rerun is the proof; a step that raises on the same batch leaves the reason instead."""
    device = ScriptedDevice()
    seen = set()

    class Loader:
        def __iter__(self):
            for _ in range(1000):
                device.spend(0.03)
                yield (object(),)

    def step(batch):
        device.spend(0.01)
        if refuses and id(batch[0]) in seen:
            raise KeyError("used up")
        if refuses:
            seen.add(id(batch[0]))
            kept.append(batch)

    kept = []
    reading = measure_loop(Loader(), step, device, Plan(0.4, 4.0), samples=1)
    assert clue in reading.clues
    if not refuses:
        assert pytest.approx(0.01) == reading.clues[clue]


def test_a_loop_that_does_not_wait_is_not_run_again():
    """Without a suspicion no time is spent on a rerun."""
    device = ScriptedDevice()

    class Loader:
        def __iter__(self):
            return iter([[0]] * 1000)

    reading = measure_loop(Loader(), lambda batch: device.spend(0.01), device, Plan(0.4, 4.0), samples=1)
    assert "resident_step_seconds" not in reading.clues
