"""Noise of a stored baseline: the limit from the spread of its sessions, the test of fresh sessions.

Everything is computed on logarithms of costs (seconds per step, or per sample), so that scaling all times
changes nothing. One session is one data point: the steps inside a session share its luck.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from perfsuite.statistics import deviation, mean, median, student_quantile, student_tail

MIN_SESSIONS = 5  # with fewer, the spread would be a guess, and a fixed tolerance is more honest
SCREEN = 0.10  # the first stage only flags a reading; the second, on fresh data, decides
POWER = 0.90  # «can see»: the slowdown is found nine times out of ten
NOISIEST = 0.30  # a baseline that cannot detect a slowdown of this size is useless
_CLEARLY = 0.7  # with five sessions, smaller differences between spreads are not significant
_MIN_DEVIATION = 0.002  # five sessions that agree to the last digit do so by luck


@dataclass(frozen=True)
class Spread:
    """Centre, deviation and number of the sessions of one figure."""

    centre: float
    deviation: float
    count: int

    @classmethod
    def from_costs(cls, costs: Sequence[float]) -> "Spread":
        """Return the spread of the costs of several sessions."""
        logs = [math.log(cost) for cost in costs]
        return cls(mean(logs), max(deviation(logs), _MIN_DEVIATION), len(logs))

    @property
    def is_known(self) -> bool:
        """Return whether there are enough sessions for a meaningful spread."""
        return self.count >= MIN_SESSIONS


@dataclass(frozen=True)
class Confirmation:
    """Result of the second stage: log of the slowdown, its lower bound, and the p-value."""

    effect: float
    low: float
    p: float


def allowed(spread: Spread, tolerance: float, level: float = SCREEN) -> float:
    """Return how far (in logarithms) one new session may lie above the baseline before it is suspicious."""
    quantile = student_quantile(1 - level, spread.count - 1)
    noise = quantile * spread.deviation * math.sqrt(1 + 1 / spread.count)
    return max(noise, math.log1p(tolerance))


def confirm(spread: Spread, fresh: Sequence[float], level: float) -> Confirmation:
    """Compare fresh sessions with the stored ones; `fresh` excludes the suspicious reading itself."""
    logs = [math.log(cost) for cost in fresh]
    degrees = spread.count + len(logs) - 2
    fresh_deviation = max(deviation(logs), _MIN_DEVIATION)
    pooled = math.sqrt(
        ((spread.count - 1) * spread.deviation**2 + (len(logs) - 1) * fresh_deviation**2) / max(degrees, 1)
    )
    error = pooled * math.sqrt(1 / spread.count + 1 / len(logs))
    shift = mean(logs) - spread.centre
    return Confirmation(
        # The median: a single disturbed session must not look like a slowdown.
        median(logs) - spread.centre,
        shift - student_quantile(1 - level, max(degrees, 1)) * error,
        student_tail(shift / error, max(degrees, 1)),
    )


def smallest_visible(spread: Spread, tolerance: float, fresh: int, level: float) -> float:
    """Return the smallest slowdown (as a share) that both stages detect nine times out of ten."""
    single = spread.deviation * math.sqrt(1 + 1 / spread.count)
    first = allowed(spread, tolerance) + _Z_POWER * single
    if not fresh:
        return math.expm1(first)
    error = spread.deviation * math.sqrt(1 / spread.count + 1 / fresh)
    noise = student_quantile(1 - level, spread.count + fresh - 2) * error
    second = max(noise, math.log1p(tolerance)) + _Z_POWER * error
    return math.expm1(max(first, second))


_Z_POWER = student_quantile(POWER, 10**6)


def steadiest(noise: Mapping[str, float], plain: str) -> str:
    """Return the timing to judge by: the plain one, unless another is clearly steadier."""
    best = min(noise, key=lambda name: noise[name], default=plain)
    return best if best in noise and noise[best] < _CLEARLY * noise.get(plain, math.inf) else plain
