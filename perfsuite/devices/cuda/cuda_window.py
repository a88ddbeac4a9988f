"""A measured window on a CUDA device: events on the current stream, and nothing that waits before its end."""

import time
from collections.abc import Mapping, Sequence
from typing import Any

from perfsuite.devices import Timing
from perfsuite.devices.cuda.sampler import Sampler
from perfsuite.devices.torch_access import compile_state

# Events of one stream that do not add up to the wall time: work runs on other streams.
_STREAM_MISMATCH = 0.02


class CudaWindow:
    """Events on the current stream; nothing waits before stop."""

    def __init__(self, torch: Any, index: int, sampler: Sampler, notes: tuple[str, ...] = ()) -> None:
        self._torch = torch
        self._index = index
        self._sampler = sampler
        self._notes = notes
        self._before = self._counters()
        self._sampler.start()
        self._events: list[Any] = []
        self._seconds: list[float] = []
        self._wall_start = time.perf_counter()  # the clock runs from here
        self._record()

    def _record(self) -> None:
        event = self._torch.cuda.Event(enable_timing=True)
        event.record()
        self._events.append(event)

    def mark(self) -> None:
        """Record an event behind the step's work."""
        self._record()

    def known(self) -> Sequence[float]:
        """Return the steps whose events have completed; asks, never waits."""
        while (last := len(self._seconds) + 1) < len(self._events) and self._events[last].query():
            self._seconds.append(self._events[last - 1].elapsed_time(self._events[last]) / 1e3)
        return self._seconds

    def stop(self) -> Timing:
        """Wait once, then read all events, the allocator and NVML."""
        self._torch.cuda.synchronize(self._index)  # the CPU waits here, once per window
        wall = time.perf_counter() - self._wall_start
        grown = {name: count - self._before[name] for name, count in self._counters().items()}
        sampled = self._sampler.stop()
        steps = tuple(self.known())
        series, seen = sampled.utilization, sampled.seen
        advice = f" (--perf-min-time={series.needed_seconds}s)" if series.needed_seconds else ""
        absent = (f"utilization: {series.why}{advice}",) if series.why else ()
        reported = {
            "reserved_memory_bytes": float(self._torch.cuda.max_memory_reserved(self._index)),
            "alloc_retries": float(grown["alloc_retries"]),
            "device_allocations": float(grown["device_allocations"]),
            **({} if series.period_s is None else {"utilization_period_seconds": series.period_s}),
            **seen.reported,
        }
        return Timing(
            steps,
            wall,
            series.mean,
            float(self._torch.cuda.max_memory_allocated(self._index)),
            reported,
            (*absent, *self._notes, *seen.notes, *_streams(steps, wall)),
            utilization_swing=series.swing,
            idle_stretch_seconds=series.idle_stretch_s,
            invalid=(*seen.invalid, *unsteady(grown)),
            conditions=seen.conditions,
            series=series.points(),
            memory_series=seen.memory,
        )

    def close(self) -> None:
        """End the sampler without touching the device: after a failed step it may be unusable."""
        self._sampler.stop()

    def _counters(self) -> dict[str, int]:
        stats = self._torch.cuda.memory_stats(self._index)
        return {
            "alloc_retries": int(stats.get("num_alloc_retries", 0)),
            "device_allocations": int(stats.get("num_device_alloc", 0)),
            "compilations": sum(compile_state()),
        }


def unsteady(grown: Mapping[str, int]) -> tuple[str, ...]:
    """Say what happened inside the window that belongs into the warm-up; a repetition often cures it."""
    told = {
        "alloc_retries": "the allocator ran out of memory and retried {} times in the measured part",
        "device_allocations": "the allocator asked the driver for memory {} times in the measured part",
        "compilations": "something was compiled in the measured part ({} graphs and frames)",
    }
    return tuple(words.format(grown[name]) for name, words in told.items() if grown[name] > 0)


def _streams(steps: Sequence[float], wall: float) -> tuple[str, ...]:
    """Say when the current stream's events do not explain the wall time."""
    total = sum(steps)
    if not steps or wall <= 0 or abs(total - wall) / wall <= _STREAM_MISMATCH:
        return ()
    return (f"events add up to {total:.3f} s of {wall:.3f} s wall time: work may run on other streams",)
