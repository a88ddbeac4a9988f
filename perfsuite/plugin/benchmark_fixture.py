"""Extend pytest-benchmark's fixture: a clock that waits for the accelerator, memory and utilization."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from perfsuite.devices.protocol import Device, Timing
from perfsuite.records import Reading
from perfsuite.statistics import median

_EXTRA_INFO = {
    "utilization": "utilization",
    "peak_memory": "peak_memory_bytes",
}  # metric → key in the JSON
_SECOND_ROUND = 3  # the clock's call that begins it


@dataclass
class Watched:
    """The measurement of a test's benchmark fixture."""

    is_measured: bool = False
    reading: Reading | None = None


@contextmanager
def watched(item: Any, device: Device) -> Iterator[Watched]:
    """Watch a test that uses the benchmark fixture; do nothing to any other."""
    fixture = getattr(item, "funcargs", {}).get("benchmark")
    watch = Watched()
    # A modelled device has no clock: the fixture's host timings would be taken for the card's.
    if (
        device.modelled
        or fixture is None
        or not hasattr(fixture, "extra_info")
        or not hasattr(fixture, "_timer")
    ):
        yield watch
        return
    rounds = Rounds(device)
    if device.is_accelerator:
        fixture._timer = rounds.now
    try:
        yield watch
        timing = rounds.window.stop()
    finally:
        rounds.window.close()
    if fixture.stats is None:
        return
    watch.is_measured = True
    fixture.extra_info["device"] = device.name
    for name, key in _EXTRA_INFO.items():
        if name in timing.figures:
            fixture.extra_info[key] = timing.figures[name]
    watch.reading = _reading(fixture, timing, device)


class Rounds:
    """The clock of the fixture's rounds, and the window around them."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._calls = 0
        self.window = device.start()

    def now(self) -> float:
        """Wait until the device is idle, then read its clock; called before and after each round."""
        self._device.wait()  # the CPU waits here, twice per round
        self._calls += 1
        if self._calls == _SECOND_ROUND:
            # The first round also allocates and compiles: a warm-up, if others follow.
            self.window.close()
            self.window = self._device.start()
        return self._device.now()


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
        figures={
            **timing.figures,
            "step_time": median(data),
            **({"samples_per_s": len(data) / sum(data)} if sum(data) > 0 else {}),
        },
        is_accelerator=device.is_accelerator,
        reported=timing.reported,
        notes=timing.notes,
        invalid=timing.invalid,
        conditions=timing.conditions,
    )
