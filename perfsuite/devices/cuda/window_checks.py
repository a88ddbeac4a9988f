"""Check a window by snapshots of the card: memory, clocks, throttling."""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from perfsuite.devices.cuda.card import POWER_BRAKE, POWER_CAP, SLOWDOWN, THERMAL, Card, Memory
from perfsuite.statistics import median
from perfsuite.units import Unit, show

_MAX_THROTTLED = 0.01  # share of a window that may be throttled; beyond it, the window does not count
_MIN_BUSY_SNAPSHOTS = 3
_CAUSES = {"thermal": (THERMAL, "too hot"), "power_brake": (POWER_BRAKE, "power brake")}
_MIN_FREE_SHARE = 0.5  # of the card; what this run's processes hold counts as free


class Snapshot(NamedTuple):
    """The card's state at one moment; None is what it did not report."""

    memory: Memory | None = None
    reasons: int | None = None
    sm_clock: float | None = None
    memory_clock: float | None = None
    temperature: float | None = None
    power: float | None = None
    is_busy: bool = True


@dataclass(frozen=True)
class WindowSummary:
    """A window's figures, its conditions, notes, and the reasons why it does not count."""

    reported: Mapping[str, float] = field(default_factory=dict)
    conditions: Mapping[str, float] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    invalid: tuple[str, ...] = ()
    memory: tuple[float, ...] = ()  # bytes used at each snapshot


def summarise(snapshots: Sequence[Snapshot], counted: Mapping[str, float], seconds: float) -> WindowSummary:
    """Summarise a window's snapshots and the throttling counters' growth."""
    throttled = {cause: _throttled(snapshots, counted, cause, seconds) for cause in _CAUSES}
    cap = _capped(snapshots, counted, seconds)
    memories = [snapshot.memory for snapshot in snapshots if snapshot.memory]
    reported = {
        **_most("device_used_bytes", [memory.used for memory in memories]),
        **_most("device_reserved_bytes", [memory.reserved for memory in memories if memory.reserved]),
        **_most("temperature_max", [snapshot.temperature for snapshot in snapshots]),
        **_most("power_max_watts", [snapshot.power for snapshot in snapshots]),
        **{f"{cause}_seconds": value for cause, value in throttled.items() if value is not None},
    }
    notes = () if cap is None or cap <= _MAX_THROTTLED else (f"at its power limit for {100 * cap:.0f} %",)
    invalid = [
        f"throttled for {value:.1f} s of {seconds:.1f} s ({_CAUSES[cause][1]})"
        for cause, value in throttled.items()
        if value is not None and value > _MAX_THROTTLED * seconds
    ]
    return WindowSummary(
        reported,
        {**_clocks(snapshots), **({} if cap is None else {"power_cap_share": cap})},
        notes,
        (*invalid, *_slowed(snapshots)),
        tuple(float(memory.used) for memory in memories),
    )


def _throttled(
    snapshots: Sequence[Snapshot], counted: Mapping[str, float], cause: str, seconds: float
) -> float | None:
    """Return the seconds throttled: counted by the driver, else estimated from the snapshots."""
    return counted[cause] if cause in counted else _estimated(snapshots, _CAUSES[cause][0], seconds)


def _capped(snapshots: Sequence[Snapshot], counted: Mapping[str, float], seconds: float) -> float | None:
    spent = counted.get("power_cap", _estimated(snapshots, POWER_CAP, seconds))
    return None if spent is None or seconds <= 0 else min(spent / seconds, 1.0)


def _estimated(snapshots: Sequence[Snapshot], bits: int, seconds: float) -> float | None:
    known = [snapshot.reasons for snapshot in snapshots if snapshot.reasons is not None]
    return seconds * sum(bool(reasons & bits) for reasons in known) / len(known) if known else None


def _slowed(snapshots: Sequence[Snapshot]) -> tuple[str, ...]:
    """Detect a lasting hardware slowdown: a single snapshot may have hit a mere change of clocks."""
    known = [snapshot.reasons for snapshot in snapshots if snapshot.reasons is not None]
    bits = [reasons & (SLOWDOWN | THERMAL | POWER_BRAKE) for reasons in known]
    lasts = any(earlier == SLOWDOWN == later for earlier, later in itertools.pairwise(bits))
    return ("the hardware slowed its clocks down",) if lasts else ()


def _clocks(snapshots: Sequence[Snapshot]) -> Mapping[str, float]:
    """Return the clocks under load: an idle card clocks down, which says nothing about the window."""
    busy = [snapshot for snapshot in snapshots if snapshot.is_busy]
    clocks: dict[str, float] = {}
    for name in ("sm_clock", "memory_clock"):
        values = [value for snapshot in busy if (value := getattr(snapshot, name)) is not None]
        if len(values) >= _MIN_BUSY_SNAPSHOTS:
            clocks[f"{name}_mhz"] = median(values)
            if name == "sm_clock":
                clocks["sm_clock_moved_mhz"] = max(values) - min(values)
    return clocks


def _most(name: str, values: Sequence[float | None]) -> Mapping[str, float]:
    known = [value for value in values if value is not None]
    return {name: max(known)} if known else {}


def check_before(card: Card, own_bytes: float) -> WindowSummary:
    """Check a card before a measurement; `own_bytes` is what this run has reserved on it."""
    persistent, sliced, limit = card.is_persistent(), card.is_sliced(), card.power_limit()
    conditions = {
        "power_limit_watts": limit,
        "max_sm_clock_mhz": card.max_sm_clock(),
        "mig": None if sliced is None else float(sliced),
    }
    notes = []
    if persistent is False:
        notes.append("persistence mode is off: the driver may unload between runs (nvidia-smi -pm 1)")
    if sliced:
        notes.append("MIG is on: NVML reports no utilization of a slice, and its memory is the slice's")
    crowded = _crowded(card.memory(), own_bytes)
    return WindowSummary(
        conditions={name: value for name, value in conditions.items() if value is not None},
        notes=tuple(notes),
        invalid=(crowded,) if crowded else (),
    )


def _crowded(memory: Memory | None, own_bytes: float) -> str:
    """Return a reason if other processes hold most of the card's memory."""
    if memory is None or memory.total <= 0 or memory.free + own_bytes >= _MIN_FREE_SHARE * memory.total:
        return ""
    free, total = show(memory.free, Unit.BYTES), show(memory.total, Unit.BYTES)
    return f"only {free} of the GPU's {total} are free, and this run holds {show(own_bytes, Unit.BYTES)}"
