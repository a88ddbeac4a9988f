"""The CPU as a device: wall clock, process CPU time, and resident memory whose peak is reset per window."""

import contextlib
import ctypes
import gc
import itertools
import os
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from perfsuite.devices.protocol import Device, Timing, Workload
from perfsuite.devices.torch_access import compile_state, load_torch
from perfsuite.host import cpu_name, queued_seconds
from perfsuite.metrics import Tolerance
from perfsuite.records import DeviceFacts, Insight

_SIDE = 256  # of the square matrices: a product takes 0.2 ms on one core
_PRODUCTS = 5
_COPIED = 4_000_000  # floats; 16 MB do not fit into any cache
_TINY_OPERATIONS = 500
_STATUS = Path("/proc/self/status")
_CLEAR_REFS = Path("/proc/self/clear_refs")
_GROUP_LIMIT = Path("/sys/fs/cgroup/memory.max")
_DISTURBED_SHARE = 0.05
_SAMPLE_PERIOD_SECONDS = 0.05  # a sample takes some 50 µs
_RESET_PEAK = "5"  # proc(5): reset the resident high-water mark to the current size


def references() -> Mapping[str, Workload]:
    """Return the reference workloads, each of about a millisecond; none without torch."""
    torch = load_torch()
    if torch is None:
        return {}
    matrix, source, vector = torch.ones(_SIDE, _SIDE), torch.ones(_COPIED), torch.ones(8)
    return {
        "step_in_products": partial(_products, matrix),
        "step_in_copies": partial(torch.empty_like(source).copy_, source),
        "step_in_tiny_ops": partial(_tiny_operations, vector),
    }


def _products(matrix: Any) -> None:
    for _ in range(_PRODUCTS):
        matrix @ matrix


def _tiny_operations(vector: Any) -> None:
    for _ in range(_TINY_OPERATIONS):
        vector = vector + 1


class CpuDevice(Device):
    """Measure on the processor with the wall clock."""

    name = "cpu"
    clock_repeats = False  # it counts nanoseconds: many steps of exactly the same duration were not timed
    # Resident size changes by whole arenas; only growth beyond them means something.
    tolerances: Mapping[str, Tolerance] = {"peak_memory": Tolerance(0.10, 16 * 2**20)}

    def __init__(self, root: Path | None = None) -> None:
        self._root = root or Path.cwd()
        self._resident_before = resident_bytes("VmRSS")

    def facts(self) -> DeviceFacts:
        """Return the processor's name and the number of threads torch uses."""
        return DeviceFacts("cpu", cpu_name(), "perf_counter", threads=thread_count())

    def now(self) -> float:
        """Return the wall clock."""
        return time.perf_counter()

    def wait(self) -> None:
        """Return at once: CPU work is finished when the call returns."""

    def state(self) -> Hashable:
        """Return the number of compiled graphs."""
        return compile_state()

    def begin_test(self) -> None:
        """Return freed memory to the system and take the rest as zero."""
        _warm_torch()
        gc.collect()
        _trim_heap()
        self._resident_before = resident_bytes("VmRSS")

    def inspect(
        self,
        step: Callable[[], object],
        step_seconds: float,
        resident: Callable[[], object] | None = None,
    ) -> Insight:
        """Return where a step's time goes, operator by operator."""
        if load_torch() is None:
            return Insight()
        from perfsuite.devices.operator_times import inspect_step

        insight = inspect_step(resident or step, step_seconds, self._root)
        return replace(insight, clues={**insight.clues, **_memory_clues()})

    def references(self) -> Mapping[str, Workload]:
        """Return the workloads timed in turns with a step, to detect when the machine is slow."""
        return references()

    def lock_names(self, *, needs_all: bool = False) -> tuple[str, ...]:
        """Return one name: all cores together are one device."""
        del needs_all
        return ("cpu",)

    def start(self) -> "CpuWindow":
        """Reset the resident peak and start the clock."""
        return CpuWindow(self._resident_before)


class CpuWindow:
    """A window on the wall clock."""

    def __init__(self, resident_before: int | None) -> None:
        self._resident_before = resident_before
        self._peak_was_reset = reset_resident_peak()
        self._series: list[tuple[float, float, int]] = []  # wall, CPU seconds, resident bytes
        self._next_sample = 0.0
        self._marks = [time.perf_counter()]  # the clock runs from here
        self._cpu_start = time.process_time()
        self._queued_start = queued_seconds()

    def mark(self) -> None:
        """Record the end of a step and, every 50 ms, a sample of CPU time and resident memory."""
        now = time.perf_counter()
        self._marks.append(now)
        if now >= self._next_sample:
            self._next_sample = now + _SAMPLE_PERIOD_SECONDS
            self._series.append((now, time.process_time(), resident_bytes("VmRSS") or 0))

    def known(self) -> Sequence[float]:
        """Return all steps: on the CPU none is outstanding."""
        return self._steps()

    def stop(self) -> Timing:
        """Read CPU time and peak memory."""
        wall = time.perf_counter() - self._marks[0]
        busy = time.process_time() - self._cpu_start
        queued = _difference(queued_seconds(), self._queued_start)
        peak = resident_bytes("VmHWM") if self._peak_was_reset else None
        before = self._resident_before
        growth = None if peak is None or before is None else float(max(peak - before, 0))
        notes = [] if growth is not None else ["peak_memory: needs Linux's /proc"]
        if queued is not None and wall > 0 and queued / wall > _DISTURBED_SHARE:
            notes.append(
                f"other processes kept this one from a core for {100 * queued / wall:.0f} % of the time"
            )
        # Clock ticks are coarser than short windows; a share above 1 is rounding.
        share = min(busy / (wall * thread_count()), 1.0) if wall > 0 else None
        reported = {} if queued is None else {"queued_seconds": queued}
        figures = {} if share is None else {"utilization": share}
        if growth is not None:
            figures["peak_memory"] = growth
        return Timing(
            self._steps(),
            wall,
            figures,
            reported,
            tuple(notes),
            series=tuple(
                min((cpu - before) / ((now - earlier) * thread_count()), 1.0)
                for (earlier, before, _), (now, cpu, _) in itertools.pairwise(self._series)
            ),
            memory_series=tuple(float(resident) for _, _, resident in self._series if resident),
        )

    def close(self) -> None:
        """Do nothing: no background work runs."""

    def _steps(self) -> tuple[float, ...]:
        return tuple(after - before for before, after in zip(self._marks, self._marks[1:], strict=False))


def _memory_clues() -> dict[str, float]:
    """Return the memory this process holds and the most it could hold."""
    import psutil

    held = resident_bytes("VmRSS")
    if held is None:
        return {}
    capacity = held + psutil.virtual_memory().available
    with contextlib.suppress(OSError, ValueError):  # no control group, or one without a limit
        capacity = min(capacity, int(_GROUP_LIMIT.read_text()))
    return {"resident_bytes": float(held), "memory_capacity_bytes": float(capacity)}


def thread_count() -> int:
    """Return the number of torch's threads; without torch, of the cores this process may use."""
    torch = load_torch()
    if torch is not None:
        return int(torch.get_num_threads())
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def resident_bytes(field: str) -> int | None:
    """Return VmRSS or VmHWM of this process; None where the system does not report it."""
    try:
        text = _STATUS.read_text()
    except OSError:
        return None
    for line in text.splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) * 1024
    return None


def _difference(after: float | None, before: float | None) -> float | None:
    return None if after is None or before is None else after - before


def reset_resident_peak() -> bool:
    """Reset the high-water mark to the current size; return whether the system did."""
    try:
        _CLEAR_REFS.write_text(_RESET_PEAK)
    except OSError:
        return False
    return True


def _trim_heap() -> None:
    # glibc keeps freed arenas; without this a test would be credited with its predecessor's memory.
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL("libc.so.6").malloc_trim(0)


def _warm_torch() -> None:
    """Let torch make its one-time allocations (thread pools, autograd) before a test is charged for them."""
    torch = load_torch()
    if torch is None:
        return
    weight = torch.ones(64, 64, requires_grad=True)
    (torch.ones(64, 64) @ weight).sum().backward()
