"""The HDF5 layout of a traffic set: written whole or not at all, each refusal with its reason."""

import json
import os
from contextlib import suppress
from pathlib import Path

import h5py
import numpy as np

from social_xlstm.data import hdf5_guard as guard
from social_xlstm.data.hdf5_detectors import read_detectors, write_detectors
from social_xlstm.data.sets import TrafficSet, check_names, check_shape, checked
from social_xlstm.data.timestamps import (
    format_frequency,
    format_timestamps,
    parse_frequency,
    parse_timestamps,
)
from social_xlstm.errors import InputError

__all__ = ["TrafficSet", "read", "validate", "write"]

_CHUNK_BYTES = 2**20
_MAX_OFFSET_SECONDS = 14 * 3600  # no time zone is further from UTC


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
    """Read the JSON object of units."""
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
    """Write every part of the layout into an open file."""
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
