"""Files of other layouts, turned into a traffic set: speeds as CSV, and frames that pandas wrote as HDF5."""

from dataclasses import dataclass, replace
from pathlib import Path

import h5py
import numpy as np

from social_xlstm.data import hdf5
from social_xlstm.data.csv_rows import csv_rows
from social_xlstm.data.locations import Locations, read_locations
from social_xlstm.data.pandas_h5 import read_frame
from social_xlstm.data.sets import TrafficSet, checked
from social_xlstm.data.timestamps import parse_frequency, parse_timestamps
from social_xlstm.errors import InputError

_TIME_HEADERS = ("", "timestamp", "timestamps", "time", "date", "datetime", "index", "unnamed: 0")
_NO_VALUE = ("", "na", "n/a", "nan", "null", "none", "-")


@dataclass(frozen=True)
class ConvertOptions:
    """What a foreign file does not say by itself."""

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
    """Read a foreign file, telling its kind by its content."""
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
    """Turn one row into numbers, NaN for the usual words of absence."""
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
