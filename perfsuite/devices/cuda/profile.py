"""A few steps after the window under torch's profiler and its sync detector, never the timed ones."""

import math
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from perfsuite.devices.cuda.trace import RANGE, Interval, kernels_of, split
from perfsuite.insight import Clue, Insight

_STEPS = 3
_SLOW_STEP_SECONDS = 2.0  # longer steps are looked at once
_SYNC_WARNING = "called a synchronizing CUDA operation"


def inspect(torch: Any, index: int, step: Callable[[], object], step_seconds: float) -> Insight:
    """Return kernel_busy, launches and synchronisations per step, and where the time goes."""
    steps = _STEPS if step_seconds < _SLOW_STEP_SECONDS else 1
    waits = syncs(torch, index, step)
    intervals = _profile(torch, index, step, steps)
    seen = split(intervals, steps)
    figures = {"syncs_per_step": float(len(waits)), **kernel_figures(intervals, steps)}
    by_line = Counter(waits).most_common(1)
    clues: dict[str, Clue] = {"syncs": float(len(waits)), "sync_place": by_line[0][0]} if by_line else {}
    return Insight(figures, seen.shares, {**seen.clues, **clues, **_lines(step)})


def _lines(step: Callable[[], object]) -> dict[str, Clue]:
    from perfsuite.devices.operator_times import lines_of

    return lines_of(step, Path.cwd())


def syncs(torch: Any, index: int, step: Callable[[], object]) -> list[str]:
    """Return the lines that make the host wait in one step; torch says itself that it does not find all."""
    before = torch.cuda.get_sync_debug_mode()
    torch.cuda.synchronize(index)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")  # a filter that turns warnings into errors would end the step
        torch.cuda.set_sync_debug_mode("warn")  # for the whole process: its setting is put back below
        try:
            step()
        finally:
            torch.cuda.set_sync_debug_mode(before)
    torch.cuda.synchronize(index)
    return [f"{one.filename}:{one.lineno}" for one in caught if _SYNC_WARNING in str(one.message)]


def _profile(torch: Any, index: int, step: Callable[[], object], steps: int) -> list[Interval]:
    profiler = torch.profiler
    kinds = [profiler.ProfilerActivity.CPU, profiler.ProfilerActivity.CUDA]
    schedule = profiler.schedule(wait=0, warmup=1, active=1)  # without a warm-up the first events are skewed
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the profiler's own; the step has had its say before
        with profiler.profile(activities=kinds, schedule=schedule, acc_events=True) as seen:
            step()
            torch.cuda.synchronize(index)
            seen.step()
            with profiler.record_function(RANGE):
                for _ in range(steps):
                    step()
                torch.cuda.synchronize(index)  # the CPU waits here: the range must hold all of the kernels
    cpu = torch.autograd.DeviceType.CPU
    return [
        Interval(
            event.name,
            event.time_range.start,
            event.time_range.end,
            event.device_type != cpu,
            getattr(event, "id", 0),  # the correlation id: a launch and its kernel share it
        )
        for event in seen.events()
        # A range around the steps is shown on the device too, and is no kernel.
        if event.device_type == cpu or not getattr(event, "is_user_annotation", False)
    ]


def kernel_figures(intervals: Iterable[Interval], steps: int) -> Mapping[str, float]:
    """Return the share of time with a kernel running, and launches per step; {} without kernels."""
    intervals = list(intervals)
    kernels = kernels_of(intervals)
    whole = next((one for one in intervals if one.name == RANGE and not one.is_on_device), None)
    if not kernels or whole is None or whole.end <= whole.start:
        return {}
    launches = sum("LaunchKernel" in one.name or "GraphLaunch" in one.name for one in intervals)
    return {
        "kernel_busy": covered(kernels, whole.start, whole.end) / (whole.end - whole.start),
        "kernels_per_step": len(kernels) / steps,
        "launches_per_step": launches / steps,
    }


def covered(intervals: Iterable[Interval], start: float, end: float) -> float:
    """Return how much of a stretch lies in at least one interval: kernels overlap on several streams."""
    parts, reached = [], start
    for one in sorted(intervals, key=lambda interval: interval.start):
        low, high = max(one.start, reached), min(one.end, end)
        if high > low:
            parts.append(high - low)
            reached = high
    return math.fsum(parts)
