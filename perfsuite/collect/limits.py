"""Turn marker arguments and the stored baseline into limits, before anything is measured."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from perfsuite.metrics import METRICS, Metric, Tolerance
from perfsuite.noise import MIN_SESSIONS, NOISIEST, Spread, allowed, smallest_visible, steadiest
from perfsuite.records import BASELINE, Baseline, CardMatch, Expectation, Limit, Settings, StoredReading
from perfsuite.statistics import geometric_mean

# The least tolerance, however small the spread, unless the user sets another. One card repeats itself within
# 0.15 %; cards of one kind differ from each other by up to 6.6 % (39 machines with one H100 each).
LEAST_TOLERANCE = {CardMatch.UNKNOWN: 0.05, CardMatch.SAME: 0.02, CardMatch.OTHER: 0.10}
MIN_CARDS = 3  # with fewer, how much cards differ is a guess, and the stated margin is more honest
_CARD_LEVEL = 0.01  # fresh processes run on the same card: no second stage corrects what the card is
_PLAIN = "step_time"


@dataclass(frozen=True)
class SecondStage:
    """How a suspicious reading is confirmed: in how many fresh processes, and at which error level."""

    sessions: int = 0
    level: float = 0.01


@dataclass(frozen=True)
class Origin:
    """Which card a baseline's figures are of, and the sessions of all cards of its kind that are known."""

    card: CardMatch = CardMatch.UNKNOWN
    sessions: tuple[Mapping[str, Sequence[float]], ...] = ()

    def centres(self, metric: Metric) -> list[float]:
        """Return the typical cost of a metric on each card; empty if there are too few to compare."""
        costs = [list(map(metric.cost, card[metric.name])) for card in self.sessions if metric.name in card]
        return [geometric_mean(values) for values in costs] if len(costs) >= MIN_CARDS else []

    def tolerance(self, metric: Metric, requested: float | None) -> float:
        """Return the tolerance: the user's, but never less than another card may differ."""
        least = LEAST_TOLERANCE[self.card]
        if self.card is not CardMatch.OTHER:
            return least if requested is None else requested
        if centres := self.centres(metric):
            pool = Spread.from_costs(centres)
            least = max(math.expm1(allowed(pool, 0.0, _CARD_LEVEL)), LEAST_TOLERANCE[CardMatch.SAME])
        return max(least, requested or 0.0)


def expect(
    limits: tuple[Limit, ...],
    settings: Settings,
    baseline: Baseline,
    device_tolerances: Mapping[str, Tolerance],
    second: SecondStage | None = None,
    *,
    compares_times: bool = True,
) -> Expectation:
    """Combine a marker's limits and a baseline; only a baseline of this machine sets limits.

    Without `compares_times` nobody learns the baseline's times: they would be held against other ones.
    """
    baseline = baseline if compares_times else baseline.without_times()
    gating = baseline.readings if baseline.is_gating else {}
    return Expectation(
        limits=limits,
        by_reading={
            name: _baseline_limits(
                stored,
                settings,
                device_tolerances,
                second or SecondStage(),
                Origin(baseline.card, tuple(card[name].sessions for card in baseline.cards if name in card)),
            )
            for name, stored in gating.items()
        },
        baseline=baseline,
        settings=settings,
    )


def _baseline_limits(
    stored: StoredReading,
    settings: Settings,
    device_tolerances: Mapping[str, Tolerance],
    second: SecondStage,
    origin: Origin,
) -> tuple[Limit, ...]:
    from_sessions = timing_limits(stored.sessions, settings, second, origin)
    limits = list(from_sessions)
    for name, value in stored.values.items():
        metric = METRICS[name]
        tolerance = device_tolerances.get(name, metric.tolerance)
        if metric.tolerance is None or tolerance is None or metric.is_relative:
            continue
        if metric.is_timing and from_sessions:
            continue
        requested = _requested_tolerance(metric, settings)
        relative = tolerance.relative if requested is None else max(requested, tolerance.least)
        if metric.is_timing and origin.card is CardMatch.OTHER:
            relative = max(relative, LEAST_TOLERANCE[origin.card])
        allowed_amount = max(relative * value, tolerance.absolute)
        bound = max(value - allowed_amount, 0.0) if metric.higher_is_better else value + allowed_amount
        limits.append(Limit(metric, bound, BASELINE, reference=value, tolerance=relative))
    return tuple(limits)


def timing_limits(
    sessions: Mapping[str, Sequence[float]],
    settings: Settings,
    second: SecondStage,
    origin: Origin | None = None,
) -> tuple[Limit, ...]:
    """Return the limits of timings measured in enough sessions; a step is judged by one timing only."""
    steadiest_name = steadiest_timing(sessions)
    return tuple(
        _limit_from_sessions(metric, sessions[name], settings.tolerance, second, origin or Origin())
        for name in sessions
        if (metric := METRICS[name]).is_timing
        and len(sessions[name]) >= MIN_SESSIONS
        and (name == steadiest_name or not (metric.is_relative or name == _PLAIN))
    )


def steadiest_timing(sessions: Mapping[str, Sequence[float]]) -> str:
    """Return the timing that a step is judged by: seconds, unless a reference makes it clearly steadier."""
    spreads = {
        name: Spread.from_costs(values).deviation
        for name, values in sessions.items()
        if len(values) >= MIN_SESSIONS and (METRICS[name].is_relative or name == _PLAIN)
    }
    return steadiest(spreads, _PLAIN)


def _limit_from_sessions(
    metric: Metric,
    sessions: Sequence[float],
    requested: float | None,
    second: SecondStage,
    origin: Origin,
) -> Limit:
    """Return the limit that follows from the spread of a baseline's sessions."""
    spread = Spread.from_costs([metric.cost(value) for value in sessions])
    if centres := origin.centres(metric):  # the typical card, not the one that happens to be first
        spread = replace(spread, centre=math.log(geometric_mean(centres)))
    tolerance = origin.tolerance(metric, requested)
    return Limit(
        metric,
        metric.cost(math.exp(spread.centre + allowed(spread, tolerance))),  # the cost of a cost is the figure
        BASELINE,
        reference=metric.cost(math.exp(spread.centre)),
        tolerance=tolerance,
        spread=spread,
        visible=smallest_visible(spread, tolerance, second.sessions, second.level),
    )


def is_too_noisy(limit: Limit) -> bool:
    """Return whether a baseline would detect only slowdowns so large that nobody would want to miss them."""
    return limit.visible is not None and limit.visible > max(NOISIEST, 3 * (limit.tolerance or 0.0))


def _requested_tolerance(metric: Metric, settings: Settings) -> float | None:
    if metric.is_count:
        return settings.count_tolerance
    return settings.tolerance if metric.is_timing else settings.memory_tolerance
