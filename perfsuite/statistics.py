"""Plain statistics: medians, the error of a mean, the interval of a paired ratio, Student's t."""

import math
from collections.abc import Mapping, Sequence
from functools import lru_cache

_STEPS = 300  # of the continued fraction, which converges in a few dozen
_TINY = 1e-300
_EXACT = 1e-15
_T_975 = {4: 3.182, 5: 2.776, 6: 2.571, 7: 2.447, 8: 2.365, 9: 2.306, 10: 2.262}  # by number of batches


def student_tail(value: float, degrees: int) -> float:
    """Return the probability that Student's t with these degrees of freedom exceeds a value."""
    if math.isinf(value):
        return 0.0 if value > 0 else 1.0
    square = value * value
    if square < degrees:  # near the middle the far tail's argument would round to 1
        half = 0.5 * (1.0 - _incomplete_beta(square / (degrees + square), 0.5, degrees / 2))
    else:
        half = 0.5 * _incomplete_beta(degrees / (degrees + square), degrees / 2, 0.5)
    return half if value >= 0 else 1.0 - half


@lru_cache(maxsize=256)  # pure, and called with the same few arguments over and over
def student_quantile(share: float, degrees: int) -> float:
    """Return the value that Student's t stays below with probability `share`."""
    if not 0 < share < 1:
        raise ValueError(f"a quantile needs a share between 0 and 1, got {share}")
    if share < 0.5:
        return -student_quantile(1 - share, degrees)
    low, high = 0.0, 1.0
    while student_tail(high, degrees) > 1 - share:
        low, high = high, 2 * high
    for _ in range(200):  # bisection: exact to the last bit, and only called a few times per run
        middle = (low + high) / 2
        if middle in (low, high):
            break
        low, high = (middle, high) if student_tail(middle, degrees) > 1 - share else (low, middle)
    return (low + high) / 2


def _incomplete_beta(x: float, a: float, b: float) -> float:
    """Return the regularized incomplete beta function, by its continued fraction."""
    if x <= 0 or x >= 1:
        return float(x >= 1)
    log_front = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)
    if x < (a + 1) / (a + b + 2):  # where the fraction converges fast
        return math.exp(log_front) * _fraction(x, a, b) / a
    return 1.0 - math.exp(log_front) * _fraction(1 - x, b, a) / b


def _fraction(x: float, a: float, b: float) -> float:
    """Evaluate the continued fraction by Lentz's method."""
    c, d = 1.0, 1.0 / _nonzero(1.0 - (a + b) * x / (a + 1))
    whole = d
    for m in range(1, _STEPS):
        for numerator in (
            m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m)),
            -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1)),
        ):
            d = 1.0 / _nonzero(1.0 + numerator * d)
            c = _nonzero(1.0 + numerator / c)
            whole *= c * d
        if abs(c * d - 1.0) < _EXACT:
            break
    return whole


def _nonzero(value: float) -> float:
    return value if abs(value) > _TINY else _TINY


def median(values: Sequence[float]) -> float:
    """Return the middle value."""
    ordered = sorted(values)
    middle = len(ordered) // 2
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2


def quantile(values: Sequence[float], share: float) -> float:
    """Return the value below which a share of the values lies, interpolated."""
    ordered = sorted(values)
    position = share * (len(ordered) - 1)
    low = math.floor(position)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (position - low) * (ordered[high] - ordered[low])


def mean(values: Sequence[float]) -> float:
    """Return the arithmetic mean."""
    return math.fsum(values) / len(values)


def geometric_mean(values: Sequence[float]) -> float:
    """Return the geometric mean, which is how ratios are averaged."""
    return math.exp(mean([math.log(value) for value in values]))


def deviation(values: Sequence[float]) -> float:
    """Return the sample standard deviation, 0 for a single value."""
    if len(values) < 2:
        return 0.0
    centre = mean(values)
    return math.sqrt(math.fsum((value - centre) ** 2 for value in values) / (len(values) - 1))


def relative_error(values: Sequence[float]) -> float | None:
    """Return the 95 % error of the mean relative to the mean, or None with too few values.

    Consecutive steps are correlated, so an error from single steps would be too small:
    it is computed from the means of up to ten consecutive batches.
    """
    batches = min(10, len(values) // 2)
    if batches < 4:
        return None
    size = len(values) // batches
    tail = values[len(values) - batches * size :]
    means = [mean(tail[i * size : (i + 1) * size]) for i in range(batches)]
    centre = mean(means)
    if centre <= 0:
        return None
    return _T_975[batches] * deviation(means) / math.sqrt(batches) / centre


def ratio_interval(pairs: Sequence[tuple[float, float]]) -> tuple[float, float, float]:
    """Return the median of first/second over interleaved pairs and its 95 % interval (low, high).

    The interval comes from ranks, so a step disturbed by another process widens it instead of moving it.
    """
    ratios = sorted(math.log(first / second) for first, second in pairs)
    count = len(ratios)
    rank = max(0, math.floor((count - 1.96 * math.sqrt(count)) / 2))
    return (
        math.exp(median(ratios)),
        math.exp(ratios[rank]),
        math.exp(ratios[count - 1 - rank]),
    )


def holm(probabilities: Mapping[str, float]) -> dict[str, float]:
    """Return the probabilities adjusted for multiple tests by Holm's step-down method."""
    ordered = sorted(probabilities, key=lambda name: probabilities[name])
    adjusted: dict[str, float] = {}
    worst = 0.0
    for rank, name in enumerate(ordered):
        worst = max(worst, min(1.0, (len(ordered) - rank) * probabilities[name]))
        adjusted[name] = worst
    return adjusted
