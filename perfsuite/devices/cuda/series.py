"""A share over time: its mean, swing, period and longest idle stretch; pure computation."""

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from perfsuite.statistics import mean, median, quantile

MIN_PERIODS = 10  # fewer sample periods are not judged
_ROUNDING = 0.5  # of a period: a window of ten polls may just miss the last one
_MAX_CELLS = 1024  # the autocorrelation is quadratic
_IDLE = 0.01  # NVML counts whole percents; below two of them the device is idle
_MIN_SWING = 0.05  # a smaller swing has no period worth reporting
_MIN_CORRELATION = 0.3
_AS_GOOD = 0.9  # a multiple of the period repeats nearly as well as the period itself


class Piece(NamedTuple):
    """A time span with a constant share."""

    start: float
    end: float
    share: float


@dataclass(frozen=True)
class Series:
    """Pieces without gaps in between, each the mean of one sample period."""

    pieces: tuple[Piece, ...] = ()
    sample_seconds: float = 0.0  # how often the source updates its figure
    samples: int = 0
    absent: str = ""  # why there is no data

    @property
    def seconds(self) -> float:
        """Return the length of the series."""
        return self.pieces[-1].end - self.pieces[0].start if self.pieces else 0.0

    @property
    def needed_seconds(self) -> int:
        """Return the shortest window that suffices, 0 if this one does or if there is no data at all."""
        is_long = bool(self.pieces) and self.seconds >= (MIN_PERIODS - _ROUNDING) * self.sample_seconds
        return 0 if self.absent or is_long else math.ceil(MIN_PERIODS * self.sample_seconds) or 10

    def points(self, most: int = 400) -> tuple[float, ...]:
        """Return the share at evenly spaced moments, for a chart."""
        if not self.pieces or self.seconds <= 0:
            return ()
        count = min(most, max(int(self.seconds / max(self.sample_seconds, 1e-9)), 1))
        shares, at = [], 0
        for i in range(count):
            moment = self.pieces[0].start + self.seconds * (i + 0.5) / count
            while self.pieces[at].end < moment and at < len(self.pieces) - 1:
                at += 1
            shares.append(self.pieces[at].share)
        return tuple(shares)

    @property
    def why(self) -> str:
        """Return why the figures are absent, "" if they are not."""
        if not self.needed_seconds:
            return self.absent
        return (
            f"{self.seconds:.1f} s are too short to judge: utilization is updated every "
            f"{self.sample_seconds:.2g} s, so it takes at least {self.needed_seconds} s"
        )

    @property
    def mean(self) -> float | None:
        """Return the mean over time, including idle stretches."""
        return None if self.why else total(self.pieces) / self.seconds

    def figures(self) -> dict[str, float]:
        """Return the figures that are known, by metric."""
        known = {
            "utilization": self.mean,
            "utilization_swing": self.swing,
            "idle_stretch": self.idle_stretch_s,
        }
        return {name: value for name, value in known.items() if value is not None}

    @property
    def swing(self) -> float | None:
        """Return the difference between the 95th and the 5th percentile."""
        return None if self.why else quantile(self.cells, 0.95) - quantile(self.cells, 0.05)

    @property
    def period_s(self) -> float | None:
        """Return the seconds after which the share repeats itself, None if it does not."""
        if self.why or (self.swing or 0.0) < _MIN_SWING:
            return None
        cells = dominant_period(self.cells)
        return None if cells is None else cells * self._cell_seconds

    @property
    def idle_stretch_s(self) -> float | None:
        """Return the longest idle time."""
        if self.why:
            return None
        longest = current = 0.0
        for piece in self.pieces:
            current = current + piece.end - piece.start if piece.share <= _IDLE else 0.0
            longest = max(longest, current)
        return longest

    @property
    def _cell_seconds(self) -> float:
        cells = min(max(round(self.seconds / self.sample_seconds), 1), _MAX_CELLS)
        return self.seconds / cells

    @cached_property
    def cells(self) -> tuple[float, ...]:
        """Return the shares of equal time spans, from which percentiles and the period are computed."""
        if not self.pieces:
            return ()
        step, start = self._cell_seconds, self.pieces[0].start
        count = round(self.seconds / step)
        sums = [0.0] * count
        for piece in self.pieces:
            first = min(int((piece.start - start) / step), count - 1)
            last = min(int((piece.end - start) / step), count - 1)
            for cell in range(first, last + 1):
                low, high = start + cell * step, start + (cell + 1) * step
                sums[cell] += piece.share * max(min(piece.end, high) - max(piece.start, low), 0.0)
        return tuple(value / step for value in sums)


def total(pieces: Iterable[Piece]) -> float:
    """Return the time integral of the share."""
    return math.fsum(piece.share * (piece.end - piece.start) for piece in pieces)


def dominant_period(values: Sequence[float]) -> float | None:
    """Return after how many values a sequence repeats itself best, interpolated between values."""
    centre = mean(values)
    deviations = [value - centre for value in values]
    power = math.fsum(d * d for d in deviations) / len(deviations)
    if power <= 0:
        return None
    # The sequence must contain two whole periods: lags up to half its length.
    correlation = [
        math.fsum(map(float.__mul__, deviations, deviations[lag:])) / (len(values) - lag) / power
        for lag in range(len(values) // 2 + 2)
        if lag < len(values)
    ]
    crossing = next((lag for lag, value in enumerate(correlation) if value < 0), None)
    if crossing is None:
        return None
    peaks = [
        lag
        for lag in range(crossing, len(correlation) - 1)
        if correlation[lag - 1] <= correlation[lag] >= correlation[lag + 1]
        and correlation[lag] >= _MIN_CORRELATION
    ]
    if not peaks:
        return None
    best = max(correlation[lag] for lag in peaks)
    return _interpolated(correlation, next(lag for lag in peaks if correlation[lag] >= _AS_GOOD * best))


def _interpolated(values: Sequence[float], peak: int) -> float:
    """Return the top of the parabola through a peak and its neighbours."""
    before, at, after = values[peak - 1 : peak + 2]
    bend = before - 2 * at + after
    return float(peak) if bend == 0 else peak + 0.5 * (before - after) / bend


def join(
    samples: Sequence[tuple[float, float]],
    polls: Sequence[Piece],
    start: float,
    end: float,
    poll_seconds: float,
) -> Series:
    """Join the driver's samples (end of period, share) and, in their gaps, the polls to one series.

    Where there is neither, the device was idle: the driver adds no samples on an idle card.
    """
    spaces = [later - earlier for (earlier, _), (later, _) in itertools.pairwise(samples) if later > earlier]
    spacing = median(spaces) if spaces else poll_seconds
    pieces: list[Piece] = []
    reached = start
    for stamp, share in samples:
        # At the edges the samples' clock is known only to one period; between two samples it is exact.
        near = (1.5 if pieces else 2.0) * spacing
        begin = max(stamp - spacing, reached) if stamp - reached > near else reached
        until = min(stamp, end)
        if until > begin:
            pieces += [*_filled(reached, begin, polls), Piece(begin, until, share)]
            reached = until
    if pieces and reached < end <= reached + 2.0 * spacing:
        pieces[-1] = pieces[-1]._replace(end=end)  # the period that has not ended yet
        reached = end
    pieces += _filled(reached, end, polls)
    return Series(tuple(pieces), spacing, len(samples) or len(polls))


def _filled(start: float, end: float, polls: Sequence[Piece]) -> list[Piece]:
    """Return a gap's pieces: the polls inside it, and idle time between them."""
    pieces: list[Piece] = []
    for poll in polls:
        begin, until = max(poll.start, start), min(poll.end, end)
        if until > begin:
            if begin > start:
                pieces.append(Piece(start, begin, 0.0))
            pieces.append(Piece(begin, until, poll.share))
            start = until
    return [*pieces, Piece(start, end, 0.0)] if end > start else pieces
