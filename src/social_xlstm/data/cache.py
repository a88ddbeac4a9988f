"""Prepared parts kept on disk, so that later runs and other processes map them instead of preparing anew."""

import hashlib
import json
import os
import shutil
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import h5py
import numpy as np

from social_xlstm.config import DataConfig
from social_xlstm.data import shards
from social_xlstm.data.parts import ARRAYS, About, OpenGaps, Part
from social_xlstm.data.scaler import Scaler
from social_xlstm.data.series import FileSeries, Series, write_part
from social_xlstm.data.sets import TrafficSet
from social_xlstm.errors import InputError

_VERSION = 1  # raise it when the same settings would prepare other numbers
_SETTINGS = ("split", "normalize", "selected_features", "selected_vdids", "fill_missing")
_FILE, _ABOUT = "parts.h5", "about.json"


def cache_folder(cfg: DataConfig, traffic: TrafficSet | None) -> Path:
    """Name the folder of a preparation by its settings and by the files, or the set, it is made from."""
    settings = {name: value for name, value in asdict(cfg).items() if name in _SETTINGS}
    digest = hashlib.sha256(json.dumps([_VERSION, settings], sort_keys=True).encode())
    path = Path(cfg.path)
    if traffic is not None:
        digest.update(repr((traffic.vdids, traffic.feature_names, traffic.features.shape)).encode())
        for array in (traffic.features, traffic.timestamps, traffic.positions):
            digest.update(b"" if array is None else np.ascontiguousarray(array).tobytes())
    else:
        for file in shards.shard_files(path) if path.is_dir() else [path]:
            try:
                status = file.stat()
            except (OSError, ValueError) as error:
                raise InputError(f"{file} cannot be opened ({error}); check data.path") from error
            digest.update(repr((str(file.resolve()), status.st_size, status.st_mtime_ns)).encode())
    parent = Path(cfg.cache_dir) if cfg.cache_dir is not None else path.with_name(f"{path.name}.prepared")
    return parent / digest.hexdigest()[:16]


def cached(
    folder: Path, storage: str, make: Callable[[], tuple[About, dict[str, Part]]]
) -> tuple[About, dict[str, Series | FileSeries]]:
    """Open the parts kept in a folder, making and keeping them first where they are not there yet."""
    kept = folder / storage
    if not kept.is_dir():
        _keep(kept, storage, *make())
    try:
        about = _about_from(json.loads((kept / _ABOUT).read_text()))
        if storage == "file":
            return about, {part: FileSeries(kept / _FILE, part) for part in about.bounds}
        return about, {part: _mapped(kept, part) for part in about.bounds}
    except (OSError, ValueError, LookupError, TypeError, EOFError) as error:
        raise InputError(f"the prepared data in {kept} is damaged ({error}); remove that folder") from error


def _keep(kept: Path, storage: str, about: About, parts: dict[str, Part]) -> None:
    """Write parts beside their place and rename: another process may be doing the same."""
    try:
        kept.parent.mkdir(parents=True, exist_ok=True)
        unfinished = Path(mkdtemp(prefix=f".{storage}-", dir=kept.parent))
        try:
            _write(unfinished, storage, parts)
            (unfinished / _ABOUT).write_text(json.dumps(_plain(about)))
            os.rename(unfinished, kept)
        except OSError:
            if not kept.is_dir():  # else the other process was first, with the same content
                raise
        finally:
            shutil.rmtree(unfinished, ignore_errors=True)
    except OSError as error:
        raise InputError(
            f"{kept} cannot be written ({error}); set data.cache_dir to a folder with space, "
            "or data.storage: shared"
        ) from error


def _write(folder: Path, storage: str, parts: dict[str, Part]) -> None:
    """Write the arrays of every part, as one HDF5 file or as files to be mapped."""
    arrays = {name: _arrays(part) for name, part in parts.items()}
    if storage == "file":
        with h5py.File(folder / _FILE, "w", libver="v110") as file:
            for name, part in arrays.items():
                write_part(file, name, part)
    else:
        for name, part in arrays.items():
            for kind, array in part.items():
                np.save(folder / f"{name}.{kind}.npy", array)


def _arrays(part: Part) -> dict[str, np.ndarray]:
    named = {"values": part.values, "observed": part.observed}
    if part.open_gaps is None:
        return named
    return {**named, **{name: tensor.numpy() for name, tensor in part.open_gaps.tensors().items()}}


def _mapped(kept: Path, name: str) -> Series:
    """Map the arrays of a part: every process that reads them shares the same pages."""

    def load(kind: str) -> np.ndarray:
        # Copy on write: torch warns about read-only arrays, and nothing writes here anyway.
        return np.load(kept / f"{name}.{kind}.npy", mmap_mode="c")

    has_gaps = (kept / f"{name}.held.npy").exists()
    gaps = OpenGaps.from_arrays(*map(load, ARRAYS)) if has_gaps else None
    return Series.from_arrays(load("values"), load("observed"), gaps)


def _plain(about: About) -> dict[str, Any]:
    """Convert an About to what JSON can hold."""
    return {
        **vars(about),
        "scaler": about.scaler.state_dict(),
        "timestamps": about.timestamps.astype(np.int64).tolist(),
        "positions": None if about.positions is None else about.positions.tolist(),
    }


def _about_from(plain: dict[str, Any]) -> About:
    """Restore what _plain returned."""
    positions, directions = plain["positions"], plain["directions"]
    return About(
        scaler=Scaler.from_state_dict(plain["scaler"]),
        timestamps=np.array(plain["timestamps"], dtype=np.int64).astype("datetime64[s]"),
        bounds={part: (begin, end) for part, (begin, end) in plain["bounds"].items()},
        vdids=tuple(plain["vdids"]),
        feature_names=tuple(plain["feature_names"]),
        positions=None if positions is None else np.array(positions, dtype=np.float64),
        directions=None if directions is None else tuple(directions),
        units=plain["units"],
    )
