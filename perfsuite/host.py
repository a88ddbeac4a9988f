"""The host: its processor's name, and the CPU time, page faults and queueing of this process."""

import importlib
import platform
import re
import subprocess
import time
from functools import cache
from pathlib import Path
from typing import Any

_SCHEDSTAT = Path("/proc/thread-self/schedstat")


@cache
def cpu_name() -> str:
    """Return the processor's name without trademark signs and clock speed."""
    raw = _from_proc() or _from_sysctl() or platform.processor() or platform.machine() or "unknown"
    return " ".join(re.sub(r"\((R|TM|tm)\)|@.*$| CPU| Processor", "", raw).split())


def _from_proc() -> str | None:
    try:
        text = Path("/proc/cpuinfo").read_text(errors="replace")
    except OSError:
        return None
    match = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    return match[1] if match else None


def _from_sysctl() -> str | None:
    if platform.system() != "Darwin":
        return None
    try:
        completed = subprocess.run(
            ["sysctl", "-n", "machdep.cpu.brand_string"],
            capture_output=True,
            text=True,
            timeout=5,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return completed.stdout.strip() or None


def page_faults() -> int:
    """Return how many memory pages the system has given this process (minor page faults)."""
    resource = _resource()
    return 0 if resource is None else int(resource.getrusage(resource.RUSAGE_SELF).ru_minflt)


def ended_children_seconds() -> float:
    """Return the CPU seconds of child processes that have ended."""
    resource = _resource()
    if resource is None:
        return 0.0
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return float(used.ru_utime + used.ru_stime)


def queued_seconds() -> float | None:
    """Return how long this thread was ready to run but waited for a core, None where unknown."""
    try:
        return int(_SCHEDSTAT.read_text().split()[1]) / 1e9
    except (OSError, IndexError, ValueError):
        return None


class Stopwatch:
    """Time a block: wall time, CPU time of this thread, and wall time without waiting for a core."""

    wall_seconds = cpu_seconds = unqueued_seconds = 0.0

    def __enter__(self) -> "Stopwatch":
        self._queued = queued_seconds() or 0.0  # read outside the clocks: it takes longer than many blocks
        self._started, self._computed = time.perf_counter(), time.thread_time()
        return self

    def __exit__(self, *_: object) -> None:
        self.cpu_seconds, self.wall_seconds = (
            time.thread_time() - self._computed,
            time.perf_counter() - self._started,
        )
        waited = (queued_seconds() or 0.0) - self._queued
        # Part of this wait lies before and after the clocks. Subtracted from a short block it could leave
        # nothing, although the block was computing: its CPU time is the least it can have taken.
        self.unqueued_seconds = max(self.wall_seconds - waited, min(self.cpu_seconds, self.wall_seconds))

    @property
    def unqueued_share(self) -> float:
        """Return the share of the wall time in which the block did not wait for a core."""
        return self.unqueued_seconds / self.wall_seconds if self.wall_seconds > 0 else 1.0


def _resource() -> Any:
    try:
        return importlib.import_module("resource")
    except ModuleNotFoundError:  # Windows
        return None
