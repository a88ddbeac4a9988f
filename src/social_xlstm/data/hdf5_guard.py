"""Open HDF5 files of unknown origin, so that whatever is wrong with one ends in an InputError."""

import mmap
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import h5py
import numpy as np

from social_xlstm.errors import InputError

# What h5py and numpy raise on damaged files, found by fuzzing; it depends on which byte is hit.
_FOREIGN_ERRORS = (
    OSError, RuntimeError, LookupError, ValueError, TypeError, AttributeError, ArithmeticError, MemoryError,
    NotImplementedError, SystemError,
)  # fmt: skip
# No filter of HDF5 packs tighter than deflate's 1032:1, so a larger claim is a damaged size field.
_MAX_COMPRESSION = 1100
_HEADROOM_BYTES = 2**20
# Files of the newer format carry checksums of their structure, so damage is an error there. Those of the
# older one, and heaps of variable-length strings, do not: fuzzing finds bytes that kill it or hang it.
SIGNATURE = b"\x89HDF\r\n\x1a\n"
_FIRST_CHECKED_VERSION = 2
_HEAP = b"GCOL"
_READER = Path(__file__).with_name("trial_reader.py")
_SECONDS, _BYTES_PER_SECOND = 15.0, 20e6


@contextmanager
def opened(path: Path) -> Iterator[h5py.File]:
    """Open a file for reading and turn every foreign error inside the block into an InputError."""
    _check_is_hdf5(path)
    try:
        if is_unchecked(path):
            try_reading(path)
        with h5py.File(path, "r", locking="best-effort") as file:
            yield file
    except InputError:
        raise
    except _FOREIGN_ERRORS as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        state = "truncated" if "truncated" in reason else "damaged or not understood"
        raise InputError(f"{path} is {state} ({reason}); copy it again or make it anew") from error


def _check_is_hdf5(path: Path) -> None:
    """Refuse paths that are no HDF5 file at all, saying what they are instead."""
    try:
        if path.is_dir():
            raise InputError(
                f"{path} is a folder, not an HDF5 file; give one file, or read the folder as shards"
            )
        size = path.stat().st_size
        readable = os.access(path, os.R_OK)
    except (OSError, ValueError) as error:
        raise InputError(f"{path} cannot be opened ({error}); check the path") from error
    if not readable:
        raise InputError(f"{path} cannot be read; check its permissions")
    if size == 0:
        raise InputError(f"{path} is empty (0 bytes); copy it again or make it anew")
    if not h5py.is_hdf5(path):
        raise InputError(f"{path} is not an HDF5 file; convert it with `social-xlstm convert`")


def group(parent: h5py.Group, name: str, where: str) -> h5py.Group:
    """Fetch a group that must exist."""
    found = parent.get(name)
    if not isinstance(found, h5py.Group):
        raise InputError(
            f"{where}: the group {name} is missing; other layouts are read by `social-xlstm convert`"
        )
    return found


def dataset(parent: h5py.Group, name: str, where: str) -> h5py.Dataset:
    """Fetch a dataset that must exist and whose claimed size the file can hold."""
    found = parent.get(name)
    if not isinstance(found, h5py.Dataset):
        raise InputError(
            f"{where}: the dataset {parent.name.rstrip('/')}/{name} is missing; write the file anew"
        )
    # Checked before anything is allocated: one flipped bit in a length would ask for terabytes.
    claimed = int(np.prod([int(side) for side in found.shape or ()], dtype=object)) * found.dtype.itemsize
    if claimed > _MAX_COMPRESSION * found.id.get_storage_size() + _HEADROOM_BYTES:
        raise InputError(
            f"{where}: {name} claims {claimed:,} bytes but stores {found.id.get_storage_size():,}; "
            "the file is damaged or was never filled: copy it again or make it anew"
        )
    return found


def texts(parent: h5py.Group, name: str, where: str) -> list[str]:
    """Read a one-dimensional dataset of strings."""
    found = dataset(parent, name, where)
    if h5py.check_string_dtype(found.dtype) is None:
        raise InputError(f"{where}: {name} is {found.dtype}, not strings; write it as strings")
    if found.ndim != 1:
        raise InputError(
            f"{where}: {name} has {found.ndim} dimensions, expected one; write it as a plain list"
        )
    return [str(text) for text in found.asstr()[:]]


def text(parent: h5py.Group, name: str, where: str) -> str | None:
    """Read an optional single string, stored as a scalar or as a list of one."""
    if name not in parent:
        return None
    found = dataset(parent, name, where)
    if h5py.check_string_dtype(found.dtype) is None or found.size != 1:
        raise InputError(f"{where}: {name} is not a single string; write it as one")
    return str(np.asarray(found.asstr()[()]).reshape(-1)[0])


def as_text(value: object) -> str:
    """Read an attribute as text, whichever way it was stored."""
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def write_texts(parent: h5py.Group, name: str, values: Sequence[str]) -> None:
    """Write strings of fixed length.

    Those of variable length lie in a heap without checksums, and HDF5 loops for ever over some damaged heaps.
    """
    encoded = [value.encode() for value in values]
    parent.create_dataset(name, data=np.array(encoded, dtype=_fixed(encoded)))


def write_text(parent: h5py.Group, name: str, value: str) -> None:
    """Write a single string."""
    parent.create_dataset(name, data=np.array(value.encode(), dtype=_fixed([value.encode()])))


def write_text_attribute(parent: h5py.Group, name: str, value: str) -> None:
    """Write a string beside a group."""
    parent.attrs.create(name, np.array(value.encode(), dtype=_fixed([value.encode()])))


def _fixed(encoded: Sequence[bytes]) -> np.dtype:
    """Return the string type that holds the longest."""
    return h5py.string_dtype("utf-8", max([1, *map(len, encoded)]))


def is_unchecked(path: Path) -> bool:
    """Return whether damage to a file's structure could go unnoticed by the library."""
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        at = data.find(SIGNATURE) + len(SIGNATURE)
        return data[at] < _FIRST_CHECKED_VERSION or data.find(_HEAP) >= 0


def try_reading(path: Path, *, seconds: float | None = None) -> None:
    """Refuse a file that a reading process does not survive or does not finish in time."""
    limit = _SECONDS + path.stat().st_size / _BYTES_PER_SECOND if seconds is None else seconds
    advice = "copy it again or make it anew"
    try:
        # -P: this folder's inspect.py must not stand in for Python's.
        command = [sys.executable, "-P", str(_READER), str(path)]
        ended = subprocess.run(command, timeout=limit, capture_output=True, check=False)
    except subprocess.TimeoutExpired as error:
        raise InputError(
            f"{path} is damaged (reading it does not end within {limit:.0f} s); {advice}"
        ) from error
    if ended.returncode < 0:
        name = signal.Signals(-ended.returncode).name
        raise InputError(f"{path} is damaged (reading it ends the process with {name}); {advice}")
    if ended.returncode > 0:
        reason = ended.stderr.decode(errors="replace").strip().splitlines() or ["no reason given"]
        raise InputError(
            f"{path} cannot be tried out ({reason[-1]}); is h5py installed for {sys.executable}?"
        )
