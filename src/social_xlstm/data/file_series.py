"""A prepared part left in its HDF5 file and read window by window: slow, for sets that exceed the memory."""

import os
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import torch

from social_xlstm.data import hdf5_guard as guard
from social_xlstm.data.open_gaps import ARRAYS, OpenGaps
from social_xlstm.data.series import Series
from social_xlstm.data.transport import allocate

_CHUNK_STEPS = 16  # a window of 15 steps touches two chunks


class FileSeries:
    """The reading side of a Series, with one open file in each process."""

    device = torch.device("cpu")
    seconds_per_window = 0.0004  # three reads through the HDF5 library

    def __init__(self, path: Path, part: str) -> None:
        self.path, self.part = path, part
        self._file: h5py.File | None = None
        self._owner = 0  # the process that opened the file
        with guard.opened(path) as file:
            group = guard.group(file, part, str(path))
            self.shape: tuple[int, int, int] = guard.dataset(group, "values", str(path)).shape
            # Few beside the values, so they may stay in memory.
            self._open_gaps = (
                OpenGaps.from_arrays(*(group[name][:] for name in ARRAYS)) if "held" in group else None
            )
            self.nbytes = sum(group[name].nbytes for name in group)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_file": None, "_owner": 0}

    def _group(self) -> h5py.Group:
        """Open the file once per process: a handle inherited by fork belongs to the parent."""
        if self._file is None or self._owner != os.getpid():
            self._file = h5py.File(self.path, "r", locking="best-effort")
            self._owner = os.getpid()
        return self._file[self.part]

    def gather(
        self,
        starts: np.ndarray,
        starts_there: torch.Tensor,
        lengths: tuple[int, int],
        *,
        pinned: bool = False,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Read inputs, targets and mask, one window after the other."""
        group = self._group()
        inputs, targets = lengths
        shape = (len(starts), inputs, targets, *self.shape[1:])
        features, predicted, mask = allocate(shape, pinned=pinned)
        for row, start in enumerate(starts.tolist()):
            middle, end = start + inputs, start + inputs + targets
            features[row] = torch.from_numpy(group["values"][start:middle])
            predicted[row] = torch.from_numpy(group["values"][middle:end])
            mask[row] = torch.from_numpy(group["observed"][middle:end])
        if self._open_gaps is not None:
            self._open_gaps.hold(features, starts + (inputs - 1), starts_there + (inputs - 1))
        return features, predicted, mask

    def to(self, device: torch.device) -> Series:
        """Read everything and keep it on a device."""
        group = self._group()
        return Series.from_arrays(group["values"][:], group["observed"][:], self._open_gaps).to(device)


def write_part(file: h5py.File, part: str, arrays: dict[str, np.ndarray]) -> None:
    """Write the arrays of a part, chunked for reading windows."""
    for name, array in arrays.items():
        chunks = (min(_CHUNK_STEPS, len(array)), *array.shape[1:]) if len(array) else None
        file.create_dataset(f"{part}/{name}", data=array, chunks=chunks)
