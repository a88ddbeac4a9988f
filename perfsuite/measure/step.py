"""Run a step on a device until its figures are stable and return a Reading; decides and prints nothing."""

import gc
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from perfsuite.devices import Device, Timing, Window
from perfsuite.errors import UnusableStep
from perfsuite.insight import Clue, Insight, with_data_wait
from perfsuite.judge.plausible import implausible
from perfsuite.measure.feed import Feed
from perfsuite.measure.loader_watch import REFUSALS, WORTH_A_LOOK, LoaderWatch, again, sample_clues
from perfsuite.measure.loop import LoaderFacts
from perfsuite.measure.warmup import Warmup, warm_up
from perfsuite.metrics import Kind
from perfsuite.processes.world import ALONE, Together
from perfsuite.records import Reading
from perfsuite.statistics import median, relative_error

MIN_STEPS = 10
_MAX_STEPS = 200_000  # a step of microseconds is known by then, and its marks still fit into memory
_PRECISION = 0.01  # stop when the mean step time is known this well
_RERUN_SHARE = 0.2  # of the window's length, spent on one resident batch
_CHECK_GROWTH = 1.1  # look at the statistics each time there are a tenth more steps

Progress = Callable[[str, int, float], None]  # phase, steps so far, seconds so far


@dataclass(frozen=True)
class Plan:
    """How long to measure, and whom to tell."""

    min_seconds: float = 1.0
    max_seconds: float = 10.0
    min_steps: int = MIN_STEPS
    progress: Progress = lambda *_: None
    together: Together = ALONE  # ranks must do the same number of steps, or a collective waits for ever


def measure_step(
    step: Callable[[], Any], device: Device, plan: Plan, samples_per_step: int, name: str = ""
) -> Reading:
    """Measure a callable that takes nothing and does one training step."""
    with quiet_garbage():
        warmup = warm_up(step, device, plan.max_seconds, plan.progress, plan.together)
        timing = run_window(step, device, plan)
        seen = device.inspect(step, median(timing.step_seconds))
    samples = samples_per_step * len(timing.step_seconds)
    return read(timing, warmup, device, kind="step", name=name, samples=samples, seen=seen)


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
    feed = Feed(loader, device.now, samples)

    def run() -> None:
        step(feed.next())

    facts = LoaderFacts.from_loader(loader)
    with quiet_garbage():
        watch = LoaderWatch(loader)
        warmup = warm_up(run, device, plan.max_seconds, plan.progress, plan.together)
        # These batches were prepared while the warm-up ran: they come free and hide a slow loader.
        for _ in range(facts.prefetched):
            run()
        device.wait()
        feed.reset()
        watch.begin()
        longer = Plan(
            plan.min_seconds,
            plan.max_seconds,
            max(plan.min_steps, 5 * facts.prefetched),
            plan.progress,
            plan.together,
        )
        timing = run_window(run, device, longer)
        waited = feed.waited_seconds / timing.wall_seconds if timing.wall_seconds > 0 else None
        samples_seen = feed.samples  # before the inspection takes more batches
        clues = watch.clues(feed, timing.wall_seconds)
        batch = feed.next()

        def resident() -> None:
            step(again(batch))

        seen = device.inspect(run, median(timing.step_seconds), resident)
        if plan.together.any(waited is not None and waited >= WORTH_A_LOOK):
            clues |= {**sample_clues(loader), **_without_waiting(resident, device, longer)}
    shares = with_data_wait(seen.shares, None if waited is None else min(waited, 1.0))
    seen = replace(seen, shares=shares, clues={**seen.clues, **clues})
    return read(
        timing,
        warmup,
        device,
        kind="loop",
        name=name,
        samples=samples_seen,
        data_wait=None if waited is None else min(waited, 1.0),
        reported={"num_workers": float(facts.num_workers)},
        seen=seen,
    )


def _without_waiting(resident: Callable[[], Any], device: Device, plan: Plan) -> dict[str, Clue]:
    """Run the step on one batch that is there: what it gains by that is the loader's share, proven."""
    brief = Plan(
        _RERUN_SHARE * plan.min_seconds,
        _RERUN_SHARE * plan.max_seconds,
        progress=plan.progress,
        together=plan.together,
    )
    try:
        resident()
        device.wait()
        timing = run_window(resident, device, brief)
    except REFUSALS as error:
        return {"resident_refusal": f"{type(error).__name__}: {error}"}
    return {"resident_step_seconds": timing.wall_seconds / len(timing.step_seconds)}


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
        if self._plan.together.size > 1:
            return self._agreed(window, elapsed)
        if elapsed >= self._plan.max_seconds or self._steps >= _MAX_STEPS:
            return True
        if self._steps < self._next_check or elapsed < self._plan.min_seconds:
            return False
        self._next_check = self._steps * _CHECK_GROWTH
        return self._is_precise(window)

    def _is_precise(self, window: Window) -> bool:
        error = relative_error(window.known())
        return error is not None and error <= _PRECISION

    def _agreed(self, window: Window, elapsed: float) -> bool:
        """Let the first rank decide, at steps all ranks know beforehand: asking costs a step its time."""
        if self._steps < self._next_check:
            return False
        self._next_check = self._steps * _CHECK_GROWTH
        is_over = elapsed >= self._plan.max_seconds or self._steps >= _MAX_STEPS
        is_enough = elapsed >= self._plan.min_seconds and self._is_precise(window)
        return bool(self._plan.together.first(is_over or is_enough))


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
    seen: Insight | None = None,
) -> Reading:
    """Make a Reading of what the device saw."""
    if samples <= 0:
        raise UnusableStep(
            f"samples_per_step counted no sample in {len(timing.step_seconds)} batches; "
            "give the number of samples of a batch, samples_per_step=64"
        )
    may_repeat = not getattr(device, "never_repeats", False)
    seen = seen or Insight()
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
        kernel_busy=seen.figures.get("kernel_busy"),
        peak_memory_bytes=timing.peak_memory_bytes,
        data_wait=data_wait,
        reported={**timing.reported, **(reported or {}), **seen.figures},
        notes=(*timing.notes, *warmup.notes),
        invalid=(*timing.invalid, *implausible(timing.step_seconds, may_repeat=may_repeat)),
        conditions=timing.conditions,
        series=timing.series,
        memory_series=timing.memory_series,
        shares=seen.shares,
        clues=seen.clues,
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
