"""The parts of a set: split by time first, then filled and scaled with what the training part alone knows."""

import math
from dataclasses import dataclass, replace

import numpy as np
import torch

from social_xlstm.config import DataConfig, SplitConfig
from social_xlstm.data.scaler import Scaler
from social_xlstm.data.sets import TrafficSet
from social_xlstm.errors import InputError

_MAX_AGE = np.iinfo(np.int16).max  # far longer than any window
ARRAYS = ("offsets", "columns", "held", "age")
METHODS = ("linear", "forward", "mean", "zero")
PARTS = ("train", "val", "test")


@dataclass(frozen=True, eq=False)
class OpenGaps:
    """For each step, the detectors' features that are inside a gap then, with the last value before it.

    A list for each step, one after the other: entries offsets[t] to offsets[t+1] belong to step t.
    """

    offsets: torch.Tensor  # int64 [T+1]
    columns: torch.Tensor  # int64 [G]: detector · F + feature
    held: torch.Tensor  # float32 [G]: the last value before the gap
    age: torch.Tensor  # int16 [G]: steps since that value
    host_offsets: np.ndarray  # the same offsets on the host: reading them costs no device sync

    @classmethod
    def from_arrays(
        cls, offsets: np.ndarray, columns: np.ndarray, held: np.ndarray, age: np.ndarray
    ) -> "OpenGaps":
        """Wrap arrays without copying them."""
        return cls(*map(torch.from_numpy, (offsets, columns, held, age)), host_offsets=offsets)

    @classmethod
    def from_columns(
        cls, steps: int, gaps: list[tuple[int, np.ndarray, np.ndarray, np.ndarray]]
    ) -> "OpenGaps | None":
        """Sort what each column knows (its number, steps, held values, ages) by step; None for no gap."""
        if not sum(len(gap) for _, gap, _, _ in gaps):
            return None
        at = np.concatenate([gap for _, gap, _, _ in gaps])
        order = np.argsort(at, kind="stable")
        columns = np.concatenate([np.full(len(gap), column) for column, gap, _, _ in gaps])
        held = np.concatenate([values for _, _, values, _ in gaps])
        age = np.minimum(np.concatenate([ages for _, _, _, ages in gaps]), _MAX_AGE)
        offsets = np.concatenate([[0], np.cumsum(np.bincount(at, minlength=steps))])
        return cls.from_arrays(
            offsets, columns[order], held[order].astype(np.float32), age[order].astype(np.int16)
        )

    def scaled(self, scaler: Scaler) -> "OpenGaps":
        """Scale the held values exactly as the values they were taken from."""
        feature = self.columns.numpy() % len(scaler.offset)
        every = np.repeat(self.held.numpy()[:, None], len(scaler.offset), axis=1)
        return replace(self, held=torch.from_numpy(scaler.transform(every)[np.arange(len(every)), feature]))

    def tensors(self) -> dict[str, torch.Tensor]:
        """Name the tensors, as they are stored."""
        return {name: getattr(self, name) for name in ARRAYS}

    def with_tensors(self, tensors: dict[str, torch.Tensor]) -> "OpenGaps":
        """Return the same gaps over tensors that live elsewhere."""
        return replace(self, **tensors)

    def hold(self, features: torch.Tensor, ends: np.ndarray, ends_there: torch.Tensor) -> None:
        """Where a window [B,T,N,F] ends inside a gap, hold the last value before it to the end, in place.

        The ends come twice: on the host, to know how much there is to do, and beside the data, to index.
        """
        total = int((self.host_offsets[ends + 1] - self.host_offsets[ends]).sum())
        if total == 0:
            return
        windows, steps = features.shape[:2]
        first = self.offsets.index_select(0, ends_there)
        counts = self.offsets.index_select(0, ends_there + 1) - first
        # Entry numbers of all windows in a row; the sizes are known, so nothing is read from the device.
        window = torch.arange(windows, device=features.device)
        window = window.repeat_interleave(counts, output_size=total)
        shift = (first - (counts.cumsum(0) - counts)).repeat_interleave(counts, output_size=total)
        entry = torch.arange(total, device=features.device) + shift
        column, held, age = (tensor[entry] for tensor in (self.columns, self.held, self.age))
        steps_to_end = torch.arange(steps - 1, -1, -1, dtype=torch.int16, device=features.device)
        by_column = features.view(windows, steps, -1)
        kept = by_column[window, :, column]
        by_column[window, :, column] = torch.where(steps_to_end < age[:, None], held[:, None], kept)


@dataclass(frozen=True, eq=False)
class Filled:
    """A part without gaps, and what must be held back from windows that end inside one."""

    values: np.ndarray  # float32 [T, N, F]
    open_gaps: OpenGaps | None


def training_means(values: np.ndarray) -> np.ndarray:
    """Return the mean [N,F] of each detector, or of the whole feature where a detector has no value."""
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
    before: np.ndarray  # -1 where nothing was measured yet
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
    """Join the values around each gap by a line, in place; return the changed steps, held values, ages."""
    # Before the first value and after the last there is no line to draw.
    between = (gaps.before >= 0) & (gaps.before + 1 < len(gaps.seen))
    steps, held, before = gaps.steps[between], gaps.held[between], gaps.before[between]
    left, right = gaps.seen[before], gaps.seen[before + 1]
    share = (seconds[steps] - seconds[left]) / (seconds[right] - seconds[left])
    column[steps] = held + share.astype(np.float32) * (column[right] - held)
    return steps, held, steps - left


@dataclass(frozen=True, eq=False)
class Part:
    """One stretch of time, filled and scaled; the mask remembers what was measured."""

    values: np.ndarray  # float32 [T, N, F]
    observed: np.ndarray  # bool [T, N, F]
    open_gaps: OpenGaps | None = None


@dataclass(frozen=True, eq=False)
class About:
    """What is known of a set beside its values."""

    scaler: Scaler
    timestamps: np.ndarray  # datetime64[s], of all parts
    bounds: dict[str, tuple[int, int]]
    vdids: tuple[str, ...]
    feature_names: tuple[str, ...]
    positions: np.ndarray | None  # degrees; NaN where a detector has none
    directions: tuple[str | None, ...] | None
    units: dict[str, str]


def make_parts(traffic: TrafficSet, cfg: DataConfig) -> tuple[About, dict[str, Part]]:
    """Split, then fill and scale each part by itself."""
    traffic = traffic.select(vdids=cfg.selected_vdids, feature_names=cfg.selected_features)
    bounds = split_bounds(len(traffic.timestamps), cfg.split)
    training = traffic.features[slice(*bounds["train"])]
    scaler = Scaler.from_training(training, cfg.normalize, traffic.feature_names)
    means = training_means(training)
    seconds = traffic.timestamps.astype(np.int64)
    parts = {}
    for part, (begin, end) in bounds.items():
        filled = fill(traffic.features[begin:end], seconds[begin:end], cfg.fill_missing, means)
        gaps = filled.open_gaps
        parts[part] = Part(
            values=_scaled(filled.values, scaler),
            observed=~np.isnan(traffic.features[begin:end]),
            open_gaps=None if gaps is None else gaps.scaled(scaler),
        )
    about = About(
        scaler,
        traffic.timestamps,
        bounds,
        traffic.vdids,
        traffic.feature_names,
        traffic.positions,
        traffic.directions,
        traffic.units,
    )
    return about, parts


def split_bounds(steps: int, split: SplitConfig) -> dict[str, tuple[int, int]]:
    """Return first and last+1 step of each part, in the order of time."""
    shares = (split.train, split.val, split.test)
    if not all(0 <= share <= 1 for share in shares) or split.train == 0 or sum(shares) > 1 + 1e-6:
        raise InputError(
            f"data.split is {shares}; give shares from 0 to 1, train above 0, together at most 1"
        )
    # Rounded first: 0.7 + 0.1 is 0.7999…, which would move a bound by a step.
    ends = [min(steps, math.floor(round(steps * sum(shares[: index + 1]), 6))) for index in range(3)]
    return {part: (begin, end) for part, begin, end in zip(PARTS, [0, *ends[:-1]], ends, strict=True)}


def _scaled(values: np.ndarray, scaler: Scaler) -> np.ndarray:
    """Scale and keep float32, contiguous as windows need it."""
    return np.ascontiguousarray(scaler.transform(values), dtype=np.float32)
