"""Decide between two versions from pairs measured side by side: regression, fine, or not to be told.

One pair of fresh processes is one data point: the logarithm of new over old. Student's interval says how
large the slowdown is; the exact sign-flip test, which needs no normal distribution, must agree.
"""

import bisect
import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from perfsuite.statistics import deviation, mean
from perfsuite.student import quantile, tail

_LEAST_DEVIATION = 0.002
_FLIP_LEVEL = 0.05
MOST_PAIRS = 40  # the sign-flip test stays exact and instant up to here


class Call(Enum):
    """What a comparison says."""

    REGRESSION = "regression"
    OK = "ok"
    INCONCLUSIVE = "inconclusive"


@dataclass(frozen=True)
class Difference:
    """The slowdown of new against old, in logarithms: estimate, interval, and two probabilities of chance."""

    effect: float
    low: float
    high: float
    p: float
    flip_p: float
    pairs: int


def difference(logs: Sequence[float], level: float) -> Difference:
    """Describe the pairs' differences; `level` is the one-sided error of each end of the interval."""
    count = len(logs)
    if count < 2:
        raise ValueError(f"a comparison needs at least 2 pairs, got {count}")
    centre = mean(logs)
    error = max(deviation(logs), _LEAST_DEVIATION) / math.sqrt(count)
    reach = quantile(1 - level, count - 1) * error
    return Difference(
        centre, centre - reach, centre + reach, tail(centre / error, count - 1), sign_flip(logs), count
    )


def decide(found: Difference, adjusted_p: float, *, level: float, least: float, missed: float) -> Call:
    """Say what was found.

    `least` is the smallest slowdown worth an alarm, `missed` the smallest that must not pass unseen;
    `adjusted_p` is the pair's probability after all comparisons of the run were taken into account.
    """
    is_real = adjusted_p <= level and found.flip_p <= max(_FLIP_LEVEL, 2.0**-found.pairs)
    if is_real and found.effect >= math.log1p(least):
        return Call.REGRESSION
    return Call.OK if found.high < math.log1p(missed) else Call.INCONCLUSIVE


def sign_flip(logs: Sequence[float]) -> float:
    """Return the exact share of sign patterns whose mean is at least the one observed.

    A pattern flips some values; its mean is no smaller exactly if their sum is not positive.
    """
    if len(logs) > MOST_PAIRS:
        raise ValueError(f"the exact sign-flip test takes at most {MOST_PAIRS} pairs, got {len(logs)}")
    middle = len(logs) // 2
    left, right = _subset_sums(logs[:middle]), sorted(_subset_sums(logs[middle:]))
    # Rounding must not lose the pattern that flips nothing.
    slack = 1e-12 * max((abs(value) for value in logs), default=0.0)
    at_most = sum(bisect.bisect_right(right, slack - one) for one in left)
    return at_most / 2.0 ** len(logs)


def _subset_sums(values: Sequence[float]) -> list[float]:
    sums = [0.0]
    for value in values:
        sums += [one + value for one in sums]
    return sums
