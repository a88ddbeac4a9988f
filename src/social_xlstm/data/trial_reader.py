"""The process that hdf5_trial.py starts: reads everything in a file and survives, or not."""

import contextlib
import os
import resource
import sys

import h5py

_ERRORS = (
    OSError, RuntimeError, LookupError, ValueError, TypeError, AttributeError, ArithmeticError, MemoryError,
    NotImplementedError, SystemError,
)  # fmt: skip
_MEMORY_BYTES = 2**32


def read_everything(path: str) -> None:
    """Read all attributes and datasets; errors are for the real reader to report."""
    # A damaged length must not fill the machine: allocation fails here instead.
    limit = _MEMORY_BYTES + 8 * os.path.getsize(path)
    with contextlib.suppress(OSError, ValueError):  # not every system lets itself be limited
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    with contextlib.suppress(*_ERRORS), h5py.File(path, "r", locking="best-effort") as file:
        _read(file, depth=0)


def _read(found: h5py.Group | h5py.Dataset, depth: int) -> None:
    """Read one object and what it contains."""
    for name in _names(found.attrs):
        with contextlib.suppress(*_ERRORS):
            found.attrs[name]
    if isinstance(found, h5py.Dataset):
        with contextlib.suppress(*_ERRORS):
            found[()]
    elif isinstance(found, h5py.Group) and depth < 8:  # a damaged link may point back up
        for name in _names(found):
            with contextlib.suppress(*_ERRORS):
                _read(found[name], depth + 1)


def _names(found: h5py.Group | h5py.AttributeManager) -> list[str]:
    """List names as far as they can be read."""
    names: list[str] = []
    with contextlib.suppress(*_ERRORS):
        names.extend(found)
    return names


if __name__ == "__main__":
    read_everything(sys.argv[1])
