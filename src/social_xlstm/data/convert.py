"""Turn files of other layouts into a traffic set: CSV with locations, and frames written by pandas."""

import csv
import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import h5py
import numpy as np

from social_xlstm.data import hdf5
from social_xlstm.data import hdf5_guard as guard
from social_xlstm.data.sets import TrafficSet, check_positions, checked, parse_frequency, parse_timestamps
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
_TIME_HEADERS = ("", "timestamp", "timestamps", "time", "date", "datetime", "index", "unnamed: 0")
_NO_VALUE = ("", "na", "n/a", "nan", "null", "none", "-")
_USUAL_GROUPS = ("df", "speed")
_UNITS = {
    "datetime64": "ns",
    "datetime64[ns]": "ns",
    "datetime64[us]": "us",
    "datetime64[ms]": "ms",
    "datetime64[s]": "s",
}


@dataclass(frozen=True, eq=False)
class Locations:
    """The contents of a locations file, by detector."""

    positions: dict[str, tuple[float, float]]
    directions: dict[str, str] = field(default_factory=dict)
    lanes: dict[str, int] = field(default_factory=dict)
    lengths_km: dict[str, float] = field(default_factory=dict)
    source: str = ""

    def positions_of(self, vdids: tuple[str, ...]) -> np.ndarray:
        """Return [N,2] degrees in the order of the detectors, refusing one the file does not know."""
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
    """Return whether a first row already holds values: its last two cells are numbers."""
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


@dataclass(frozen=True)
class ConvertOptions:
    """What a foreign file does not contain."""

    locations: str | None = None
    start: str | None = None
    frequency: str = "5min"
    timestamps_column: str | None = None
    group: str | None = None
    feature: str = "speed"
    unit: str = "mph"
    zeros_are_missing: bool = False


def convert_file(source: str | Path, output: str | Path, options: ConvertOptions) -> TrafficSet:
    """Read a CSV or a pandas-written HDF5 file and write it in the layout."""
    traffic = read_foreign(source, options)
    hdf5.write(output, traffic)
    return traffic


def read_foreign(source: str | Path, options: ConvertOptions) -> TrafficSet:
    """Read a foreign file; its content decides which kind it is."""
    source = Path(source)
    if not source.is_file():
        raise InputError(f"{source} is not a file; check the path")
    if source.suffix in (".h5", ".hdf5", ".hdf") or h5py.is_hdf5(source):
        vdids, times, values = read_frame(source, options.group)
    else:
        vdids, times, values = _read_csv(source, options)
    with np.errstate(over="ignore"):  # a double beyond float32 becomes infinite and is refused as such
        values = values.astype(np.float32)
    if options.zeros_are_missing:
        values[values == 0.0] = np.nan
    traffic = TrafficSet(
        features=values[:, :, None],
        timestamps=times,
        vdids=vdids,
        feature_names=(options.feature,),
        units={options.feature: options.unit},
        source=source.name,
    )
    if options.locations is not None:
        traffic = _located(traffic, read_locations(options.locations))
    return checked(traffic, str(source), in_place=True)


def _located(traffic: TrafficSet, locations: Locations) -> TrafficSet:
    """Add what a locations file knows about the set's detectors; other rows of that file are ignored."""
    vdids = traffic.vdids
    return replace(
        traffic,
        positions=locations.positions_of(vdids),
        directions=tuple(map(locations.directions.get, vdids)) if locations.directions else None,
        lanes=tuple(map(locations.lanes.get, vdids)) if locations.lanes else None,
        lengths_km=tuple(map(locations.lengths_km.get, vdids)) if locations.lengths_km else None,
    )


def _read_csv(path: Path, options: ConvertOptions) -> tuple[tuple[str, ...], np.ndarray, np.ndarray]:
    """Read a table whose header names the detectors and whose rows are steps."""
    rows = csv_rows(path)
    header = [cell.strip() for cell in next(rows)[1]]
    column = _time_column(header, path, options)
    names = [name for index, name in enumerate(header) if index != column]
    times: list[str] = []
    values: list[np.ndarray] = []
    # Row by row: the texts of a whole PEMS-BAY would take twenty times the memory of its numbers.
    for line, row in rows:
        if column is not None:
            times.append(row.pop(column).strip())
        values.append(_numbers(row, names, line, path))
    if not values:
        raise InputError(f"{path} has a header but no rows; give one row for each step")
    if column is None:
        return tuple(names), _regular_times(len(values), path, options), np.stack(values)
    return tuple(names), parse_timestamps(times, str(path)), np.stack(values)


def _time_column(header: list[str], path: Path, options: ConvertOptions) -> int | None:
    """Find the column of times: the one named, or the first where its header is a usual name of time."""
    if options.timestamps_column is None:
        return 0 if header[0].lower() in _TIME_HEADERS else None
    if options.timestamps_column not in header:
        raise InputError(
            f"{path} has no column {options.timestamps_column!r}; its header begins {header[:5]}"
        )
    return header.index(options.timestamps_column)


def _regular_times(steps: int, path: Path, options: ConvertOptions) -> np.ndarray:
    """Make the times of a table that has none."""
    if options.start is None:
        raise InputError(
            f"{path} has no column of times; give --start 'YYYY-MM-DD HH:MM:SS' and --frequency, "
            "or name the column with --timestamps-column"
        )
    start = parse_timestamps([options.start], "--start")[0]
    return start + np.arange(steps) * np.timedelta64(parse_frequency(options.frequency, "--frequency"), "s")


def _numbers(row: list[str], names: list[str], line: int, path: Path) -> np.ndarray:
    """Parse one row of numbers, NaN for the usual words of absence."""
    try:
        return np.fromiter(map(float, row), dtype=np.float32, count=len(row))
    except ValueError:
        values = np.empty(len(row), dtype=np.float32)
    for column, cell in enumerate(row):
        try:
            values[column] = np.nan if cell.strip().lower() in _NO_VALUE else float(cell)
        except ValueError as error:
            raise InputError(
                f"{path}: line {line}, column {names[column]!r} holds {cell!r}; give a number or nothing"
            ) from error
    return values


def csv_rows(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Yield line number and cells of each non-empty row; all are as long as the first, and there is one."""
    width = 0
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.reader(file, strict=True, skipinitialspace=True)
            for row in reader:
                if not any(row):
                    continue
                width = width or len(row)
                if len(row) != width:
                    raise InputError(
                        f"{path}: line {reader.line_num} has {len(row)} columns, the first row {width}; "
                        "give every row the same"
                    )
                yield reader.line_num, row
    except InputError:
        raise
    except (OSError, ValueError) as error:
        raise InputError(f"{path} cannot be read as text ({error}); give a CSV file in UTF-8") from error
    except csv.Error as error:
        raise InputError(f"{path} is not CSV ({error}); separate columns by commas") from error
    if not width:
        raise InputError(f"{path} is empty; give a CSV file with rows")


def read_frame(path: Path, group: str | None = None) -> tuple[tuple[str, ...], np.ndarray, np.ndarray]:
    """Return column names, times and values [T,N] of the one frame in a file, or of the group named."""
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
                f"{where}: block0_values has shape {list(block.shape or ())}, but the axes require "
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
    """Choose the group: the given one, one of the usual names, or the only frame."""
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
