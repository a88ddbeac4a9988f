"""The record of one traffic set, and the rules every set obeys, whatever file it came from."""

from dataclasses import dataclass, field, replace
from difflib import get_close_matches

import numpy as np

from social_xlstm.data.missing import mark_missing
from social_xlstm.data.timestamps import check_increasing, common_step_seconds
from social_xlstm.errors import InputError


@dataclass(frozen=True, eq=False)
class TrafficSet:
    """Features of N detectors over T steps; NaN where nothing was measured."""

    features: np.ndarray  # float32 [T, N, F]
    timestamps: np.ndarray  # datetime64[s] [T]
    vdids: tuple[str, ...]
    feature_names: tuple[str, ...]
    positions: np.ndarray | None = None  # float64 [N, 2]: latitude, longitude
    directions: tuple[str | None, ...] | None = None
    lanes: tuple[int | None, ...] | None = None
    lengths_km: tuple[float | None, ...] | None = None
    units: dict[str, str] = field(default_factory=dict)
    source: str = ""

    @property
    def frequency_seconds(self) -> int | None:
        """Give the commonest step length, or None for a set of one step."""
        return common_step_seconds(self.timestamps)

    def select(
        self, *, vdids: tuple[str, ...] | None = None, feature_names: tuple[str, ...] | None = None
    ) -> "TrafficSet":
        """Keep the named detectors and features, in the order named."""
        chosen = self
        if feature_names is not None:
            rows = _indices(feature_names, self.feature_names, "feature", "data.selected_features")
            chosen = replace(chosen, features=chosen.features[:, :, rows], feature_names=tuple(feature_names))
        if vdids is not None:
            rows = _indices(vdids, self.vdids, "detector", "data.selected_vdids")
            chosen = replace(
                chosen,
                features=chosen.features[:, rows],
                vdids=tuple(vdids),
                positions=None if chosen.positions is None else chosen.positions[rows],
                directions=_rows_of(chosen.directions, rows),
                lanes=_rows_of(chosen.lanes, rows),
                lengths_km=_rows_of(chosen.lengths_km, rows),
            )
        return chosen


def _rows_of(values: tuple | None, rows: list[int]) -> tuple | None:
    """Pick entries of an optional per-detector attribute."""
    return None if values is None else tuple(values[row] for row in rows)


def _indices(wanted: tuple[str, ...], known: tuple[str, ...], noun: str, key: str) -> list[int]:
    """Find the wanted names among the known ones, refusing strangers, repetitions and nothing at all."""
    if not wanted:
        raise InputError(f"{key} is empty; name at least one {noun} or leave the key out")
    index_of = {name: index for index, name in enumerate(known)}
    for name in wanted:
        if name not in index_of:
            near = get_close_matches(name, known, n=3) or list(known[:3])
            raise InputError(
                f"{key} names the unknown {noun} {name!r}; known are for example {', '.join(near)}"
            )
    if len(set(wanted)) != len(wanted):
        raise InputError(f"{key} names a {noun} twice; name each once")
    return [index_of[name] for name in wanted]


def check_names(names: tuple[str, ...], noun: str, where: str) -> None:
    """Refuse names that repeat, are empty, or cannot name a group of an HDF5 file."""
    seen: set[str] = set()
    for name in names:
        if not name or name == "." or "/" in name or not name.isprintable():
            raise InputError(
                f"{where}: {noun} name {name!r} cannot be used; "
                "avoid empty names, '.', '/' and control characters"
            )
        if name in seen:
            raise InputError(f"{where}: {noun} {name!r} appears twice; every {noun} needs a name of its own")
        seen.add(name)


def check_shape(shape: tuple[int, ...], steps: int, detectors: int, features: int, where: str) -> None:
    """Refuse features whose shape disagrees with the lists beside them, or which hold nothing."""
    expected = (steps, detectors, features)
    if shape != expected:
        raise InputError(
            f"{where}: features have shape {list(shape)}, but {steps} timestamps, {detectors} vdids and "
            f"{features} feature_names ask for {list(expected)}; make the lengths agree"
        )
    if 0 in expected:
        raise InputError(
            f"{where}: the set is empty (shape {list(shape)}); it needs a step, a detector and a feature"
        )


def check_positions(
    positions: np.ndarray, vdids: tuple[str, ...], where: str, *, partial: bool = False
) -> None:
    """Refuse positions that are missing (unless partial), not finite or not on the globe."""
    if positions.shape != (len(vdids), 2):
        raise InputError(
            f"{where}: positions have shape {list(positions.shape)}, expected [{len(vdids)}, 2]; "
            "give latitude and longitude of every detector"
        )
    absent = np.isnan(positions).all(axis=1)
    if absent.any() and not partial:
        names = [vdid for vdid, gone in zip(vdids, absent, strict=True) if gone]
        raise InputError(
            f"{where}: {len(names)} of {len(vdids)} detectors have no position (first: {names[0]}); "
            "give them position_lat and position_lon, leave them out with data.selected_vdids, "
            "or switch social_pooling off"
        )
    outside = ~(np.abs(positions) <= (90.0, 180.0)).all(axis=1) & ~absent
    if outside.any():
        row = int(np.argmax(outside))
        raise InputError(
            f"{where}: detector {vdids[row]} has the impossible position {positions[row].tolist()}; "
            "latitude lies within ±90 and longitude within ±180 degrees"
        )


def checked(
    traffic: TrafficSet, where: str, *, partial_positions: bool = False, in_place: bool = False
) -> TrafficSet:
    """Return the set with missing codes as NaN, or refuse it with the first rule it breaks."""
    check_names(traffic.vdids, "detector", where)
    check_names(traffic.feature_names, "feature", where)
    if traffic.features.dtype != np.float32:
        raise InputError(f"{where}: features are {traffic.features.dtype}, not float32; convert them")
    check_shape(
        traffic.features.shape, len(traffic.timestamps), len(traffic.vdids), len(traffic.feature_names), where
    )
    check_increasing(traffic.timestamps, where)
    if traffic.positions is not None:
        check_positions(traffic.positions, traffic.vdids, where, partial=partial_positions)
    for noun, values in (
        ("directions", traffic.directions),
        ("lanes", traffic.lanes),
        ("lengths_km", traffic.lengths_km),
    ):
        if values is not None and len(values) != len(traffic.vdids):
            raise InputError(
                f"{where}: {len(values)} {noun} for {len(traffic.vdids)} detectors; make the lengths agree"
            )
    features = traffic.features if in_place else traffic.features.copy()
    mark_missing(features, traffic.feature_names, where)
    return replace(traffic, features=features)
