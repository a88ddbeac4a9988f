"""Profile a few steps after the window with torch's profiler and sync detector, never the timed ones."""

import math
import warnings
from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from perfsuite.devices.profiler import RANGE, Interval, OtherProfiler, other_profiler, profile
from perfsuite.records import Clue, Insight, whole
from perfsuite.statistics import median

_OPTIMIZER = "Optimizer.step#"
_LOADER = "enumerate(DataLoader)#"
_ALLOCATING = ("cudaMalloc", "cudaFree", "cudaHostAlloc", "cudaHostRegister", "cuMem")
_STREAM_WAIT, _DEVICE_WAIT = "cudaStreamSynchronize", "cudaDeviceSynchronize"
_WAITS = (_STREAM_WAIT, _DEVICE_WAIT, "cudaEventSynchronize")
_WAITING_COPIES = ("cudaMemcpy", "cudaMemcpyWithStream")
_SHORT_KERNEL_SECONDS = 10e-6  # a launch takes 5 to 20 µs: shorter kernels wait for the next one
_STEPS = 3
_SLOW_STEP_SECONDS = 2.0  # longer steps are profiled once, without a warm-up
_TOO_LONG_SECONDS = 30.0  # not even once: no profile is worth minutes
_MOST_PROFILED = 100_000  # operators of all profiled steps together, of which there is at least one
_MOST_OPERATORS = 500_000  # of a step; more would fill the memory with events
_NO_KERNELS = (
    "the profiler recorded no kernels: the step launches none, or another tool, such as Nsight, has CUPTI"
)
_SYNC_WARNING = "called a synchronizing CUDA operation"


class Trace(NamedTuple):
    """What the profiler recorded of a range of steps, sorted by start."""

    start: float
    end: float
    on_device: Sequence[Interval]  # kernels, copies and fills, cut to the range
    kernels: Sequence[Interval]
    host: Sequence[Interval]
    calls: Mapping[int, Interval]  # calls of the runtime, by the id that the work they start has too

    @classmethod
    def from_intervals(cls, intervals: Iterable[Interval]) -> "Trace | None":
        """Return the trace; None without a range, or with no kernel in it."""
        on_device: list[Interval] = []
        host: list[Interval] = []
        for interval in sorted(intervals, key=lambda interval: interval.start):
            (on_device if interval.is_on_device else host).append(interval)
        ranges = [interval for interval in host if interval.name == RANGE]
        if not ranges or ranges[0].end <= ranges[0].start:
            return None
        start, end = ranges[0].start, ranges[0].end
        inside = [_cut(work, start, end) for work in on_device if work.end > start and work.start < end]
        kernels = [work for work in inside if not work.name.startswith("Mem")]
        calls = {interval.id: interval for interval in host if interval.is_call}
        return cls(start, end, inside, kernels, host, calls) if kernels else None


def _cut(interval: Interval, start: float, end: float) -> Interval:
    if start <= interval.start and interval.end <= end:
        return interval
    return interval._replace(start=max(interval.start, start), end=min(interval.end, end))


def analyse(intervals: Iterable[Interval], steps: int, step_seconds: float) -> Insight:
    """Return figures per step, shares of the timed step that add up to 1, and clues; nothing without kernels.

    The profiler slows the host down, but not the kernels: their time is compared with the timed step, and
    what is left of it was spent as the profiled gaps were.
    """
    trace = Trace.from_intervals(intervals)
    if trace is None or step_seconds <= 0:
        return Insight()
    timed = 1e6 * step_seconds * steps
    durations = [(kernel.end - kernel.start) / 1e6 for kernel in trace.kernels]
    figures = {
        "kernel_busy": min(covered(trace.kernels) / timed, 1.0),
        "kernels": len(trace.kernels) / steps,
        # All kernels of a graph share the id of the one call that launched it.
        "launches": len({kernel.id for kernel in trace.kernels}) / steps,
        "d2d_copies": sum(work.name.startswith("Memcpy DtoD") for work in trace.on_device) / steps,
        "memsets": sum(work.name.startswith("Memset") for work in trace.on_device) / steps,
        **{name: count / steps for name, count in _count_waits(trace).items()},
    }
    clues: dict[str, Clue] = {
        "kernels_per_step": len(trace.kernels) / steps,
        "kernels_of_optimizer": 1.0,  # they cannot be distinguished here
        "kernel_seconds": median(durations),
        "short_kernel_seconds": _SHORT_KERNEL_SECONDS,
        **_copy_clues(trace, steps),
    }
    return Insight(figures, _shares(trace, timed), clues)


def covered(kernels: Iterable[Interval]) -> float:
    """Return how long at least one of the kernels runs: on several streams they overlap."""
    parts, reached = [], -math.inf
    for kernel in sorted(kernels, key=lambda kernel: kernel.start):
        if kernel.end > reached:
            parts.append(kernel.end - max(kernel.start, reached))
            reached = kernel.end
    return math.fsum(parts)


def _shares(trace: Trace, timed: float) -> dict[str, float]:
    busy: dict[str, float] = defaultdict(float)
    idle: dict[str, float] = defaultdict(float)
    during = _Host(trace.host)
    reached = trace.start
    for work in trace.on_device:
        launch = trace.calls.get(work.id)
        if work.start > reached:
            _attribute_gap(idle, reached, work.start, during, launch)
        busy[_kind(work, launch, during)] += max(work.end - max(work.start, reached), 0.0)
        reached = max(reached, work.end)
    idle["other"] += max(trace.end - reached, 0.0)
    left = max(timed - math.fsum(busy.values()), 0.0)
    total = math.fsum(idle.values())
    shares: dict[str, float] = defaultdict(float, {name: spent / timed for name, spent in busy.items()})
    for name, spent in idle.items():
        shares[name] += left / timed * spent / total if total else 0.0
    return whole(shares)


class _Stretches:
    """Intervals of the host as disjoint stretches in order, so that a gap finds its overlaps by bisection."""

    def __init__(self, intervals: Iterable[Interval]) -> None:
        self._starts: list[float] = []
        self._ends: list[float] = []
        for interval in intervals:
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
        self.allocating = _Stretches(
            interval for interval in host if _cuda_name(interval).startswith(_ALLOCATING)
        )
        self.optimizing = _Stretches(interval for interval in host if interval.name.startswith(_OPTIMIZER))
        self._synced = sorted(interval.end for interval in host if _cuda_name(interval) in _WAITS)

    def synced_within(self, start: float, end: float) -> bool:
        """Return whether a wait ended in a gap."""
        at = bisect_left(self._synced, start)
        return at < len(self._synced) and self._synced[at] <= end


def _cuda_name(interval: Interval) -> str:
    """Return a call's name as CUDA has it: ROCm's calls differ by their prefix."""
    return f"cuda{interval.name[3:]}" if interval.name.startswith("hip") else interval.name


def _kind(work: Interval, launch: Interval | None, during: _Host) -> str:
    if work.name.startswith("Memcpy HtoD"):
        return "transfer"
    if work.name.startswith("Memcpy DtoH"):
        return "sync_waits"
    is_optimizing = launch is not None and during.optimizing.holds(launch.start)
    return "optimizer" if is_optimizing else "kernels"


def _attribute_gap(
    seconds: dict[str, float], start: float, end: float, during: _Host, launch: Interval | None
) -> None:
    """Attribute an idle gap of the device to what the host was doing: loader, allocator, sync, launching."""
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


def _count_waits(trace: Trace) -> dict[str, int]:
    """Count the host's waits for the device, and the copies that it does not get past before they are done.

    A copy to pageable memory waits by itself, and torch waits once more behind it: that is one wait.
    """
    works = {work.id: work for work in trace.on_device}
    waits = blocking = 0
    last = ""  # the copy right before, if nothing was started since
    for call in _calls_of_steps(trace):
        name, work = _cuda_name(call), works.get(call.id)
        if name in _WAITS:
            is_behind = name == _STREAM_WAIT
            waits += not (is_behind and last == "waited for")
            blocking += is_behind and last == "pinned"
            last = ""
        elif work is not None:
            last = _copy_kind(name, work)
            waits += last == "waited for"
            blocking += last in ("waited for", "pageable")
    return {"syncs": waits, "blocking_copies": blocking}


def _copy_kind(name: str, work: Interval) -> str:
    """Return how the host gets past a copy over the bus: «waited for», «pageable» or «pinned»."""
    is_to_host = work.name.startswith("Memcpy DtoH")
    if not is_to_host and not work.name.startswith("Memcpy HtoD"):
        return ""
    if name in _WAITING_COPIES or (is_to_host and "Pageable" in work.name):
        return "waited for"
    return "pageable" if "Pageable" in work.name else "pinned"


def _calls_of_steps(trace: Trace) -> list[Interval]:
    """Return the calls within the range, without the wait that ends it, which is the profile's own."""
    calls = [call for call in trace.host if call.is_call and trace.start <= call.start <= trace.end]
    while calls and _cuda_name(calls[-1]) != _DEVICE_WAIT:
        calls.pop()
    return calls[:-1]


def _copy_clues(trace: Trace, steps: int) -> dict[str, Clue]:
    """Count pageable copies by CUPTI's name for them: `Memcpy HtoD (Pageable -> Device)`."""
    copies = [work for work in trace.on_device if work.name.startswith("Memcpy HtoD")]
    pageable = [work for work in copies if "Pageable" in work.name]
    if not copies:
        return {}
    return {"copies_per_step": len(copies) / steps, "pageable_copies": len(pageable) / steps}


def inspect(torch: Any, index: int, step: Callable[[], object], step_seconds: float) -> Insight:
    """Return kernel-busy share, kernels and waits per step, and where the time goes.

    Costs six more steps; three where one takes seconds, none where it takes half a minute.
    """
    if step_seconds >= _TOO_LONG_SECONDS:
        return Insight.missing(f"left out, a step takes {step_seconds:.0f} s")
    reasons: list[str] = []
    waits = syncs(torch, index, lambda: reasons.append(other_profiler(torch, step)))
    operators, lines = _lines(step)
    if operators > _MOST_OPERATORS:
        reasons.append(f"a step has {operators:,} operators")
    insight = (
        Insight.missing(f"left out, {why}")
        if (why := "; ".join(filter(None, reasons)))
        else (_profiled(torch, index, step, step_seconds, operators))
    )
    clues = {**insight.clues, **_sync_clues(waits, insight.figures.get("syncs")), **lines}
    return replace(insight, clues=clues)


def _profiled(
    torch: Any, index: int, step: Callable[[], object], step_seconds: float, operators: int
) -> Insight:
    is_slow = step_seconds >= _SLOW_STEP_SECONDS
    steps = 1 if is_slow else min(max(_MOST_PROFILED // max(operators, 1), 1), _STEPS)

    def wait() -> None:
        torch.cuda.synchronize(index)

    try:
        intervals = profile(torch, step, [steps], wait, with_device=True, warmup_steps=0 if is_slow else 1)
    except OtherProfiler as why:
        return Insight.missing(f"left out, {why}")
    found = analyse(intervals, steps, step_seconds)
    return found if found.figures else Insight.missing(_NO_KERNELS)


def _sync_clues(lines: Sequence[str], profiled: float | None) -> dict[str, Clue]:
    """Return how often the host waits, and the line that does so most often, where torch knows it."""
    count = max(float(len(lines)), profiled or 0.0)
    place: dict[str, Clue] = {"sync_place": Counter(lines).most_common(1)[0][0]} if lines else {}
    return {"syncs": count, **place} if count else {}


def _lines(step: Callable[[], object]) -> tuple[int, dict[str, Clue]]:
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
