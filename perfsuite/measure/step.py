"""Run a step on a device until its figures are stable, and return a Reading."""

import gc
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from perfsuite.devices.protocol import Device, Plan, Timing, Window
from perfsuite.errors import UnusableStep
from perfsuite.metrics import METRICS, Kind
from perfsuite.processes.world import ALONE, Together
from perfsuite.records import Counted, Insight, Reading
from perfsuite.statistics import mean, median, relative_error

_STILL_FASTER = 0.05  # steps that got faster by more than this are still warming up
_MIN_STEPS = 3  # a CUDA graph is warmed up, recorded and only then replayed
_SLOW_STEP_SECONDS = 0.5
_MAX_STEPS = 200_000  # even microseconds are known precisely by then, and the marks still fit into memory
_PRECISION = 0.01  # stop when the mean step time is known this well
_CHECK_GROWTH = 1.1  # check the statistics whenever there are a tenth more steps
_ALIKE_STEPS = 10  # a clock with nanoseconds does not return the same time ten times in a row


@dataclass(frozen=True)
class Warmup:
    """How many steps the warm-up took, how long the last ones, and a note if it never became steady."""

    steps: int
    notes: tuple[str, ...] = ()
    step_seconds: float = 0.0  # of its last steps, each waited for


def warm_up(
    run: Callable[[], Any],
    device: Device,
    budget_seconds: float,
    progress: Callable[[str, int, float], None] = lambda *_: None,
    together: Together = ALONE,
) -> Warmup:
    """Run and time steps until they are steady or the budget is spent."""
    seconds: list[float] = []
    settled_at = 0
    state = device.state()
    started = device.now()
    while True:
        progress("warm-up", len(seconds), device.now() - started)
        before = device.now()
        run()
        device.wait()  # the CPU waits here: warm-up steps are timed one by one
        seconds.append(device.now() - before)
        if len(seconds) == 1 and device.learns:
            device.learn(run)  # a second step: optimizers have made their state in the first
        if (now := device.state()) != state:
            state, settled_at = now, len(seconds)
        if together.first(is_steady(seconds[settled_at:])):
            return Warmup(len(seconds), step_seconds=median(seconds[-_MIN_STEPS:]))
        is_spent = device.now() - started >= budget_seconds and len(seconds) >= _MIN_STEPS
        if together.first(is_spent):
            note = f"not steady after {len(seconds)} warm-up steps"
            return Warmup(len(seconds), (note,), median(seconds[-_MIN_STEPS:]))


def is_steady(seconds: Sequence[float]) -> bool:
    """Return whether the last steps are no faster than those before them."""
    if len(seconds) < _MIN_STEPS:
        return False
    span = 2 if seconds[-1] >= _SLOW_STEP_SECONDS else 5
    if len(seconds) < 2 * span:
        return False
    later, earlier = median(seconds[-span:]), median(seconds[-2 * span : -span])
    return later >= (1 - _STILL_FASTER) * earlier


def measure_step(
    step: Callable[[], Any], device: Device, plan: Plan, samples_per_step: int, name: str = ""
) -> Reading:
    """Measure a callable without arguments that does one training step."""
    with gc_paused():
        warmup = warm_up(step, device, plan.max_seconds, plan.progress, plan.together)
        timing = run_window(step, device, plan, warmup.step_seconds)
        insight, counted = look_into(step, device, plan, median(timing.step_seconds))
    samples = samples_per_step * len(timing.step_seconds)
    return read(
        timing, warmup, device, kind="step", name=name, samples=samples, insight=insight, counted=counted
    )


def look_into(
    step: Callable[[], Any],
    device: Device,
    plan: Plan,
    step_seconds: float,
    resident: Callable[[], Any] | None = None,
) -> tuple[Insight, Counted]:
    """Inspect and count a few more steps; whatever fails there must not cost the finished measurement."""
    if plan.together.size > 1:  # a rank that went on alone would leave the others waiting
        return device.inspect(step, step_seconds, resident), device.counted(step)
    try:
        insight = device.inspect(step, step_seconds, resident)
    except Exception as error:  # noqa: BLE001  a step may raise anything
        insight = Insight.missing(f"failed after the measurement, {_in_words(error)}")
    try:
        return insight, device.counted(step)
    except Exception as error:  # noqa: BLE001  a step may raise anything
        return insight, Counted(notes=(f"counts: failed after the measurement, {_in_words(error)}",))


def _in_words(error: Exception) -> str:
    first = str(error).strip().partition("\n")[0]
    return f"{type(error).__name__}: {first}" if first else type(error).__name__


def run_window(run: Callable[[], Any], device: Device, plan: Plan, step_seconds: float = 0.0) -> Timing:
    """Run steps in one window until there are enough; `step_seconds` is what one is expected to take."""
    stop_rule = StopRule(device, plan, step_seconds)
    window = device.start()  # the clock runs from here
    try:
        while True:
            run()
            window.mark()
            if stop_rule.after_step(window):
                return window.stop()  # the clock ends here
    finally:
        window.close()


class StopRule:
    """Decide when a window is long enough: after the planned minimum, once precise or out of time.

    The host of an accelerator runs ahead: what counts is how long the submitted steps take the device.
    """

    def __init__(self, device: Device, plan: Plan, step_seconds: float = 0.0) -> None:
        self._device = device
        self._plan = long_enough(plan, device)
        self._step_seconds = step_seconds  # expected, until the device has finished some
        self._steps_at_look, self._seconds_at_look = 0, 0.0
        self._started = device.now()
        self._steps = 0
        self._next_check = self._next_look = float(plan.min_steps)

    def after_step(self, window: Window) -> bool:
        """Count a step and return whether it was the last; the statistics are only checked now and then."""
        self._steps += 1
        elapsed = self._elapsed(window)
        self._plan.progress("measuring", self._steps, elapsed)
        if self._plan.together.size > 1:
            return self._agreed(window, elapsed)
        if elapsed >= self._plan.max_seconds or self._steps >= _MAX_STEPS:
            return True
        if self._steps < self._next_check or elapsed < self._plan.min_seconds:
            return False
        self._next_check = self._steps * _CHECK_GROWTH
        return self._is_precise(window)

    def _elapsed(self, window: Window) -> float:
        """Return the seconds that the submitted steps take: passed on the host, or queued on the device."""
        passed = self._device.now() - self._started
        if not self._device.is_accelerator:
            return passed
        queued = self._seconds_at_look + (self._steps - self._steps_at_look) * self._step_seconds
        if self._steps >= self._next_look or queued >= self._plan.max_seconds:
            queued = self._look(window)
        return max(passed, queued)

    def _look(self, window: Window) -> float:
        """Return how long the device needs for all submitted steps, by those that it has finished."""
        known = window.known()
        self._step_seconds = mean(known) if known else self._step_seconds
        self._steps_at_look, self._next_look = self._steps, self._steps * _CHECK_GROWTH
        self._seconds_at_look = sum(known) + (self._steps - len(known)) * self._step_seconds
        return self._seconds_at_look

    def _is_precise(self, window: Window) -> bool:
        error = relative_error(window.known())
        return error is not None and error <= _PRECISION

    def _agreed(self, window: Window, elapsed: float) -> bool:
        """Let the first rank decide, at steps known to all ranks: each exchange costs time of a step."""
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
    figures: Mapping[str, float] | None = None,
    reported: Mapping[str, float] | None = None,
    insight: Insight | None = None,
    counted: Counted | None = None,
) -> Reading:
    """Return the reading of a window; `figures` are those that only the caller knows."""
    if samples <= 0:
        raise UnusableStep(
            f"samples_per_step counted no sample in {len(timing.step_seconds)} batches; "
            "give the number of samples of a batch, samples_per_step=64"
        )
    insight, counted = insight or Insight(), counted or Counted()
    speed = {"samples_per_s": samples / timing.wall_seconds} if timing.wall_seconds > 0 else {}
    return Reading(
        name=name,
        kind=kind,
        device=device.name,
        is_accelerator=device.is_accelerator,
        modelled=device.modelled,
        origin=device.origin,
        steps=len(timing.step_seconds),
        warmup_steps=warmup.steps,
        samples=samples,
        wall_seconds=timing.wall_seconds,
        rounds=timing.step_seconds,
        figures={
            **speed,
            "step_time": median(timing.step_seconds),
            **timing.figures,
            **{name: value for name, value in insight.figures.items() if name in METRICS},
            **counted.figures,
            **(figures or {}),
        },
        reported={**timing.reported, **(reported or {}), **insight.figures, **counted.reported},
        notes=(*timing.notes, *warmup.notes, *insight.notes, *counted.notes),
        invalid=(*timing.invalid, *implausible(timing.step_seconds, may_repeat=device.clock_repeats)),
        conditions=timing.conditions,
        series=timing.series,
        memory_series=timing.memory_series,
        shares=insight.shares,
        clues=insight.clues,
        places=counted.places,
        lines=counted.lines,
        launched=counted.launched,
    )


def long_enough(plan: Plan, device: Device) -> Plan:
    """Return a plan whose window this device can judge utilization by, if a limit asks for that."""
    if not plan.needs_utilization:
        return plan
    seconds = max(plan.min_seconds, device.utilization_seconds())
    return replace(plan, min_seconds=seconds, max_seconds=max(plan.max_seconds, seconds))


@contextmanager
def gc_paused() -> Iterator[None]:
    """Collect garbage now, and not again while measuring."""
    was_enabled = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def implausible(steps: Sequence[float], *, may_repeat: bool) -> tuple[str, ...]:
    """Return why step times are implausible; a coarse, scripted or modelled clock may repeat a time."""
    if not steps or any(not math.isfinite(step) or step < 0 for step in steps):
        return ("the clock returned a time that is not a number",)
    if median(steps) == 0:
        return ("the steps took no time at all: either they do nothing or the clock has stopped",)
    if not may_repeat and len(steps) >= _ALIKE_STEPS and min(steps) == max(steps):
        return (f"all {len(steps)} steps took exactly {steps[0]:g} s: no real clock does that",)
    return ()
