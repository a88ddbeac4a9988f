"""Give pytest-benchmark's fixture a clock that waits for the accelerator, and its memory and utilization."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from perfsuite.devices import Device, Timing
from perfsuite.metrics import METRICS
from perfsuite.records import Reading
from perfsuite.statistics import median


@dataclass
class Watched:
    """What became of a test's benchmark fixture."""

    is_measured: bool = False
    reading: Reading | None = None


@contextmanager
def watched(item: Any, device: Device) -> Iterator[Watched]:
    """Watch a test that uses the benchmark fixture; do nothing to any other."""
    fixture = getattr(item, "funcargs", {}).get("benchmark")
    seen = Watched()
    # A modelled device has no clock to lend: the fixture's own would be passed off as the card's.
    if (
        device.modelled
        or fixture is None
        or not hasattr(fixture, "extra_info")
        or not hasattr(fixture, "_timer")
    ):
        yield seen
        return
    if device.is_accelerator:
        fixture._timer = waiting_clock(device)
    window = device.start()
    try:
        yield seen
        timing = window.stop()
    finally:
        window.close()
    if fixture.stats is None:
        return
    seen.is_measured = True
    fixture.extra_info["device"] = device.name
    for name in ("utilization", "peak_memory"):
        value = getattr(timing, METRICS[name].field)
        if value is not None:
            fixture.extra_info[METRICS[name].field] = value
    seen.reading = _reading(fixture, timing, device)


def waiting_clock(device: Device) -> Callable[[], float]:
    """Return a clock that is read only when the device has nothing left to do."""

    def now() -> float:
        device.wait()  # the CPU waits here, twice per round
        return device.now()

    return now


def _reading(fixture: Any, timing: Timing, device: Device) -> Reading:
    data = tuple(fixture.stats.stats.data)
    return Reading(
        name="benchmark",
        kind="benchmark",
        device=device.name,
        modelled=device.modelled,
        steps=len(data),
        warmup_steps=0,
        samples=len(data),
        wall_seconds=sum(data),
        rounds=data,
        samples_per_s=len(data) / sum(data) if sum(data) > 0 else None,
        step_seconds=median(data),
        utilization=timing.utilization,
        peak_memory_bytes=timing.peak_memory_bytes,
        reported=timing.reported,
        notes=timing.notes,
        utilization_swing=timing.utilization_swing,
        idle_stretch_seconds=timing.idle_stretch_seconds,
        invalid=timing.invalid,
        conditions=timing.conditions,
    )
