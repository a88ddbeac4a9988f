"""What regular looks at a card say about a window: memory, clocks, throttling, company; pure."""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from perfsuite.devices.cuda.card import POWER_BRAKE, POWER_CAP, SLOWDOWN, THERMAL, Memory, Process
from perfsuite.processes.family import Kin
from perfsuite.statistics import median

_MAX_THROTTLED = 0.01  # share of a window that may be throttled before it no longer counts
_MIN_BUSY_LOOKS = 3
_CAUSES = {"thermal": (THERMAL, "too hot"), "power_brake": (POWER_BRAKE, "power brake")}


class Look(NamedTuple):
    """One look at the card; None is what it did not tell."""

    memory: Memory | None = None
    processes: tuple[Process, ...] | None = None
    reasons: int | None = None
    sm_clock: float | None = None
    memory_clock: float | None = None
    temperature: float | None = None
    power: float | None = None
    is_busy: bool = True


@dataclass(frozen=True)
class Seen:
    """The figures of a window, what was different from other windows, and what makes it worthless."""

    reported: Mapping[str, float] = field(default_factory=dict)
    conditions: Mapping[str, float] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    invalid: tuple[str, ...] = ()
    memory: tuple[float, ...] = ()  # bytes used at each look


def summarise(
    looks: Sequence[Look],
    counted: Mapping[str, float],
    seconds: float,
    *,
    kin: Kin | None = None,
) -> Seen:
    """Read a window's looks and the throttling counters' growth over it; `kin` are our own processes."""
    throttled = {cause: _throttled(looks, counted, cause, seconds) for cause in _CAUSES}
    cap = _capped(looks, counted, seconds)
    reported = {
        **_most("device_used_bytes", [look.memory.used for look in looks if look.memory]),
        **_most("device_reserved_bytes", [m.reserved for look in looks if (m := look.memory) and m.reserved]),
        **_most("temperature_max", [look.temperature for look in looks]),
        **_most("power_max_watts", [look.power for look in looks]),
        **{f"{cause}_seconds": value for cause, value in throttled.items() if value is not None},
    }
    notes = () if cap is None or cap <= _MAX_THROTTLED else (f"at its power limit for {100 * cap:.0f} %",)
    invalid = [
        f"throttled for {value:.1f} s of {seconds:.1f} s ({_CAUSES[cause][1]})"
        for cause, value in throttled.items()
        if value is not None and value > _MAX_THROTTLED * seconds
    ]
    return Seen(
        reported,
        {**_clocks(looks), **({} if cap is None else {"power_cap_share": cap})},
        notes,
        (*invalid, *_slowed(looks), *_company(looks, kin)),
        tuple(float(look.memory.used) for look in looks if look.memory),
    )


def _throttled(
    looks: Sequence[Look], counted: Mapping[str, float], cause: str, seconds: float
) -> float | None:
    """Return the seconds throttled: counted by the driver, else estimated from the looks."""
    return counted[cause] if cause in counted else _estimated(looks, _CAUSES[cause][0], seconds)


def _capped(looks: Sequence[Look], counted: Mapping[str, float], seconds: float) -> float | None:
    spent = counted.get("power_cap", _estimated(looks, POWER_CAP, seconds))
    return None if spent is None or seconds <= 0 else min(spent / seconds, 1.0)


def _estimated(looks: Sequence[Look], bits: int, seconds: float) -> float | None:
    told = [look.reasons for look in looks if look.reasons is not None]
    return seconds * sum(bool(reasons & bits) for reasons in told) / len(told) if told else None


def _slowed(looks: Sequence[Look]) -> tuple[str, ...]:
    """Tell a hardware slowdown that lasts: a single look may have hit a mere change of clocks."""
    bits = [look.reasons & (SLOWDOWN | THERMAL | POWER_BRAKE) for look in looks if look.reasons is not None]
    lasts = any(one == SLOWDOWN == other for one, other in itertools.pairwise(bits))
    return ("the hardware slowed its clocks down",) if lasts else ()


def _company(looks: Sequence[Look], kin: Kin | None) -> tuple[str, ...]:
    """Tell processes that came after the first look; who was there before is told before the window."""
    if kin is None or not looks:
        return ()
    counts = [foreigners(look.processes or (), kin) for look in looks]
    arrived = max(counts) - counts[0]
    if not arrived:
        return ()
    who = "another process" if arrived == 1 else f"{arrived} other processes"
    return (f"{who} came to the GPU during the measurement",)


def foreigners(processes: Sequence[Process], kin: Kin) -> int:
    """Return how many processes are beyond our own; ids of another namespace can only be counted."""
    strangers = [process for process in processes if not kin.includes(process.pid)]
    is_visible = len(strangers) < len(processes)
    return len(strangers) if is_visible else max(len(strangers) - kin.size, 0)


def _clocks(looks: Sequence[Look]) -> Mapping[str, float]:
    """Return the clocks under load: an idle card clocks down and says nothing about the window."""
    busy = [look for look in looks if look.is_busy]
    found: dict[str, float] = {}
    for name in ("sm_clock", "memory_clock"):
        values = [value for look in busy if (value := getattr(look, name)) is not None]
        if len(values) >= _MIN_BUSY_LOOKS:
            found[f"{name}_mhz"] = median(values)
            if name == "sm_clock":
                found["sm_clock_moved_mhz"] = max(values) - min(values)
    return found


def _most(name: str, values: Sequence[float | None]) -> Mapping[str, float]:
    told = [value for value in values if value is not None]
    return {name: max(told)} if told else {}
