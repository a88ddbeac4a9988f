"""The HDF5 layout of a traffic set: written whole or not at all, each refusal with its reason."""

import json
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from social_xlstm.data import hdf5_guard as guard
from social_xlstm.data.sets import (
    TrafficSet,
    check_names,
    check_shape,
    checked,
    format_frequency,
    format_timestamps,
    parse_frequency,
    parse_timestamps,
)
from social_xlstm.errors import InputError

__all__ = ["TrafficSet", "read", "validate", "write"]

_CHUNK_BYTES = 2**20
_MAX_OFFSET_SECONDS = 14 * 3600  # no time zone is further from UTC
COORDINATES = "EPSG:4326"
_POSITION = ("position_lat", "position_lon")


def read(path: str | Path, *, partial_positions: bool = False) -> TrafficSet:
    """Read and validate one file; partial_positions lets detectors without one pass, as NaN."""
    path = Path(path)
    with guard.opened(path) as file:
        return checked(
            _read_open(file, str(path)), str(path), partial_positions=partial_positions, in_place=True
        )


def validate(path: str | Path) -> None:
    """Raise InputError with the first rule of the layout that a file breaks."""
    read(path)


def write(path: str | Path, traffic: TrafficSet) -> None:
    """Write a set so that readers see the old file or the whole new one, never a part."""
    path = Path(path)
    traffic = checked(traffic, f"the set for {path}", partial_positions=True)
    unfinished = path.with_name(f".{path.name}.{os.getpid()}.unfinished")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # The newer format carries checksums of its own structure: damage is noticed when opening.
        with h5py.File(unfinished, "w", libver="v110") as file:
            _write_open(file, traffic)
        with unfinished.open("rb+") as written:
            os.fsync(written.fileno())
        os.replace(unfinished, path)
    except (OSError, ValueError) as error:  # lone surrogates in a text are a ValueError
        raise InputError(
            f"{path} cannot be written ({error}); check the folder, its permissions and its space"
        ) from error
    finally:
        with suppress(OSError):
            unfinished.unlink(missing_ok=True)


def _read_open(file: h5py.File, where: str) -> TrafficSet:
    """Read every part of an open file, lengths first, so that nothing large is read in vain."""
    features = guard.dataset(guard.group(file, "data", where), "features", where)
    metadata = guard.group(file, "metadata", where)
    vdids = tuple(guard.texts(metadata, "vdids", where))
    names = tuple(guard.texts(metadata, "feature_names", where))
    spelled = guard.texts(metadata, "timestamps", where)
    check_shape(features.shape or (), len(spelled), len(vdids), len(names), where)
    check_names(vdids, "detector", where)
    if features.dtype.kind != "f":
        raise InputError(f"{where}: data/features is {features.dtype}, not float32; write it as float32")
    timestamps = parse_timestamps(spelled, where)
    _check_epoch(metadata, timestamps, where)
    values = np.empty(features.shape, dtype=np.float32)
    with np.errstate(over="ignore"):  # a double beyond float32 becomes infinite and is refused as such
        features.read_direct(values)
    traffic = TrafficSet(
        values, timestamps, vdids, names,
        units=_read_units(metadata, where), source=guard.text(metadata, "source", where) or "",
        **read_detectors(metadata, vdids, where),
    )  # fmt: skip
    _check_frequency(metadata, traffic, where)
    return traffic


def _check_epoch(metadata: h5py.Group, timestamps: np.ndarray, where: str) -> None:
    """Refuse timestamps_epoch that contradict timestamps by more than a time zone."""
    if "timestamps_epoch" not in metadata:
        return
    epoch = guard.dataset(metadata, "timestamps_epoch", where)
    if epoch.dtype.kind != "i" or epoch.shape != timestamps.shape:
        raise InputError(
            f"{where}: timestamps_epoch is {epoch.dtype} {list(epoch.shape or ())}, expected int64 "
            f"[{len(timestamps)}] like timestamps; write it anew or leave it out"
        )
    offset = epoch[:].astype(np.int64) - timestamps.astype(np.int64)
    if (np.abs(offset) > _MAX_OFFSET_SECONDS).any() or (offset % 900).any():
        raise InputError(f"{where}: timestamps_epoch and timestamps name different times; write them anew")


def _check_frequency(metadata: h5py.Group, traffic: TrafficSet, where: str) -> None:
    """Refuse a stated step length that is not the commonest one."""
    stated = guard.text(metadata, "frequency", where)
    found = traffic.frequency_seconds
    if stated and found is not None and parse_frequency(stated, where) != found:
        raise InputError(
            f"{where}: frequency says {stated}, but most steps are {format_frequency(found)} apart; mend one"
        )


def _read_units(metadata: h5py.Group, where: str) -> dict[str, str]:
    stored = guard.text(metadata, "units", where)
    if not stored:
        return {}
    try:
        units = json.loads(stored)
    except (ValueError, RecursionError) as error:
        raise InputError(
            f"{where}: units are not JSON ({error}); write an object of feature and unit"
        ) from error
    if not isinstance(units, dict):
        raise InputError(f"{where}: units are a {type(units).__name__}; write an object of feature and unit")
    return {str(name): str(unit) for name, unit in units.items()}


def _write_open(file: h5py.File, traffic: TrafficSet) -> None:
    steps, detectors, features = traffic.features.shape
    chunk = max(1, min(steps, _CHUNK_BYTES // max(1, detectors * features * 4)))
    file.create_dataset(
        "data/features", data=traffic.features, chunks=(chunk, detectors, features), fletcher32=True
    )
    metadata = file.create_group("metadata")
    guard.write_texts(metadata, "vdids", traffic.vdids)
    guard.write_texts(metadata, "feature_names", traffic.feature_names)
    guard.write_texts(metadata, "timestamps", format_timestamps(traffic.timestamps))
    metadata.create_dataset(
        "timestamps_epoch", data=traffic.timestamps.astype("datetime64[s]").astype(np.int64)
    )
    frequency = traffic.frequency_seconds
    guard.write_text(metadata, "frequency", "" if frequency is None else format_frequency(frequency))
    guard.write_text(metadata, "units", json.dumps(traffic.units))
    guard.write_text(metadata, "source", traffic.source)
    write_detectors(metadata, traffic)


def read_detectors(metadata: h5py.Group, vdids: tuple[str, ...], where: str) -> dict[str, Any]:
    """Read what is known of each detector, as fields of a TrafficSet; None where no detector has any."""
    if "vd_info" not in metadata:
        return {}
    described = guard.group(metadata, "vd_info", where)
    crs = guard.as_text(described.attrs.get("coord_crs", COORDINATES))
    if crs != COORDINATES:
        raise InputError(f"{where}: coord_crs is {crs!r}; give latitude and longitude ({COORDINATES})")
    strangers = sorted(set(described) - set(vdids))
    if strangers:
        raise InputError(
            f"{where}: vd_info has the unknown detector {strangers[0]!r}; add it to vdids or drop it"
        )
    rows = [_read_one(described, vdid, where) for vdid in vdids]
    positions = np.array([[row[key] for key in _POSITION] for row in rows], dtype=np.float64).reshape(-1, 2)
    return {
        "positions": None if np.isnan(positions).all() else positions,
        "directions": _unless_empty([row["direction"] for row in rows]),
        "lanes": _unless_empty([row["lanes"] for row in rows]),
        "lengths_km": _unless_empty([row["length"] for row in rows]),
    }


def _read_one(described: h5py.Group, vdid: str, where: str) -> dict[str, Any]:
    """Read the attributes of one detector, NaN for a position that is not there."""
    attributes = dict(described[vdid].attrs) if vdid in described else {}
    row: dict[str, Any] = {
        key: _number(attributes, key, vdid, where) for key in (*_POSITION, "lanes", "length")
    }
    stated = [key for key in _POSITION if row[key] is not None]
    if stated and not all(row[key] is not None and np.isfinite(row[key]) for key in _POSITION):
        raise InputError(
            f"{where}: detector {vdid} has the position {[row[key] for key in _POSITION]}; "
            "give two finite numbers, or leave both out"
        )
    if not stated:
        row.update(dict.fromkeys(_POSITION, np.nan))
    row["lanes"] = int(row["lanes"]) if row["lanes"] is not None and np.isfinite(row["lanes"]) else None
    direction = attributes.get("direction")
    row["direction"] = None if direction is None else guard.as_text(direction)
    return row


def _number(attributes: dict[str, Any], key: str, vdid: str, where: str) -> float | None:
    if key not in attributes:
        return None
    array = np.asarray(attributes[key])
    if array.size != 1 or array.dtype.kind not in "fiu":
        raise InputError(
            f"{where}: {key} of detector {vdid} is {attributes[key]!r}, not a number; correct it"
        )
    return float(array.reshape(-1)[0])


def _unless_empty(values: list[Any]) -> tuple[Any, ...] | None:
    """Make a tuple, or None where no detector has a value."""
    return tuple(values) if any(value is not None for value in values) else None


def write_detectors(metadata: h5py.Group, traffic: TrafficSet) -> None:
    """Write one group per detector, with the attributes it has."""
    described = metadata.create_group("vd_info")
    guard.write_text_attribute(described, "coord_crs", COORDINATES)
    for row, vdid in enumerate(traffic.vdids):
        known = described.create_group(vdid)
        for key, value in _attributes(traffic, row).items():
            if isinstance(value, str):
                guard.write_text_attribute(known, key, value)
            else:
                known.attrs[key] = value


def _attributes(traffic: TrafficSet, row: int) -> dict[str, Any]:
    """Collect what is known about one detector."""
    known: dict[str, Any] = {}
    if traffic.positions is not None and not np.isnan(traffic.positions[row]).any():
        known["position_lat"], known["position_lon"] = map(float, traffic.positions[row])
    for key, values in (
        ("direction", traffic.directions),
        ("lanes", traffic.lanes),
        ("length", traffic.lengths_km),
    ):
        if values is not None and values[row] is not None:
            known[key] = values[row]
    return known
