"""Numbers in, numbers out: medians, the error of a mean, the interval of a paired ratio."""

import math
from collections.abc import Mapping, Sequence

_T_975 = {4: 3.182, 5: 2.776, 6: 2.571, 7: 2.447, 8: 2.365, 9: 2.306, 10: 2.262}  # by number of batches


def median(values: Sequence[float]) -> float:
    """Return the middle value."""
    ordered = sorted(values)
    middle = len(ordered) // 2
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2


def quantile(values: Sequence[float], share: float) -> float:
    """Return the value below which a share of the values lies, interpolated."""
    ordered = sorted(values)
    place = share * (len(ordered) - 1)
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (place - low) * (ordered[high] - ordered[low])


def mean(values: Sequence[float]) -> float:
    """Return the arithmetic mean."""
    return math.fsum(values) / len(values)


def geometric_mean(values: Sequence[float]) -> float:
    """Return the mean by which ratios are averaged."""
    return math.exp(mean([math.log(value) for value in values]))


def deviation(values: Sequence[float]) -> float:
    """Return the sample standard deviation, 0 for a single value."""
    if len(values) < 2:
        return 0.0
    centre = mean(values)
    return math.sqrt(math.fsum((value - centre) ** 2 for value in values) / (len(values) - 1))


def relative_error(values: Sequence[float]) -> float | None:
    """Return the 95 % error of the mean as a share of it, or None while there are too few values.

    Consecutive steps resemble each other, so single steps would promise too much:
    the spread is taken between the means of up to ten consecutive batches.
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
    """Return median, low and high end (95 %) of first/second over interleaved pairs.

    By ranks, so that a step hit by another process widens the interval instead of moving it.
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
    """Return each probability adjusted for being one of many, by Holm's step-down method."""
    ordered = sorted(probabilities, key=lambda name: probabilities[name])
    adjusted: dict[str, float] = {}
    worst = 0.0
    for rank, name in enumerate(ordered):
        worst = max(worst, min(1.0, (len(ordered) - rank) * probabilities[name]))
        adjusted[name] = worst
    return adjusted
