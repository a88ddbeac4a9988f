"""What the sessions of a stored baseline allow to say: the limit from their spread, the test of fresh ones.

Everything is in logarithms of costs (seconds per step, or per sample), so that scaling all times changes
nothing. One session is one data point: the steps inside a session share its luck.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from perfsuite.statistics import deviation, mean, median
from perfsuite.student import quantile, tail

LEAST_SESSIONS = 5  # with fewer the spread is a guess, and a fixed tolerance is more honest
SCREEN = 0.10  # the first stage only raises a suspicion; the second, on fresh data, decides
POWER = 0.90  # «can see»: finds it nine times out of ten
NOISIEST = 0.30  # a baseline that cannot see a slowdown of this size guards nothing
_LEAST_DEVIATION = 0.002  # five sessions that agree to the last digit agree by luck


@dataclass(frozen=True)
class Spread:
    """The sessions of one figure: their centre, their deviation, their number."""

    centre: float
    deviation: float
    count: int

    @classmethod
    def from_costs(cls, costs: Sequence[float]) -> "Spread":
        """Describe the costs of several sessions."""
        logs = [math.log(cost) for cost in costs]
        return cls(mean(logs), max(deviation(logs), _LEAST_DEVIATION), len(logs))

    @property
    def is_known(self) -> bool:
        """Tell whether there are enough sessions to speak of a spread."""
        return self.count >= LEAST_SESSIONS


@dataclass(frozen=True)
class Second:
    """What the second stage found: the slowdown's logarithm, its low end, and how likely it is by chance."""

    effect: float
    low: float
    p: float


def allowed(spread: Spread, tolerance: float) -> float:
    """Return how far (in logarithms) one new session may lie above the baseline before it is suspicious."""
    far = quantile(1 - SCREEN, spread.count - 1) * spread.deviation * math.sqrt(1 + 1 / spread.count)
    return max(far, math.log1p(tolerance))


def confirm(spread: Spread, fresh: Sequence[float], level: float) -> Second:
    """Hold fresh sessions against the stored ones; the suspicious reading itself is not among them."""
    logs = [math.log(cost) for cost in fresh]
    degrees = spread.count + len(logs) - 2
    own = max(deviation(logs), _LEAST_DEVIATION)
    pooled = math.sqrt(
        ((spread.count - 1) * spread.deviation**2 + (len(logs) - 1) * own**2) / max(degrees, 1)
    )
    error = pooled * math.sqrt(1 / spread.count + 1 / len(logs))
    shift = mean(logs) - spread.centre
    return Second(
        # The median: one fresh session that was disturbed does not make a slowdown.
        median(logs) - spread.centre,
        shift - quantile(1 - level, max(degrees, 1)) * error,
        tail(shift / error, max(degrees, 1)),
    )


def smallest_visible(spread: Spread, tolerance: float, fresh: int, level: float) -> float:
    """Return the smallest slowdown (a share) that both stages find nine times out of ten."""
    single = spread.deviation * math.sqrt(1 + 1 / spread.count)
    first = allowed(spread, tolerance) + _Z_POWER * single
    if not fresh:
        return math.expm1(first)
    error = spread.deviation * math.sqrt(1 / spread.count + 1 / fresh)
    far = quantile(1 - level, spread.count + fresh - 2) * error
    second = max(far, math.log1p(tolerance)) + _Z_POWER * error
    return math.expm1(max(first, second))


_Z_POWER = quantile(POWER, 10**6)
