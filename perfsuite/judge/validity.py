"""Decide whether a measurement is valid: by itself, and under the baseline's conditions; pure."""

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from perfsuite.metrics import Kind, primary_metric
from perfsuite.records import Baseline, CardMatch, Outcome, Reading, Verdict
from perfsuite.units import show

_CROWDED_SHARE = 0.2  # above this, other processes decide how long a step takes
_CAPPED = 0.01  # share of the window at the power limit from which on clocks follow the load
_IN_TURNS: Kind = "comparison"  # its variants run under the same conditions, whatever these are
_COLLAPSED = 20.0  # times faster than the baseline: the step did not get faster, it lost its work


class Condition(NamedTuple):
    """One circumstance that two readings must share before they are compared."""

    label: str
    unit: str
    relative: float = 0.0  # how far it may differ
    absolute: float = 0.0
    follows_load: bool = False  # at the power limit: then it is a result of the code, not a circumstance


# Conditions that are not in this table are stored and reported, but never required.
CONDITIONS: Mapping[str, Condition] = {
    "sm_clock_mhz": Condition("the SM clock under load", "MHz", relative=0.05, follows_load=True),
    "memory_clock_mhz": Condition("the memory clock under load", "MHz", relative=0.05, follows_load=True),
    "max_sm_clock_mhz": Condition("the highest SM clock", "MHz"),
    "power_limit_watts": Condition("the power limit", "W", absolute=1.0),
    "power_cap_share": Condition("the share of time at the power limit", "", absolute=0.5, follows_load=True),
    "mig": Condition("MIG mode", ""),
}


def faults(reading: Reading, baseline: Baseline) -> tuple[str, ...]:
    """Return why a reading does not count: by itself, or because conditions differ from the baseline's."""
    variants = (reading, *((reading.without,) if reading.without else ()))
    reasons = dict.fromkeys(reason for variant in variants for reason in variant.invalid)  # unique, in order
    differences = _differences(reading, baseline)
    return (
        *reasons,
        *(text for condition, text in differences if not _excuse(condition, reading, baseline)),
    )


def remarks(reading: Reading, baseline: Baseline) -> tuple[str, ...]:
    """Return what should be known about a comparison that counts: other clocks, another card."""
    differences = [
        (text, _excuse(condition, reading, baseline)) for condition, text in _differences(reading, baseline)
    ]
    notes = [f"{text} ({why})" for text, why in differences if why]
    if baseline.card is CardMatch.OTHER and baseline.is_gating:
        several = f"{len(baseline.cards)} other cards" if len(baseline.cards) > 1 else "another card"
        notes.append(
            f"the baseline is of {several} of this kind: its margin allows for what cards differ by; "
            "for a tighter one run pytest --save-baseline on this card"
        )
    return tuple(notes)


def _differences(reading: Reading, baseline: Baseline) -> Iterator[tuple[Condition, str]]:
    stored = baseline.of(reading.name).conditions if baseline.is_gating else {}
    return differing(reading.conditions, stored)


def _excuse(condition: Condition, reading: Reading, baseline: Baseline) -> str:
    """Return why a condition may differ: it follows from the load, and must not excuse a regression."""
    if not condition.follows_load:
        return ""
    if reading.kind == _IN_TURNS:
        return "the variants ran in turns"
    if baseline.card is CardMatch.OTHER:
        return "it is another card"
    sides = (reading.conditions, baseline.of(reading.name).conditions)
    is_capped = any(side.get("power_cap_share", 0.0) > _CAPPED for side in sides)
    return "at the power limit it follows the load" if is_capped else ""


def crowded(reading: Reading) -> tuple[str, ...]:
    """Return why a CPU timing cannot be compared: other processes used its cores for too long.

    Not checked for readings that start processes themselves: ranks and loader workers share cores by design.
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


def differing(now: Mapping[str, float], stored: Mapping[str, float]) -> Iterator[tuple[Condition, str]]:
    """Yield the conditions that differ; one that is known on one side only does not count as different."""
    for name, condition in CONDITIONS.items():
        if name not in now or name not in stored:
            continue
        allowed = max(condition.relative * stored[name], condition.absolute)
        if abs(now[name] - stored[name]) > allowed:
            unit = f" {condition.unit}" if condition.unit else ""
            was = f"the baseline was taken at {stored[name]:.4g}{unit}"
            yield condition, f"{condition.label} is {now[name]:.4g}{unit}, {was}"


def invalid_verdict(reading: Reading, reasons: tuple[str, ...]) -> Verdict:
    """Return the verdict of a reading that does not count."""
    return Verdict(reading.name, Outcome.INVALID, None, reason="; ".join(reasons))


def collapsed(reading: Reading, stored: Mapping[str, float]) -> tuple[str, ...]:
    """Return why a reading that is implausibly better than its baseline does not count."""
    metric = primary_metric(reading.kind)
    before, now = stored.get(metric.name), reading.value(metric)
    if not before or not now or metric.cost(before) / metric.cost(now) < _COLLAPSED:
        return ()
    was, is_now = (show(value, metric.unit) for value in (before, now))
    return (
        f"{metric.label} collapsed to {is_now}, the baseline has {was}: does the step still do its work? "
        "If it does, delete this test's baseline and run pytest --save-baseline",
    )
