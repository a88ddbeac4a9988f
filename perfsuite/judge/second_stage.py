"""Confirm or drop suspicions by the readings of fresh processes; pure, and on fresh data only."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace

from perfsuite.judge.verdicts import is_suspicion
from perfsuite.noise import Confirmation, confirm
from perfsuite.records import Limit, Outcome, Result, Session, Verdict
from perfsuite.statistics import holm, median


def settle(
    results: Iterable[Result], sessions: Sequence[Session], *, gated: int, family_error: float
) -> list[Result]:
    """Return the results with every suspicion confirmed or dropped.

    `gated` is how many timings the run compared with baselines: the unsuspicious ones count as tests too.
    """
    results = list(results)
    seconds = {
        f"{result.test}\n{verdict.reading}": second
        for result in results
        for verdict in result.verdicts
        if is_suspicion(verdict) and (second := _second(result, verdict, sessions, family_error)) is not None
    }
    others = {f"unsuspicious {i}": 1.0 for i in range(gated - len(seconds))}
    adjusted = holm({**{name: second.p for name, second in seconds.items()}, **others})

    def settled(result: Result, verdict: Verdict) -> Verdict:
        if not is_suspicion(verdict) or verdict.limit is None:
            return verdict
        fresh = fresh_costs(result, verdict, sessions)
        if not fresh:
            return _undecided(result, verdict, sessions)
        name = f"{result.test}\n{verdict.reading}"
        second = seconds.get(name)
        if second is None:
            return _by_tolerance(verdict, verdict.limit, fresh)
        is_real = adjusted[name] <= family_error and second.effect > math.log1p(
            verdict.limit.tolerance or 0.0
        )
        return replace(
            verdict,
            outcome=Outcome.MISSED if is_real else Outcome.UNCONFIRMED,
            reason=_effect_text(
                second.effect, len(fresh), f", at least {_percent(second.low)}" if is_real else ""
            ),
        )

    return [
        replace(result, verdicts=tuple(settled(result, verdict) for verdict in result.verdicts))
        for result in results
    ]


def fresh_costs(result: Result, verdict: Verdict, sessions: Sequence[Session]) -> list[float]:
    """Return the costs that fresh processes measured for a verdict's metric, without invalid readings."""
    if verdict.limit is None:
        return []
    metric = verdict.limit.metric
    readings = [session.readings.get(result.test, {}).get(verdict.reading) for session in sessions]
    values = [
        reading.values.get(metric.name) for reading in readings if reading is not None and not reading.invalid
    ]
    return [metric.cost(value) for value in values if value]


def _undecided(result: Result, verdict: Verdict, sessions: Sequence[Session]) -> Verdict:
    """Settle a suspicion that no fresh process measured: if they give a reason, the reading is invalid."""
    readings = [session.readings.get(result.test, {}).get(verdict.reading) for session in sessions]
    reasons = [reason for reading in readings if reading is not None for reason in reading.invalid]
    if not reasons:
        return replace(verdict, reason="not confirmed: no fresh process could measure it")
    text = f"suspicious, and none of {len(sessions)} fresh processes counts: {reasons[0]}"
    return Verdict(verdict.reading, Outcome.INVALID, None, reason=text)


def _second(
    result: Result, verdict: Verdict, sessions: Sequence[Session], family_error: float
) -> Confirmation | None:
    fresh = fresh_costs(result, verdict, sessions)
    spread = verdict.limit.spread if verdict.limit else None
    return None if spread is None or not fresh else confirm(spread, fresh, family_error)


def _by_tolerance(verdict: Verdict, limit: Limit, fresh: Sequence[float]) -> Verdict:
    """Settle a suspicion against a baseline of too few sessions: the median fresh reading must miss too."""
    typical = median(fresh)
    is_missed = typical > limit.metric.cost(limit.bound)
    effect = math.log(typical / limit.metric.cost(limit.reference or limit.bound))
    outcome = Outcome.MISSED if is_missed else Outcome.UNCONFIRMED
    return replace(verdict, outcome=outcome, reason=_effect_text(effect, len(fresh), ""))


def _effect_text(effect: float, count: int, suffix: str) -> str:
    return f"{_percent(effect)} in {count} fresh processes{suffix}"


def _percent(effect: float) -> str:
    return f"{100 * math.expm1(effect):+.1f} %"
