"""Student's t from first principles: the tail beyond a value and the value before a tail."""

import math
from functools import lru_cache

_STEPS = 300  # of the continued fraction; it converges in a few dozen
_TINY = 1e-300
_EXACT = 1e-15


def tail(value: float, degrees: int) -> float:
    """Return the probability that Student's t with that many degrees of freedom exceeds a value."""
    if math.isinf(value):
        return 0.0 if value > 0 else 1.0
    square = value * value
    if square < degrees:  # near the middle the far tail's argument would round to 1
        half = 0.5 * (1.0 - _incomplete_beta(square / (degrees + square), 0.5, degrees / 2))
    else:
        half = 0.5 * _incomplete_beta(degrees / (degrees + square), degrees / 2, 0.5)
    return half if value >= 0 else 1.0 - half


@lru_cache(maxsize=256)  # pure, and asked for the same few again and again
def quantile(share: float, degrees: int) -> float:
    """Return the value below which Student's t lies with that probability."""
    if not 0 < share < 1:
        raise ValueError(f"a quantile is asked for a share between 0 and 1, got {share}")
    if share < 0.5:
        return -quantile(1 - share, degrees)
    low, high = 0.0, 1.0
    while tail(high, degrees) > 1 - share:
        low, high = high, 2 * high
    for _ in range(200):  # bisection: as exact as floats are, and called a few times a run
        middle = (low + high) / 2
        if middle in (low, high):
            break
        low, high = (middle, high) if tail(middle, degrees) > 1 - share else (low, middle)
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
