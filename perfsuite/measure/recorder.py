"""Measure a loop that a framework runs: callbacks report every batch and step until enough is known."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from perfsuite.devices.protocol import Device, Plan, Window
from perfsuite.errors import UnusableStep
from perfsuite.measure.loader_watch import LoaderWatch
from perfsuite.measure.loop import LoaderFacts, count_samples
from perfsuite.measure.step import StopRule, Warmup, is_steady, read
from perfsuite.records import Insight, Reading, with_data_wait
from perfsuite.statistics import median


class Recorder:
    """Warm up, skip the prefetched batches, then mark steps in one window until there are enough."""

    def __init__(
        self,
        device: Device,
        plan: Plan,
        keep: Callable[[Reading], None],
        samples: int | Callable[[Any], int] | None = None,
    ) -> None:
        self._device, self._plan, self._keep, self._count = device, plan, keep, samples
        self._watch = LoaderWatch(None)
        self._facts = LoaderFacts()
        self._warm_seconds: list[float] = []
        self._state = device.state()
        self._settled_at = self._to_skip = 0
        self._warmup: Warmup | None = None
        self._window: Window | None = None
        self._stop_rule: StopRule | None = None
        self._requested_at: float | None = None
        self._began = device.now()
        self._started = device.now()
        self.batches = self.epochs = self.samples = 0
        self.waited_seconds = self.epoch_waited_seconds = 0.0
        self.reading: Reading | None = None

    @property
    def is_done(self) -> bool:
        """Return whether the training may end."""
        return self.reading is not None

    def begin(self, loader: object) -> None:
        """Read how many batches the loader prepares ahead."""
        self._facts = LoaderFacts.from_loader(loader)
        self._watch = LoaderWatch(loader)
        self._started = self._device.now()

    def count_as(self, samples: int) -> None:
        """Count every step as that many samples."""
        self._count = samples

    def begin_epoch(self) -> None:
        """Record that a new epoch begins with the next batch."""
        self.epochs += 1

    def request_batch(self) -> None:
        """Record that the wait for the next batch begins now."""
        self._requested_at = self._device.now()

    def receive_batch(self, batch: Any) -> None:
        """Record that the batch has arrived and its step begins."""
        now = self._device.now()
        self._began = now
        if self._window is None:
            return
        if self._requested_at is not None:
            self.waited_seconds += now - self._requested_at
        self.samples += count_samples(batch, self._count)
        self.batches += 1

    def step_done(self) -> None:
        """Record the end of a step; opens the window after the warm-up and closes it when enough is known."""
        if self.is_done:
            return
        if self._window is not None and self._stop_rule is not None:
            self._window.mark()
            if self._stop_rule.after_step(self._window):
                self.finish()
        elif self._warmup is None:
            self._warm()
        elif self._to_skip > 0:
            self._to_skip -= 1
        if self._warmup is not None and self._to_skip == 0 and self._window is None and not self.is_done:
            self._open()
        self.request_batch()

    def _warm(self) -> None:
        self._device.wait()  # the CPU waits here: warm-up steps are timed one by one
        now = self._device.now()
        self._warm_seconds.append(now - self._began)
        if (state := self._device.state()) != self._state:
            self._state, self._settled_at = state, len(self._warm_seconds)
        steps, usual = len(self._warm_seconds), median(self._warm_seconds[-3:])
        if is_steady(self._warm_seconds[self._settled_at :]):
            self._warmup = Warmup(steps, step_seconds=usual)
        elif now - self._started >= self._plan.max_seconds and steps >= 3:
            self._warmup = Warmup(steps, (f"not steady after {steps} warm-up steps",), usual)
        self._to_skip = self._facts.prefetched

    def _open(self) -> None:
        self._device.wait()
        self._watch.begin()
        longer = max(self._plan.min_steps, 5 * self._facts.prefetched)
        usual = self._warmup.step_seconds if self._warmup else 0.0
        self._stop_rule = StopRule(self._device, replace(self._plan, min_steps=longer), usual)
        self._window = self._device.start()  # the clock runs from here

    def finish(self) -> None:
        """Close the window and keep the reading; raises if the training ended before it was measured."""
        if self.is_done:
            return
        if self._window is None or self._warmup is None or not self.batches:
            raise UnusableStep(
                f"the training ended after {len(self._warm_seconds)} steps, while it was still warming up: "
                "give it more steps (max_steps) or more data"
            )
        try:
            timing = self._window.stop()  # the clock ends here
        finally:
            self._window.close()
            self._window = None
        waited = min(self.waited_seconds / timing.wall_seconds, 1.0) if timing.wall_seconds > 0 else None
        insight = Insight(
            shares=with_data_wait({}, waited), clues=self._watch.clues(self, timing.wall_seconds)
        )
        self.reading = read(
            timing,
            self._warmup,
            self._device,
            kind="loop",
            name="",
            samples=self.samples,
            figures={} if waited is None else {"data_wait": waited},
            reported={"num_workers": float(self._facts.num_workers)},
            insight=insight,
        )
        self._keep(self.reading)

    def close(self) -> None:
        """Close the window of a training that raised, without a reading."""
        if self._window is not None:
            self._window.close()
            self._window = None
