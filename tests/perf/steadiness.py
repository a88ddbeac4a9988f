"""Utilization over time as a driver's samples would show it: its swing and its period."""

from statistics import fmean

import numpy

from perfsuite import Reading
from perfsuite.devices.cuda import MIN_PERIODS, dominant_period

SAMPLE_SECONDS = 1 / 6  # how often a driver renews its figure
_LEAST_SWING = 0.05  # what moves less has no period worth naming


def sampled(reading: Reading) -> tuple[list[float], float]:
    """Return the modelled series in cells of a sample period each, or of a point where those are longer.

    Without its first third: workers start there once and for all, and a measured loop has warmed up before.
    """
    each = reading.wall_seconds / len(reading.series)
    steady = reading.series[len(reading.series) // 3 :]
    count = max(round(SAMPLE_SECONDS / each), 1)
    return [fmean(steady[i : i + count]) for i in range(0, len(steady) - count + 1, count)], each * count


def swing(reading: Reading) -> float | None:
    """Return the distance between high and low utilization, None where the window is too short to tell."""
    if reading.utilization_swing is not None or not reading.series:
        return reading.utilization_swing
    cells, _ = sampled(reading)
    return (
        float(numpy.quantile(cells, 0.95) - numpy.quantile(cells, 0.05))
        if len(cells) >= MIN_PERIODS
        else None
    )


def period(reading: Reading) -> float | None:
    """Return after how many seconds the utilization repeats itself, None where it does not."""
    if not reading.series or (swing(reading) or 0.0) < _LEAST_SWING:
        return None
    cells, seconds = sampled(reading)
    found = dominant_period(cells)
    return None if found is None else found * seconds
