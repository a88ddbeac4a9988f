"""A loop run by a framework: warm-up, skipped batches, window, end; on scripted time."""

import pytest

from perfsuite.devices.scripted import ScriptedDevice
from perfsuite.errors import UnusableStep
from perfsuite.measure.recorder import Recorder
from perfsuite.measure.step import Plan


class Loader:
    num_workers, prefetch_factor = 2, 2

    def __len__(self):
        return 1000


def train(recorder, device, steps, *, wait=0.03, step=0.01):
    """Run steps as a framework would."""
    recorder.begin_epoch()
    recorder.request_batch()
    for _ in range(steps):
        device.spend(wait)
        recorder.receive_batch([0] * 4)
        device.spend(step)
        recorder.step_done()
        if recorder.is_done:
            return


def recorder_of(device, kept, **plan):
    return Recorder(device, Plan(**{"min_seconds": 0.4, "max_seconds": 4.0, **plan}), kept.append, len)


def test_samples_steps_and_the_wait_for_data_are_counted():
    """Three quarters of the time go into waiting."""
    device, kept = ScriptedDevice(), []
    recorder = recorder_of(device, kept)
    recorder.begin(Loader())
    train(recorder, device, 1000)
    (reading,) = kept
    assert "loop" == reading.kind
    assert pytest.approx(0.75) == reading.data_wait
    assert pytest.approx(0.04) == reading.step_seconds
    assert 4 * reading.steps == reading.samples
    assert {"data_wait": pytest.approx(0.75), "other": pytest.approx(0.25)} == reading.shares


def test_batches_that_lie_ready_are_skipped_and_the_window_is_long_enough():
    """Two workers with two batches each: four batches are skipped, and five times as many measured."""
    device, kept = ScriptedDevice(), []
    recorder = recorder_of(device, kept, min_seconds=0.0)
    recorder.begin(Loader())
    train(recorder, device, 1000)
    (reading,) = kept
    steps_before = device.events.index("start") - device.events.count("wait") + 1
    assert reading.warmup_steps == 10
    assert reading.steps >= 20
    assert steps_before >= 0


def test_a_training_that_ends_early_is_kept_if_it_was_measured():
    """A short window still counts; none at all is an error that says what to do."""
    device, kept = ScriptedDevice(), []
    recorder = recorder_of(device, kept, min_seconds=100, max_seconds=100)
    recorder.begin(object())
    train(recorder, device, 30)
    assert [] == kept
    recorder.finish()
    assert 20 == kept[0].steps
    recorder.finish()
    assert 1 == len(kept)


def test_a_training_that_never_left_its_warm_up_is_refused():
    """With the number of steps it had."""
    device = ScriptedDevice()
    recorder = recorder_of(device, [])
    recorder.begin(object())
    train(recorder, device, 2)
    with pytest.raises(
        UnusableStep, match="ended after 2 steps, while it was still warming up: give it more"
    ):
        recorder.finish()
