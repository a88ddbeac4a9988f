"""From a configuration to windows over the training, validation and test part."""

from dataclasses import dataclass

import torch

from social_xlstm.config import DataConfig
from social_xlstm.data import shards
from social_xlstm.data.cache import cache_folder, cached
from social_xlstm.data.hdf5 import TrafficSet
from social_xlstm.data.parts import PARTS, About, Part, make_parts
from social_xlstm.data.positions import project
from social_xlstm.data.scaler import Scaler
from social_xlstm.data.series import FileSeries, Series
from social_xlstm.data.sets import checked, common_step_seconds
from social_xlstm.data.windows import Windows
from social_xlstm.errors import InputError


@dataclass(frozen=True, eq=False)
class Prepared:
    """Everything a training needs of the data."""

    train: Windows
    val: Windows
    test: Windows
    scaler: Scaler
    positions_xy: torch.Tensor | None  # float64 [N, 2] metres
    directions: tuple[str | None, ...] | None
    vdids: tuple[str, ...]
    feature_names: tuple[str, ...]
    units: dict[str, str]


def prepare(cfg: DataConfig, traffic: TrafficSet | None = None, *, use_positions: bool = True) -> Prepared:
    """Read (unless a set is given), split, fill, scale and window the data.

    A detector without a position is refused; use_positions=False, for training without pooling, lets it pass.
    """

    def make() -> tuple[About, dict[str, Part]]:
        if traffic is None:
            return make_parts(shards.read(cfg.path, partial_positions=True), cfg)
        return make_parts(checked(traffic, "the given set", partial_positions=True), cfg)

    series: dict[str, Series | FileSeries]
    if cfg.storage == "shared":
        about, parts = make()
        series = {
            name: Series.from_arrays(part.values, part.observed, part.open_gaps).shared()
            for name, part in parts.items()
        }
    else:
        about, series = cached(cache_folder(cfg, traffic), cfg.storage, make)
    return _windowed(cfg, about, series, use_positions)


def _windowed(
    cfg: DataConfig, about: About, series: dict[str, Series | FileSeries], use_positions: bool
) -> Prepared:
    positions_xy = None
    if use_positions and about.positions is not None:
        positions_xy = torch.from_numpy(project(about.positions, about.vdids, cfg.path))
    windows = {
        part: Windows(
            series[part],
            about.timestamps[slice(*about.bounds[part])],
            cfg.sequence_length,
            cfg.prediction_length,
            cfg.stride,
            common_step_seconds(about.timestamps),
            about.vdids,
            about.feature_names,
            positions_xy,
        )
        for part in PARTS
    }
    _check_not_empty(windows, cfg)
    return Prepared(
        **windows,
        scaler=about.scaler,
        positions_xy=positions_xy,
        directions=about.directions,
        vdids=about.vdids,
        feature_names=about.feature_names,
        units=about.units,
    )


def _check_not_empty(windows: dict[str, Windows], cfg: DataConfig) -> None:
    """Refuse a part with a share of the split and without a window."""
    needed = cfg.sequence_length + cfg.prediction_length
    for part, found in windows.items():
        if getattr(cfg.split, part) > 0 and len(found) == 0:
            raise InputError(
                f"the {part} part has {len(found.timestamps)} steps, but nowhere the {needed} in a row "
                f"that a window needs; raise data.split.{part}, shorten the windows, or give more data"
            )
