"""Frames that pandas wrote to HDF5 in its fixed format (METR-LA, PEMS-BAY), read by h5py alone."""

from pathlib import Path

import h5py
import numpy as np

from social_xlstm.data import hdf5_guard as guard
from social_xlstm.errors import InputError

_USUAL_GROUPS = ("df", "speed")
_UNITS = {
    "datetime64": "ns",
    "datetime64[ns]": "ns",
    "datetime64[us]": "us",
    "datetime64[ms]": "ms",
    "datetime64[s]": "s",
}


def read_frame(path: Path, group: str | None = None) -> tuple[tuple[str, ...], np.ndarray, np.ndarray]:
    """Give column names, times and values [T,N] of the one frame in a file, or of the group named."""
    with guard.opened(path) as file:
        name = _frame_name(file, group, path)
        where = f"{path}, group {name}"
        frame = guard.group(file, name, str(path))
        if "block1_values" in frame:
            raise InputError(
                f"{where} holds columns of several types; save it from pandas as numbers of one type"
            )
        vdids = _labels(frame, "axis0", where)
        times = _times(frame, where)
        block = guard.dataset(frame, "block0_values", where)
        if block.dtype.kind not in "fiu":
            raise InputError(f"{where}: block0_values is {block.dtype}, not numbers; save the frame anew")
        if block.shape != (len(times), len(vdids)):
            raise InputError(
                f"{where}: block0_values has shape {list(block.shape or ())}, but the axes ask for "
                f"[{len(times)}, {len(vdids)}]; save the frame anew"
            )
        values = block[:].astype(np.float64)
        # Pandas stores a block's columns in an order of its own; axis0 has the frame's.
        stored = _labels(frame, "block0_items", where) if "block0_items" in frame else vdids
    if stored == vdids:
        return vdids, times, values
    if sorted(stored) != sorted(vdids):
        raise InputError(f"{where}: block0_items and axis0 name different columns; save the frame anew")
    place = {label: index for index, label in enumerate(stored)}
    return vdids, times, values[:, [place[label] for label in vdids]]


def _frame_name(file: h5py.File, group: str | None, path: Path) -> str:
    """Choose the group: the one asked for, the usual names, or the only frame there is."""
    frames = [name for name in file if isinstance(file.get(name), h5py.Group) and "axis0" in file[name]]
    if group is not None:
        if group not in frames:
            raise InputError(f"{path} has no pandas frame {group!r}; it has {', '.join(frames) or 'none'}")
        return group
    chosen = next((name for name in _USUAL_GROUPS if name in frames), frames[0] if len(frames) == 1 else None)
    if chosen is None:
        raise InputError(
            f"{path} has {len(frames)} pandas frames, expected one called df or speed; name it with --group, "
            "or read the file directly if it has this project's layout already"
        )
    return chosen


def _labels(frame: h5py.Group, name: str, where: str) -> tuple[str, ...]:
    """Read an axis of detector names, stored as texts or as whole numbers."""
    axis = guard.dataset(frame, name, where)
    if axis.ndim != 1:
        raise InputError(f"{where}: {name} has {axis.ndim} dimensions, expected one")
    if axis.dtype.kind == "S":
        return tuple(label.decode("utf-8") for label in axis[:])
    if axis.dtype.kind in "iu":
        return tuple(str(label) for label in axis[:])
    raise InputError(
        f"{where}: {name} is {axis.dtype}, neither fixed-length texts nor whole numbers (pickled by an old "
        "pandas?); save the frame anew with plain column names"
    )


def _times(frame: h5py.Group, where: str) -> np.ndarray:
    """Read the axis of times, whole units since 1970."""
    axis = guard.dataset(frame, "axis1", where)
    if axis.dtype != np.int64 or axis.ndim != 1:
        raise InputError(
            f"{where}: axis1 is {axis.dtype} {list(axis.shape or ())}, not int64 times; index by time"
        )
    kind = axis.attrs.get("kind", "datetime64")
    kind = kind.decode("ascii", "replace") if isinstance(kind, bytes) else str(kind)
    if kind not in _UNITS:
        raise InputError(
            f"{where}: axis1 holds {kind!r}, not times; index the frame by time and save it anew"
        )
    return axis[:].astype(f"datetime64[{_UNITS[kind]}]").astype("datetime64[s]")
