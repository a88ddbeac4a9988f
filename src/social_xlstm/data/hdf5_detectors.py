"""What the layout knows about each detector: position, direction, lanes, length."""

from typing import Any

import h5py
import numpy as np

from social_xlstm.data import hdf5_guard as guard
from social_xlstm.data.sets import TrafficSet
from social_xlstm.errors import InputError

COORDINATES = "EPSG:4326"
_POSITION = ("position_lat", "position_lon")


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
    """Read one numeric attribute."""
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
