"""Observe a loader while it is measured: its settings, its workers' CPU time, the cost of single samples."""

import math
import os
import time
from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from perfsuite.host import Stopwatch, ended_children_seconds
from perfsuite.records import Clue
from perfsuite.statistics import mean, median

WAIT_WORTH_CHECKING = 0.05  # share of the time spent waiting for data; below it the loader is fine
# Enough samples, timed for long enough that the CPU clock separates computing from waiting.
_ENOUGH_SAMPLES, _ENOUGH_SECONDS = 64, 0.02
_MAX_SAMPLES, _MAX_SECONDS = 10_000, 1.0
_MAX_CHECKED = 8  # on a busy machine other processes disturb several of some dozens of samples
_QUOTA = Path("/sys/fs/cgroup/cpu.max")

# Errors a step may raise when it gets the same batch again; then there is no rerun, and no proof.
RERUN_ERRORS = (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError)


class Waits(Protocol):
    """The counters of a feed."""

    batches: int
    epochs: int
    waited_seconds: float
    epoch_waited_seconds: float


@dataclass(frozen=True)
class Effort:
    """CPU time and bytes read by the children of this process so far."""

    cpu_seconds: float
    read_bytes: float


class LoaderWatch:
    """Record what the loader's workers do after begin()."""

    def __init__(self, loader: object) -> None:
        self._loader: Any = loader
        self._workers = _whole_number(getattr(loader, "num_workers", 0))
        self._before = Effort(0.0, 0.0)

    def begin(self) -> None:
        """Count the workers' effort from now on."""
        if self._workers:
            self._before = _children()

    def clues(self, waits: Waits, wall_seconds: float) -> dict[str, Clue]:
        """Return the loader's settings and how well it kept up with the steps."""
        loader = self._loader
        clues: dict[str, Clue] = {
            "num_workers": float(self._workers),
            "prefetch_factor": float(_whole_number(getattr(loader, "prefetch_factor", 0))),
            "persistent_workers": float(bool(getattr(loader, "persistent_workers", False))),
            "cores": float(usable_cores()),
        }
        if waits.epochs and waits.waited_seconds > 0:
            clues["epochs"] = float(waits.epochs)
            clues["epoch_steps"] = float(_length(loader) or waits.batches / waits.epochs)
            clues["epoch_seconds"] = wall_seconds / waits.epochs
            clues["epoch_wait_share"] = waits.epoch_waited_seconds / waits.waited_seconds
        if self._workers and wall_seconds > 0:
            now = _children()
            spent = max(now.cpu_seconds - self._before.cpu_seconds, 0.0)
            clues["worker_cpu_share"] = spent / (wall_seconds * min(self._workers, usable_cores()))
            clues["worker_read_bytes_per_s"] = max(now.read_bytes - self._before.read_bytes, 0) / wall_seconds
        return clues


def sample_clues(loader: Any) -> dict[str, Clue]:
    """Time a few samples in this process, because workers hide their cost; empty for plain iterables."""
    dataset, sampler = getattr(loader, "dataset", None), getattr(loader, "batch_sampler", None)
    if dataset is None or sampler is None or not hasattr(dataset, "__getitem__"):
        return {}
    collate: Callable[[Any], Any] = getattr(loader, "collate_fn", None) or (lambda samples: samples)
    wall: list[float] = []
    order: list[Any] = []
    cpu = unqueued = collated = 0.0
    batches = size = 0
    for indices in sampler:
        batch = list(indices)
        samples = []
        with Stopwatch() as making:
            for index in batch:
                started = time.perf_counter()
                samples.append(dataset[index])
                wall.append(time.perf_counter() - started)
        cpu, unqueued = cpu + making.cpu_seconds, unqueued + making.unqueued_seconds
        order += batch
        started = time.perf_counter()
        collate(samples)
        collated += time.perf_counter() - started
        batches, size = batches + 1, size + len(batch)
        spent = math.fsum(wall)
        if spent > _MAX_SECONDS or (len(wall) >= _ENOUGH_SAMPLES and spent > _ENOUGH_SECONDS):
            break
        if len(wall) >= _MAX_SAMPLES:
            break
    if not wall:
        return {}
    _time_slowest_again(dataset, order, wall)
    total = math.fsum(wall)
    if total <= 0:
        return {}
    return {
        "batch_seconds": mean(wall) * size / batches + collated / batches,
        "sample_seconds": median(wall),
        "slowest_sample_seconds": max(wall),
        "slowest_sample_share": max(wall) / total,
        # Waiting for a core is not waiting for data: on a busy machine a sample that computes takes longer,
        # but it still only computes.
        "sample_cpu_share": cpu / max(unqueued, cpu) if cpu > 0 else 0.0,
        "samples_timed": float(len(wall)),
    }


def _time_slowest_again(dataset: Any, order: Sequence[Any], wall: list[float]) -> None:
    """Time the slowest samples again: one that is slow again is slow, the others were disturbed."""
    checked: set[int] = set()
    while (slowest := wall.index(max(wall))) not in checked and len(checked) < _MAX_CHECKED:
        checked.add(slowest)
        wall[slowest] = min(wall[slowest], *(_seconds_of(dataset, order[slowest]) for _ in range(2)))


def _seconds_of(dataset: Any, index: Any) -> float:
    started = time.perf_counter()
    dataset[index]
    return time.perf_counter() - started


def shallow_copy(batch: Any) -> Any:
    """Return a batch that a step may take apart without changing it for the next step."""
    return copy(batch) if isinstance(batch, dict | list) else batch


def usable_cores() -> int:
    """Return the number of cores this process may use, by affinity and the cgroup's quota."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        quota, period = _QUOTA.read_text().split()
        return max(1, min(cores, math.ceil(int(quota) / int(period))))
    except (OSError, ValueError):  # no cgroup, or no quota set
        return cores


def _children() -> Effort:
    import psutil

    cpu, read = ended_children_seconds(), 0.0
    for child in psutil.Process().children(recursive=True):
        try:
            times = child.cpu_times()
            cpu += times.user + times.system
            read += child.io_counters().read_bytes if hasattr(child, "io_counters") else 0
        except psutil.Error:  # it has ended in the meantime
            continue
    return Effort(cpu, read)


def _length(loader: Any) -> int:
    try:
        return len(loader)
    except TypeError:  # an endless loader, or one without a length
        return 0


def _whole_number(value: object) -> int:
    return value if isinstance(value, int) else 0
