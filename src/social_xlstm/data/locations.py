"""Where detectors stand, read from a CSV with or without a header."""

import math
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from social_xlstm.data.csv_rows import csv_rows
from social_xlstm.data.sets import check_positions
from social_xlstm.errors import InputError

# How published files call their columns, in order of preference; compared in lower case.
_ALIASES = {
    "vdid": (
        "sensor_id",
        "sensor id",
        "vdid",
        "vd_id",
        "detector_id",
        "station_id",
        "id",
        "station",
        "sensor",
    ),
    "latitude": ("latitude", "lat", "position_lat"),
    "longitude": ("longitude", "lon", "lng", "long", "position_lon"),
    "direction": ("direction", "dir"),
    "lanes": ("lanes", "lane_count"),
    "length": ("length (km)", "length_km", "length"),
}
_BARE_COLUMNS = {3: ("vdid", "latitude", "longitude"), 4: ("index", "vdid", "latitude", "longitude")}


@dataclass(frozen=True, eq=False)
class Locations:
    """What a locations file knows, by detector."""

    positions: dict[str, tuple[float, float]]
    directions: dict[str, str] = field(default_factory=dict)
    lanes: dict[str, int] = field(default_factory=dict)
    lengths_km: dict[str, float] = field(default_factory=dict)
    source: str = ""

    def positions_of(self, vdids: tuple[str, ...]) -> np.ndarray:
        """Give [N,2] degrees in the order of the detectors, refusing one the file does not know."""
        unknown = [vdid for vdid in vdids if vdid not in self.positions]
        if unknown:
            raise InputError(
                f"{self.source} lacks {len(unknown)} of {len(vdids)} detectors (first: {unknown[0]}); "
                "give the locations file that belongs to the speeds"
            )
        return np.array([self.positions[vdid] for vdid in vdids], dtype=np.float64)


def read_locations(path: str | Path) -> Locations:
    """Read identifiers, positions and whatever else is known of the detectors."""
    path = Path(path)
    rows = [[cell.strip() for cell in row] for _, row in csv_rows(path)]
    columns = _columns(rows[0], path)
    found = Locations({}, source=str(path))
    for row in rows if _is_bare(rows[0]) else rows[1:]:
        vdid = row[columns["vdid"]]
        if vdid in found.positions:
            raise InputError(f"{path}: detector {vdid} appears twice; keep one row for each")
        place = (_degrees(row, columns["latitude"], path), _degrees(row, columns["longitude"], path))
        check_positions(np.array([place]), (vdid,), str(path))
        found.positions[vdid] = place
        _read_extras(found, vdid, row, columns)
    return found


def _is_bare(row: list[str]) -> bool:
    """Tell whether a first row already holds values: its last two cells are numbers."""
    return len(row) in _BARE_COLUMNS and all(_to_number(cell) is not None for cell in row[-2:])


def _columns(header: list[str], path: Path) -> dict[str, int]:
    """Find the column of each thing known by its header, or by its place where there is no header."""
    if _is_bare(header):
        return {name: index for index, name in enumerate(_BARE_COLUMNS[len(header)])}
    lowered = [cell.lower() for cell in header]
    found = {
        name: next((lowered.index(alias) for alias in aliases if alias in lowered), None)
        for name, aliases in _ALIASES.items()
    }
    for name in ("vdid", "latitude", "longitude"):
        if found[name] is None:
            raise InputError(
                f"{path}: no column for the {name} among {header[:8]}; "
                f"call it {' or '.join(_ALIASES[name][:3])}, or leave the header out and give "
                "identifier, latitude, longitude"
            )
    return {name: index for name, index in found.items() if index is not None}


def _read_extras(found: Locations, vdid: str, row: list[str], columns: dict[str, int]) -> None:
    """Keep direction, lanes and length where the row has them."""
    if "direction" in columns and row[columns["direction"]]:
        found.directions[vdid] = row[columns["direction"]]
    for name, values, kind in (("lanes", found.lanes, int), ("length", found.lengths_km, float)):
        value = _to_number(row[columns[name]]) if name in columns else None
        if value is not None:
            values[vdid] = kind(value)


def _degrees(row: list[str], column: int, path: Path) -> float:
    """Read one coordinate."""
    value = _to_number(row[column])
    if value is None:
        raise InputError(f"{path}: {row[column]!r} of row {row[:3]} is not a coordinate; give degrees")
    return value


def _to_number(cell: str) -> float | None:
    """Read a finite number, or None."""
    try:
        value = float(cell)
    except ValueError:
        return None
    return value if math.isfinite(value) else None
