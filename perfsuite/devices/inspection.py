"""A few steps after the window under torch's profiler and its sync detector, never the timed ones."""

import math
import warnings
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

_STEPS = 3
_SLOW_STEP_SECONDS = 2.0  # longer steps are looked at once
_RANGE = "perfsuite inspection"
_SYNC_WARNING = "called a synchronizing CUDA operation"


class Interval(NamedTuple):
    """One thing the profiler saw, in microseconds."""

    name: str
    start: float
    end: float
    is_on_device: bool


def inspect(torch: Any, index: int, step: Callable[[], object], step_seconds: float) -> Mapping[str, float]:
    """Return kernel_busy, launches and synchronisations per step, as far as they can be seen."""
    steps = _STEPS if step_seconds < _SLOW_STEP_SECONDS else 1
    return {**syncs(torch, index, step), **kernel_figures(_profile(torch, index, step, steps), steps)}


def syncs(torch: Any, index: int, step: Callable[[], object]) -> Mapping[str, float]:
    """Count what makes the host wait in one step; torch says itself that it does not find everything."""
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
    return {"syncs_per_step": float(sum(_SYNC_WARNING in str(one.message) for one in caught))}


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
            with profiler.record_function(_RANGE):
                for _ in range(steps):
                    step()
                torch.cuda.synchronize(index)  # the CPU waits here: the range must hold all of the kernels
    cpu = torch.autograd.DeviceType.CPU
    return [
        Interval(event.name, event.time_range.start, event.time_range.end, event.device_type != cpu)
        for event in seen.events()
        # A range around the steps is shown on the device too, and is no kernel.
        if event.device_type == cpu or not getattr(event, "is_user_annotation", False)
    ]


def kernel_figures(intervals: Iterable[Interval], steps: int) -> Mapping[str, float]:
    """Return the share of time with a kernel running, and launches per step; {} without kernels."""
    intervals = list(intervals)
    kernels = [one for one in intervals if one.is_on_device and not one.name.startswith(("Mem", _RANGE))]
    whole = next((one for one in intervals if one.name == _RANGE and not one.is_on_device), None)
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
