"""Does a measurement count? Its own reasons not to, and conditions that differ from the baseline's; pure."""

from collections.abc import Mapping
from typing import NamedTuple

from perfsuite.records import Outcome, Reading, Verdict

_CROWDED_SHARE = 0.2  # from here on steps take as long as others let them


class Condition(NamedTuple):
    """One circumstance that two readings must share before they are compared."""

    label: str
    unit: str
    relative: float = 0.0  # how far it may differ
    absolute: float = 0.0


# What is not in this table is stored and told, never demanded.
CONDITIONS: Mapping[str, Condition] = {
    "sm_clock_mhz": Condition("the SM clock under load", "MHz", relative=0.05),
    "memory_clock_mhz": Condition("the memory clock under load", "MHz", relative=0.05),
    "max_sm_clock_mhz": Condition("the highest SM clock", "MHz"),
    "power_limit_watts": Condition("the power limit", "W", absolute=1.0),
    "power_cap_share": Condition("the share of time at the power limit", "", absolute=0.5),
    "mig": Condition("MIG mode", ""),
}


def faults(reading: Reading, stored: Mapping[str, float]) -> tuple[str, ...]:
    """Return why a reading does not count, the baseline's conditions in hand."""
    arms = (reading, *((reading.without,) if reading.without else ()))
    own = dict.fromkeys(reason for arm in arms for reason in arm.invalid)  # each once, in order
    return (*own, *differing(reading.conditions, stored))


def crowded(reading: Reading) -> tuple[str, ...]:
    """Return why a time of the CPU is no base for a comparison: for long stretches others had its cores.

    Not asked of readings that start processes themselves: ranks and loader workers share cores by design.
    """
    is_alone = reading.kind in ("step", "loop") and not reading.ranks
    is_alone = is_alone and not reading.reported.get("num_workers")
    share = reading.reported.get("queued_seconds", 0.0) / (reading.wall_seconds or 1.0)
    if not is_alone or share <= _CROWDED_SHARE:
        return ()
    return (
        f"other processes had the cores for {100 * share:.0f} % of the time; quieten the machine, or measure "
        "with fewer threads (OMP_NUM_THREADS=1)",
    )


def differing(now: Mapping[str, float], stored: Mapping[str, float]) -> tuple[str, ...]:
    """Return the conditions that are not as they were; one known on one side only is no difference."""
    told = []
    for name, condition in CONDITIONS.items():
        if name not in now or name not in stored:
            continue
        allowed = max(condition.relative * stored[name], condition.absolute)
        if abs(now[name] - stored[name]) > allowed:
            unit = f" {condition.unit}" if condition.unit else ""
            told.append(
                f"{condition.label} is {now[name]:.4g}{unit}, the baseline was taken at "
                f"{stored[name]:.4g}{unit}"
            )
    return tuple(told)


def invalid_verdict(reading: Reading, reasons: tuple[str, ...]) -> Verdict:
    """Return the one verdict of a reading that does not count."""
    return Verdict(reading.name, Outcome.INVALID, None, reason="; ".join(reasons))
