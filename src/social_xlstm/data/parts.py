"""The parts of a set: split by time first, then filled and scaled with what the training part alone knows."""

import math
from dataclasses import dataclass

import numpy as np

from social_xlstm.config import DataConfig, SplitConfig
from social_xlstm.data.fill import fill, training_means
from social_xlstm.data.open_gaps import OpenGaps
from social_xlstm.data.scaler import Scaler
from social_xlstm.data.sets import TrafficSet
from social_xlstm.errors import InputError

PARTS = ("train", "val", "test")


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
    """Give first and last+1 step of each part, in the order of time."""
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
