"""Split profiled steps on a GPU into shares: what ran, and for each gap what the host did meanwhile."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from perfsuite.insight import Clue, Insight, whole
from perfsuite.statistics import median

RANGE = "perfsuite inspection"
_OPTIMIZER = "Optimizer.step#"
_LOADER = "enumerate(DataLoader)#"
_ALLOCATING = ("cudaMalloc", "cudaFree", "cudaHostAlloc", "cudaHostRegister", "cuMem")
_SYNCS = ("cudaStreamSynchronize", "cudaDeviceSynchronize", "cudaEventSynchronize")
_SHORT_KERNEL_SECONDS = 10e-6  # a launch takes 5 to 20 µs: shorter kernels wait for the next one


class Interval(NamedTuple):
    """One thing the profiler saw, in microseconds; a launch and its kernel share an id."""

    name: str
    start: float
    end: float
    is_on_device: bool
    id: int = 0


def kernels_of(intervals: Iterable[Interval]) -> list[Interval]:
    """Return the kernels: what ran on the device and is no copy."""
    return [one for one in intervals if one.is_on_device and not one.name.startswith(("Mem", RANGE))]


def split(intervals: Sequence[Interval], steps: int) -> Insight:
    """Return shares of the inspected range that add up to 1, and clues; nothing without kernels."""
    whole_range = next((one for one in intervals if one.name == RANGE and not one.is_on_device), None)
    kernels = kernels_of(intervals)
    if not kernels or whole_range is None or whole_range.end <= whole_range.start:
        return Insight()
    start, end = whole_range.start, whole_range.end
    host = [one for one in intervals if not one.is_on_device]
    launches = {one.id: one for one in host if "Launch" in one.name and one.id}
    optimizers = [one for one in host if one.name.startswith(_OPTIMIZER)]
    seconds: dict[str, float] = defaultdict(float)
    reached = start
    for one in _in_order(intervals, start, end):
        if one.start > reached:
            _book_gap(seconds, reached, one, host, launches.get(one.id))
        ran = max(one.end - max(one.start, reached), 0.0)
        seconds[_kind(one, launches.get(one.id), optimizers)] += ran
        reached = max(reached, one.end)
    seconds["other"] += max(end - reached, 0.0)
    total = end - start
    durations = [(one.end - one.start) / 1e6 for one in kernels]
    clues: dict[str, Clue] = {
        "kernels_per_step": len(kernels) / steps,
        "kernel_seconds": median(durations),
        "short_kernel_seconds": _SHORT_KERNEL_SECONDS,
        **_copy_clues(intervals, steps),
    }
    return Insight(shares=whole({name: spent / total for name, spent in seconds.items()}), clues=clues)


def _in_order(intervals: Iterable[Interval], start: float, end: float) -> list[Interval]:
    """Return what ran on the device inside the range, by its start."""
    inside = [
        one._replace(start=max(one.start, start), end=min(one.end, end))
        for one in intervals
        if one.is_on_device and one.name != RANGE and one.end > start and one.start < end
    ]
    return sorted(inside, key=lambda one: one.start)


def _kind(one: Interval, launch: Interval | None, optimizers: Sequence[Interval]) -> str:
    if one.name.startswith("Memcpy HtoD"):
        return "transfer"
    if one.name.startswith("Memcpy DtoH"):
        return "sync_waits"
    is_optimizing = launch is not None and any(o.start <= launch.start <= o.end for o in optimizers)
    return "optimizer" if is_optimizing else "kernels"


def _book_gap(
    seconds: dict[str, float],
    start: float,
    following: Interval,
    host: Sequence[Interval],
    launch: Interval | None,
) -> None:
    """Give an idle stretch of the device to what the host was doing: loader, allocator, sync, launching."""
    end = following.start
    loading = _overlap(host, start, end, (_LOADER,))
    allocating = _overlap(host, start, end, _ALLOCATING)
    left = max(end - start - loading - allocating, 0.0)
    seconds["data_wait"] += loading
    seconds["allocator"] += min(allocating, end - start - loading)
    is_after_sync = any(one.name.startswith(_SYNCS) and start <= one.end <= end for one in host)
    if is_after_sync:
        # The host had waited for the device to run dry and began to launch again only then.
        seconds["sync_waits"] += left
    elif launch is not None and launch.start >= start:
        seconds["launch_gaps"] += left
    else:
        seconds["other"] += left


def _overlap(host: Sequence[Interval], start: float, end: float, names: tuple[str, ...]) -> float:
    inside = sorted(
        (max(one.start, start), min(one.end, end))
        for one in host
        if one.name.startswith(names) and one.end > start and one.start < end
    )
    total, reached = 0.0, start
    for low, high in inside:
        total += max(high - max(low, reached), 0.0)
        reached = max(reached, high)
    return total


def _copy_clues(intervals: Iterable[Interval], steps: int) -> dict[str, Clue]:
    """Tell pageable copies by CUPTI's own words for them: `Memcpy HtoD (Pageable -> Device)`."""
    copies = [one for one in intervals if one.is_on_device and one.name.startswith("Memcpy HtoD")]
    pageable = [one for one in copies if "Pageable" in one.name]
    if not copies:
        return {}
    return {"copies_per_step": len(copies) / steps, "pageable_copies": len(pageable) / steps}
