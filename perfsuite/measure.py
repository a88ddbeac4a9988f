"""Run a step on a device until its figures are stable and return a Reading; decides and prints nothing."""

import gc
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from perfsuite.batches import LoaderFacts, count_samples
from perfsuite.devices import Device, Timing, Window
from perfsuite.errors import UnusableStep
from perfsuite.metrics import Kind
from perfsuite.plausible import implausible
from perfsuite.records import Reading
from perfsuite.statistics import median, relative_error
from perfsuite.warmup import Warmup, warm_up

MIN_STEPS = 10
_MAX_STEPS = 200_000  # a step of microseconds is known by then, and its marks still fit into memory
_PRECISION = 0.01  # stop when the mean step time is known this well
_CHECK_GROWTH = 1.1  # look at the statistics each time there are a tenth more steps

Progress = Callable[[str, int, float], None]  # phase, steps so far, seconds so far


@dataclass(frozen=True)
class Plan:
    """How long to measure, and whom to tell."""

    min_seconds: float = 1.0
    max_seconds: float = 10.0
    min_steps: int = MIN_STEPS
    progress: Progress = lambda *_: None


def measure_step(
    step: Callable[[], Any], device: Device, plan: Plan, samples_per_step: int, name: str = ""
) -> Reading:
    """Measure a callable that takes nothing and does one training step."""
    with quiet_garbage():
        warmup = warm_up(step, device, plan.max_seconds, plan.progress)
        timing = run_window(step, device, plan)
        inspected = device.inspect(step, median(timing.step_seconds))
    samples = samples_per_step * len(timing.step_seconds)
    return read(timing, warmup, device, kind="step", name=name, samples=samples, reported=dict(inspected))


def measure_loop(
    loader: Iterable[Any],
    step: Callable[[Any], Any],
    device: Device,
    plan: Plan,
    *,
    samples: int | Callable[[Any], int] | None,
    name: str = "",
) -> Reading:
    """Measure a training loop; the time blocked in the loader is accounted apart."""
    feed = Feed(loader, device, samples)

    def run() -> None:
        step(feed.next())

    facts = LoaderFacts.from_loader(loader)
    with quiet_garbage():
        warmup = warm_up(run, device, plan.max_seconds, plan.progress)
        # These batches were prepared while the warm-up ran: they come free and hide a slow loader.
        for _ in range(facts.prefetched):
            run()
        device.wait()
        feed.reset()
        longer = Plan(
            plan.min_seconds,
            plan.max_seconds,
            max(plan.min_steps, 5 * facts.prefetched),
            plan.progress,
        )
        timing = run_window(run, device, longer)
        waited = feed.waited_seconds / timing.wall_seconds if timing.wall_seconds > 0 else None
        samples_seen = feed.samples  # before the inspection takes more batches
        inspected = device.inspect(run, median(timing.step_seconds))
    return read(
        timing,
        warmup,
        device,
        kind="loop",
        name=name,
        samples=samples_seen,
        data_wait=None if waited is None else min(waited, 1.0),
        reported={"num_workers": float(facts.num_workers), **inspected},
    )


class Feed:
    """Hand out batches for ever, counting samples and the seconds spent waiting for them."""

    def __init__(
        self, loader: Iterable[Any], device: Device, samples: int | Callable[[Any], int] | None
    ) -> None:
        self._loader = loader
        self._device = device
        self._count = samples
        self._iterator: Iterator[Any] = iter(())
        self._is_used = False
        self.reset()

    def reset(self) -> None:
        """Forget what was counted so far."""
        self.samples = 0
        self.batches = 0
        self.waited_seconds = 0.0

    def next(self) -> Any:
        """Return the next batch, beginning a new epoch where one ends."""
        asked = self._device.now()
        batch = self._take()
        self._is_used = True
        self.waited_seconds += self._device.now() - asked
        self.samples += count_samples(batch, self._count)
        self.batches += 1
        return batch

    def _take(self) -> Any:
        for batch in self._iterator:
            return batch
        self._iterator = iter(self._loader)
        for batch in self._iterator:
            return batch
        if self._is_used:
            raise UnusableStep(
                "the loader ended and cannot be iterated again: hand over the loader itself, not an iterator"
            )
        raise UnusableStep("the loader gave no batch: an empty loader cannot be measured")


def run_window(run: Callable[[], Any], device: Device, plan: Plan) -> Timing:
    """Run steps in one window until they are enough."""
    enough = StopRule(device, plan)
    window = device.start()  # the clock runs from here
    try:
        while True:
            run()
            window.mark()
            if enough.after_step(window):
                return window.stop()  # the clock ends here
    finally:
        window.close()


class StopRule:
    """Enough: as many steps and as long as planned, and either steady or out of time."""

    def __init__(self, device: Device, plan: Plan) -> None:
        self._device = device
        self._plan = plan
        self._started = device.now()
        self._steps = 0
        self._next_check = float(plan.min_steps)

    def after_step(self, window: Window) -> bool:
        """Count a step and tell whether it was the last; looks at the statistics now and then only."""
        self._steps += 1
        elapsed = self._device.now() - self._started
        self._plan.progress("measuring", self._steps, elapsed)
        if elapsed >= self._plan.max_seconds or self._steps >= _MAX_STEPS:
            return True
        if self._steps < self._next_check or elapsed < self._plan.min_seconds:
            return False
        self._next_check = self._steps * _CHECK_GROWTH
        error = relative_error(window.known())
        return error is not None and error <= _PRECISION


def read(
    timing: Timing,
    warmup: Warmup,
    device: Device,
    *,
    kind: Kind,
    name: str,
    samples: int,
    data_wait: float | None = None,
    reported: dict[str, float] | None = None,
) -> Reading:
    """Make a Reading of what the device saw."""
    may_repeat = not getattr(device, "never_repeats", False)
    return Reading(
        name=name,
        kind=kind,
        device=device.name,
        modelled=device.modelled,
        steps=len(timing.step_seconds),
        warmup_steps=warmup.steps,
        samples=samples,
        wall_seconds=timing.wall_seconds,
        rounds=timing.step_seconds,
        samples_per_s=samples / timing.wall_seconds if timing.wall_seconds > 0 else None,
        step_seconds=median(timing.step_seconds),
        utilization=timing.utilization,
        utilization_swing=timing.utilization_swing,
        idle_stretch_seconds=timing.idle_stretch_seconds,
        kernel_busy=(reported or {}).get("kernel_busy"),
        peak_memory_bytes=timing.peak_memory_bytes,
        data_wait=data_wait,
        reported={**timing.reported, **(reported or {})},
        notes=(*timing.notes, *warmup.notes),
        invalid=(*timing.invalid, *implausible(timing.step_seconds, may_repeat=may_repeat)),
        conditions=timing.conditions,
    )


@contextmanager
def quiet_garbage() -> Iterator[None]:
    """Collect now, and not again while measuring."""
    was_enabled = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
