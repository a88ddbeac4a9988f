"""The time a step spends in collectives and how much of it computation hides; profiled after the window."""

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from perfsuite.devices.profiler import RANGE, Interval, profile
from perfsuite.records import Insight, whole
from perfsuite.statistics import median

_STEPS, _MOST_STEPS = 3, 20
_PROFILED_SECONDS = 0.5  # of steps
_SLOW_STEP_SECONDS = 2.0
_ON_HOST = "gloo:"  # prefix of what gloo's threads run
_ON_DEVICE = "nccl"  # prefix of NCCL's kernels
_NOT_WORK = (
    "c10d::",
    RANGE,
    "ProfilerStep",
    "DistributedDataParallel.forward",
)  # calls and ranges around work


def inspect(step: Callable[[], object], step_seconds: float, steps: int, *, is_cuda: bool) -> Insight:
    """Profile that many steps, the same number on every rank, and scale the result to the timed step."""
    import torch

    def wait() -> None:
        if is_cuda:
            torch.cuda.synchronize()

    # A card still works when the host has gone on: there one range contains all steps and the wait.
    ranges = [steps] if is_cuda else [1] * steps
    return split(profile(torch, step, ranges, wait, with_device=is_cuda), step_seconds)


def steps_of(step_seconds: float) -> int:
    """Return how many steps to profile: one if long; if short, so many that a burst of load hits only few."""
    if step_seconds >= _SLOW_STEP_SECONDS:
        return 1
    steps = round(_PROFILED_SECONDS / step_seconds) if step_seconds > 0 else _MOST_STEPS
    return min(max(steps, _STEPS), _MOST_STEPS)


class Shares(NamedTuple):
    """Shares of the length of a profiled range of steps."""

    communicating: float
    exposed: float
    working: float


def split(intervals: Sequence[Interval], step_seconds: float) -> Insight:
    """Return seconds in collectives per step, the hidden share of them, and where the step's time went.

    Of several ranges the median counts: other processes disturb some of them. Profiled steps take longer
    than others, so the profile gives shares, which are applied to the timed step.
    """
    ranges = [
        interval
        for interval in intervals
        if interval.name == RANGE and not interval.is_on_device and interval.end > interval.start
    ]
    if not ranges:
        return Insight()
    shares = [_shares(whole_range, intervals) for whole_range in ranges]
    communicating, exposed, working = (median([share[i] for share in shares]) for i in range(3))
    figures = {
        "collective_seconds": communicating * step_seconds,
        "collective_exposed_seconds": exposed * step_seconds,
    }
    if communicating > 0:
        figures["collective_hidden_share"] = 1 - exposed / communicating
    clues = {"collective_exposed_share": min(exposed, 1.0)}
    return Insight(figures, whole({"collectives": exposed, "kernels": working}), clues)


def _shares(whole_range: Interval, intervals: Sequence[Interval]) -> Shares:
    inside = [
        interval._replace(
            start=max(interval.start, whole_range.start), end=min(interval.end, whole_range.end)
        )
        for interval in intervals
        if interval.start < whole_range.end and interval.end > whole_range.start
    ]
    has_device = any(interval.is_on_device for interval in inside)
    collectives = _union(interval for interval in inside if _is_collective(interval))
    work = _union(interval for interval in inside if _is_work(interval, has_device))
    length, communicating = whole_range.end - whole_range.start, _length(collectives)
    exposed = communicating - _overlap(collectives, work)
    return Shares(communicating / length, exposed / length, _length(work) / length)


def _is_collective(interval: Interval) -> bool:
    return interval.name.startswith(_ON_DEVICE if interval.is_on_device else _ON_HOST)


def _is_work(interval: Interval, has_device: bool) -> bool:
    """Return whether an interval computes: kernels where there is a device, else the host's operators."""
    if _is_collective(interval) or interval.name.startswith(_NOT_WORK):
        return False
    return interval.is_on_device == has_device


def _union(intervals: Iterable[Interval]) -> list[tuple[float, float]]:
    """Return the time spans in which at least one of the intervals runs."""
    merged: list[tuple[float, float]] = []
    for interval in sorted(intervals, key=lambda each: each.start):
        if merged and interval.start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], interval.end))
        else:
            merged.append((interval.start, interval.end))
    return merged


def _length(spans: Iterable[tuple[float, float]]) -> float:
    return sum(end - start for start, end in spans)


def _overlap(left: Sequence[tuple[float, float]], right: Sequence[tuple[float, float]]) -> float:
    total, i, j = 0.0, 0, 0
    while i < len(left) and j < len(right):
        total += max(min(left[i][1], right[j][1]) - max(left[i][0], right[j][0]), 0.0)
        if left[i][1] <= right[j][1]:
            i += 1
        else:
            j += 1
    return total
