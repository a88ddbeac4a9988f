"""One set in one file or in a folder of shards; shards that overlap, leave gaps or disagree are refused."""

from dataclasses import replace
from pathlib import Path

import numpy as np

from social_xlstm.data import hdf5
from social_xlstm.data.hdf5 import TrafficSet
from social_xlstm.errors import InputError

SUFFIXES = (".h5", ".hdf5")


def read(path: str | Path, *, partial_positions: bool = False) -> TrafficSet:
    """Read a file, or all shards of a folder in the order of their names, as one set."""
    path = Path(path)
    if not path.is_dir():
        return hdf5.read(path, partial_positions=partial_positions)
    files = shard_files(path)
    parts = [hdf5.read(file, partial_positions=partial_positions) for file in files]
    for first, second, file_before, file in zip(parts, parts[1:], files, files[1:], strict=False):
        _check_same(first, second, file_before, file)
        _check_follows(first, second, file_before, file)
    if len(parts) == 1:
        return parts[0]
    return replace(
        parts[0],
        features=np.concatenate([part.features for part in parts]),
        timestamps=np.concatenate([part.timestamps for part in parts]),
    )


def shard_files(folder: Path) -> list[Path]:
    """List the shards of a folder by name; other files are left alone."""
    try:
        found = sorted(file for file in folder.iterdir() if file.suffix in SUFFIXES and file.name[0] != ".")
    except OSError as error:
        raise InputError(f"{folder} cannot be listed ({error}); check its permissions") from error
    if not found:
        raise InputError(f"{folder} holds no shards; put files ending in {' or '.join(SUFFIXES)} there")
    return found


def write(folder: str | Path, traffic: TrafficSet, *, steps_per_shard: int) -> list[Path]:
    """Write a set as shards of equal length (the last may be shorter), named so that they sort by time."""
    folder = Path(folder)
    if steps_per_shard < 1:
        raise InputError(f"steps_per_shard is {steps_per_shard}; a shard holds at least one step")
    if folder.is_dir() and any(file.suffix in SUFFIXES for file in folder.iterdir()):
        raise InputError(f"{folder} already holds shards; remove them or name another folder")
    starts = range(0, len(traffic.timestamps), steps_per_shard)
    files = []
    for number, start in enumerate(starts):
        rows = slice(start, start + steps_per_shard)
        file = folder / f"shard-{number:05d}.h5"
        hdf5.write(
            file, replace(traffic, features=traffic.features[rows], timestamps=traffic.timestamps[rows])
        )
        files.append(file)
    return files


def _check_same(first: TrafficSet, second: TrafficSet, file_before: Path, file: Path) -> None:
    """Refuse a shard about other detectors, features, units or places than the one before it."""
    for noun in ("vdids", "feature_names", "units", "directions"):
        if getattr(first, noun) != getattr(second, noun):
            raise InputError(f"{file}: its {noun} differ from those of {file_before.name}; shards share them")
    same_place = (
        first.positions is None
        if second.positions is None
        else first.positions is not None and np.array_equal(first.positions, second.positions, equal_nan=True)
    )
    if not same_place:
        raise InputError(f"{file}: its positions differ from those of {file_before.name}; shards share them")


def _check_follows(first: TrafficSet, second: TrafficSet, file_before: Path, file: Path) -> None:
    """Refuse a shard that does not begin one step after the one before it ends."""
    end, begin = first.timestamps[-1], second.timestamps[0]
    if begin <= first.timestamps[0]:
        raise InputError(
            f"{file} begins at {begin}, before {file_before.name}; name shards in the order of time"
        )
    if begin <= end:
        raise InputError(
            f"{file} begins at {begin}, but {file_before.name} ends at {end}; shards must not overlap"
        )
    step = first.frequency_seconds or second.frequency_seconds
    if step is not None and begin - end != np.timedelta64(step, "s"):
        raise InputError(
            f"{file} begins at {begin}, but {file_before.name} ends at {end} and steps are {step} s apart; "
            "add the shard between them"
        )
