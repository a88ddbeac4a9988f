"""What the system counted for this process and its ended children; no guesses where it does not."""

import importlib
import time
from pathlib import Path
from typing import Any

_SCHEDSTAT = Path("/proc/thread-self/schedstat")


def page_faults() -> int:
    """Return how many pages of memory this process has fetched from the system."""
    resource = _resource()
    return 0 if resource is None else int(resource.getrusage(resource.RUSAGE_SELF).ru_minflt)


def ended_children_seconds() -> float:
    """Return the CPU seconds of children that have ended."""
    resource = _resource()
    if resource is None:
        return 0.0
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return float(used.ru_utime + used.ru_stime)


def queued_seconds() -> float | None:
    """Return how long this thread was ready to run while others had the cores, None where unknown."""
    try:
        return int(_SCHEDSTAT.read_text().split()[1]) / 1e9
    except (OSError, IndexError, ValueError):
        return None


class Stretch:
    """Time a block by the wall, by this thread's CPU, and without the time that others had the cores."""

    wall_seconds = cpu_seconds = own_seconds = 0.0

    def __enter__(self) -> "Stretch":
        self._queued = queued_seconds() or 0.0  # outside of the clocks: asking takes longer than many a block
        self._started, self._computed = time.perf_counter(), time.thread_time()
        return self

    def __exit__(self, *_: object) -> None:
        self.cpu_seconds, self.wall_seconds = (
            time.thread_time() - self._computed,
            time.perf_counter() - self._started,
        )
        waited = (queued_seconds() or 0.0) - self._queued
        self.own_seconds = max(self.wall_seconds - waited, 0.0)

    @property
    def own_share(self) -> float:
        """Return the share of the block's time that was its own."""
        return self.own_seconds / self.wall_seconds if self.wall_seconds > 0 else 1.0


def _resource() -> Any:
    try:
        return importlib.import_module("resource")
    except ModuleNotFoundError:  # Windows
        return None
