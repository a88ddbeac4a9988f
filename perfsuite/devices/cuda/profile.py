"""Profile a few steps after the window with torch's profiler and sync detector, never the timed ones."""

import math
import warnings
from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from perfsuite.devices.profiler import RANGE, Interval, profile
from perfsuite.records import Clue, Insight, whole
from perfsuite.statistics import median

_OPTIMIZER = "Optimizer.step#"
_LOADER = "enumerate(DataLoader)#"
_ALLOCATING = ("cudaMalloc", "cudaFree", "cudaHostAlloc", "cudaHostRegister", "cuMem")
_SYNCS = ("cudaStreamSynchronize", "cudaDeviceSynchronize", "cudaEventSynchronize")
_SHORT_KERNEL_SECONDS = 10e-6  # a launch takes 5 to 20 µs: shorter kernels wait for the next one
_STEPS = 3
_SLOW_STEP_SECONDS = 2.0  # longer steps are profiled once
_SYNC_WARNING = "called a synchronizing CUDA operation"


def kernels_of(intervals: Iterable[Interval]) -> list[Interval]:
    """Return the kernels: what ran on the device and is not a copy."""
    return [
        interval
        for interval in intervals
        if interval.is_on_device and not interval.name.startswith(("Mem", RANGE))
    ]


def split(intervals: Sequence[Interval], steps: int) -> Insight:
    """Return shares of the profiled range that add up to 1, and clues; nothing without kernels."""
    whole_range = next(
        (interval for interval in intervals if interval.name == RANGE and not interval.is_on_device), None
    )
    kernels = kernels_of(intervals)
    if not kernels or whole_range is None or whole_range.end <= whole_range.start:
        return Insight()
    start, end = whole_range.start, whole_range.end
    host = [interval for interval in intervals if not interval.is_on_device]
    launches = {interval.id: interval for interval in host if interval.is_call}
    during = _Host(host)
    seconds: dict[str, float] = defaultdict(float)
    reached = start
    for interval in _in_order(intervals, start, end):
        if interval.start > reached:
            _attribute_gap(seconds, reached, interval, during, launches.get(interval.id))
        ran = max(interval.end - max(interval.start, reached), 0.0)
        seconds[_kind(interval, launches.get(interval.id), during)] += ran
        reached = max(reached, interval.end)
    seconds["other"] += max(end - reached, 0.0)
    total = end - start
    durations = [(interval.end - interval.start) / 1e6 for interval in kernels]
    clues: dict[str, Clue] = {
        "kernels_per_step": len(kernels) / steps,
        "kernels_of_optimizer": 1.0,  # they cannot be distinguished here
        "kernel_seconds": median(durations),
        "short_kernel_seconds": _SHORT_KERNEL_SECONDS,
        **_copy_clues(intervals, steps),
    }
    return Insight(shares=whole({name: spent / total for name, spent in seconds.items()}), clues=clues)


def _in_order(intervals: Iterable[Interval], start: float, end: float) -> list[Interval]:
    """Return what ran on the device inside the range, sorted by start."""
    inside = [
        interval._replace(start=max(interval.start, start), end=min(interval.end, end))
        for interval in intervals
        if interval.is_on_device and interval.name != RANGE and interval.end > start and interval.start < end
    ]
    return sorted(inside, key=lambda interval: interval.start)


class _Stretches:
    """Intervals of the host as disjoint stretches in order, so that a gap finds its overlaps by bisection."""

    def __init__(self, intervals: Iterable[Interval]) -> None:
        self._starts: list[float] = []
        self._ends: list[float] = []
        for interval in sorted(intervals, key=lambda interval: interval.start):
            if self._ends and interval.start <= self._ends[-1]:
                self._ends[-1] = max(self._ends[-1], interval.end)
            else:
                self._starts.append(interval.start)
                self._ends.append(interval.end)

    def overlap(self, start: float, end: float) -> float:
        """Return how much of a gap they cover."""
        total, at = 0.0, bisect_right(self._ends, start)
        while at < len(self._starts) and self._starts[at] < end:
            total += min(self._ends[at], end) - max(self._starts[at], start)
            at += 1
        return total

    def holds(self, moment: float) -> bool:
        """Return whether a moment lies in any of them."""
        at = bisect_right(self._starts, moment) - 1
        return at >= 0 and moment <= self._ends[at]


class _Host:
    """What the host was doing during a gap, by what it can be attributed to."""

    def __init__(self, host: Sequence[Interval]) -> None:
        self.loading = _Stretches(interval for interval in host if interval.name.startswith(_LOADER))
        self.allocating = _Stretches(interval for interval in host if interval.name.startswith(_ALLOCATING))
        self.optimizing = _Stretches(interval for interval in host if interval.name.startswith(_OPTIMIZER))
        self._synced = sorted(interval.end for interval in host if interval.name.startswith(_SYNCS))

    def synced_within(self, start: float, end: float) -> bool:
        """Return whether a wait ended in a gap."""
        at = bisect_left(self._synced, start)
        return at < len(self._synced) and self._synced[at] <= end


def _kind(interval: Interval, launch: Interval | None, during: _Host) -> str:
    if interval.name.startswith("Memcpy HtoD"):
        return "transfer"
    if interval.name.startswith("Memcpy DtoH"):
        return "sync_waits"
    is_optimizing = launch is not None and during.optimizing.holds(launch.start)
    return "optimizer" if is_optimizing else "kernels"


def _attribute_gap(
    seconds: dict[str, float],
    start: float,
    following: Interval,
    during: _Host,
    launch: Interval | None,
) -> None:
    """Attribute an idle gap of the device to what the host was doing: loader, allocator, sync, launching."""
    end = following.start
    loading = during.loading.overlap(start, end)
    allocating = during.allocating.overlap(start, end)
    left = max(end - start - loading - allocating, 0.0)
    seconds["data_wait"] += loading
    seconds["allocator"] += min(allocating, end - start - loading)
    if during.synced_within(start, end):
        # The host had waited until the device's queue was empty and only then launched again.
        seconds["sync_waits"] += left
    elif launch is not None and launch.start >= start:
        seconds["launch_gaps"] += left
    else:
        seconds["other"] += left


def _copy_clues(intervals: Iterable[Interval], steps: int) -> dict[str, Clue]:
    """Count pageable copies by CUPTI's name for them: `Memcpy HtoD (Pageable -> Device)`."""
    copies = [
        interval
        for interval in intervals
        if interval.is_on_device and interval.name.startswith("Memcpy HtoD")
    ]
    pageable = [interval for interval in copies if "Pageable" in interval.name]
    if not copies:
        return {}
    return {"copies_per_step": len(copies) / steps, "pageable_copies": len(pageable) / steps}


def inspect(torch: Any, index: int, step: Callable[[], object], step_seconds: float) -> Insight:
    """Return kernel_busy, launches and synchronisations per step, and where the time goes."""
    steps = _STEPS if step_seconds < _SLOW_STEP_SECONDS else 1
    waits = syncs(torch, index, step)
    intervals = profile(torch, step, [steps], lambda: torch.cuda.synchronize(index), with_device=True)
    insight = split(intervals, steps)
    figures = {"syncs_per_step": float(len(waits)), **kernel_figures(intervals, steps)}
    by_line = Counter(waits).most_common(1)
    clues: dict[str, Clue] = {"syncs": float(len(waits)), "sync_place": by_line[0][0]} if by_line else {}
    return Insight(figures, insight.shares, {**insight.clues, **clues, **_lines(step)})


def _lines(step: Callable[[], object]) -> dict[str, Clue]:
    from perfsuite.devices.operator_times import operator_lines

    return operator_lines(step, Path.cwd())


def syncs(torch: Any, index: int, step: Callable[[], object]) -> list[str]:
    """Return the lines that make the host wait in a step; torch's docs say that it does not find all."""
    before = torch.cuda.get_sync_debug_mode()
    torch.cuda.synchronize(index)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")  # a filter that turns warnings into errors would end the step
        torch.cuda.set_sync_debug_mode("warn")  # for the whole process: the setting is restored below
        try:
            step()
        finally:
            torch.cuda.set_sync_debug_mode(before)
    torch.cuda.synchronize(index)
    return [
        f"{warning.filename}:{warning.lineno}" for warning in caught if _SYNC_WARNING in str(warning.message)
    ]


def kernel_figures(intervals: Iterable[Interval], steps: int) -> Mapping[str, float]:
    """Return the share of time with a kernel running, and launches per step; {} without kernels."""
    intervals = list(intervals)
    kernels = kernels_of(intervals)
    whole = next(
        (interval for interval in intervals if interval.name == RANGE and not interval.is_on_device), None
    )
    if not kernels or whole is None or whole.end <= whole.start:
        return {}
    # All kernels of a graph share the id of the one call that launched it.
    launches = len({kernel.id for kernel in kernels})
    return {
        "kernel_busy": covered(kernels, whole.start, whole.end) / (whole.end - whole.start),
        "kernels_per_step": len(kernels) / steps,
        "launches_per_step": launches / steps,
    }


def covered(intervals: Iterable[Interval], start: float, end: float) -> float:
    """Return how much of a time span lies in at least one interval: kernels on several streams overlap."""
    parts, reached = [], start
    for interval in sorted(intervals, key=lambda interval: interval.start):
        low, high = max(interval.start, reached), min(interval.end, end)
        if high > low:
            parts.append(high - low)
            reached = high
    return math.fsum(parts)
