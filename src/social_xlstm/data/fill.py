"""Filling what was not measured, from the past of the same part and from statistics of the training part."""

from dataclasses import dataclass

import numpy as np

from social_xlstm.data.open_gaps import OpenGaps
from social_xlstm.errors import InputError

METHODS = ("linear", "forward", "mean", "zero")


@dataclass(frozen=True, eq=False)
class Filled:
    """A part without gaps, and what must be held back from windows that end inside one."""

    values: np.ndarray  # float32 [T, N, F]
    open_gaps: OpenGaps | None


def training_means(values: np.ndarray) -> np.ndarray:
    """Give the mean [N,F] of each detector, or of the whole feature where a detector has no value."""
    seen = ~np.isnan(values)
    counts = seen.sum(axis=0)
    sums = np.where(seen, values, 0.0).sum(axis=0, dtype=np.float64)
    overall = sums.sum(axis=0) / np.maximum(counts.sum(axis=0), 1)
    return np.where(counts > 0, sums / np.maximum(counts, 1), overall).astype(np.float32)


def fill(values: np.ndarray, seconds: np.ndarray, method: str, means: np.ndarray) -> Filled:
    """Fill NaN in one part [T,N,F]; steps before a detector's first value get its training mean."""
    if method not in METHODS:
        raise InputError(f"data.fill_missing is {method!r}; choose one of {', '.join(METHODS)}")
    filled = np.ascontiguousarray(values).copy()
    gone = np.isnan(filled)
    if method in ("mean", "zero"):
        np.copyto(filled, means if method == "mean" else np.float32(0.0), where=gone)
        return Filled(filled, None)
    by_column, mean_of = filled.reshape(len(filled), means.size), means.reshape(-1)
    gaps = []
    for column in np.flatnonzero(gone.any(axis=0)):
        gap = _hold(by_column[:, column], mean_of[column])
        if method == "linear":
            gaps.append((int(column), *_draw_lines(by_column[:, column], seconds, gap)))
    return Filled(filled, OpenGaps.from_columns(len(filled), gaps))


@dataclass(frozen=True, eq=False)
class _Gaps:
    """The missing steps of one column, each with its held value and where, in seen, the value before is."""

    steps: np.ndarray
    held: np.ndarray
    before: np.ndarray  # -1 where nothing was seen yet
    seen: np.ndarray  # steps that have a value


def _hold(column: np.ndarray, mean: float) -> _Gaps:
    """Hold the last value through each gap, in place."""
    gone = np.isnan(column)
    steps, seen = np.flatnonzero(gone), np.flatnonzero(~gone)
    before = np.searchsorted(seen, steps) - 1
    held = np.full(len(steps), mean, dtype=np.float32)
    held[before >= 0] = column[seen[before[before >= 0]]]
    column[steps] = held
    return _Gaps(steps, held, before, seen)


def _draw_lines(
    column: np.ndarray, seconds: np.ndarray, gaps: _Gaps
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Join the values around each gap by a line, in place; give the changed steps, held values, ages."""
    # Before the first value and after the last there is no line to draw.
    between = (gaps.before >= 0) & (gaps.before + 1 < len(gaps.seen))
    steps, held, before = gaps.steps[between], gaps.held[between], gaps.before[between]
    left, right = gaps.seen[before], gaps.seen[before + 1]
    share = (seconds[steps] - seconds[left]) / (seconds[right] - seconds[left])
    column[steps] = held + share.astype(np.float32) * (column[right] - held)
    return steps, held, steps - left
