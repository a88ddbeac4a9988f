"""A filled, scaled part of the time axis: tensors that workers and devices share, or left in a file."""

import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import h5py
import numpy as np
import torch

from social_xlstm.data import hdf5_guard as guard
from social_xlstm.data.parts import ARRAYS, OpenGaps
from social_xlstm.data.transport import allocate
from social_xlstm.errors import InputError

_SHARED_MEMORY = Path("/dev/shm")
_CHUNK_STEPS = 16  # a window of 15 steps touches two chunks


@dataclass(frozen=True, eq=False)
class Series:
    """Values [T,N,F] with what was measured; windows are views of it until a batch is gathered."""

    values: torch.Tensor  # float32 [T, N, F], contiguous
    observed: torch.Tensor  # bool [T, N, F], contiguous
    open_gaps: OpenGaps | None = None
    seconds_per_window: ClassVar[float] = 0.0  # beyond the copy of its bytes

    @classmethod
    def from_arrays(cls, values: np.ndarray, observed: np.ndarray, open_gaps: OpenGaps | None) -> "Series":
        """Wrap arrays without copying them."""
        return cls(torch.from_numpy(values), torch.from_numpy(observed), open_gaps)

    @property
    def nbytes(self) -> int:
        """Count the bytes of all tensors."""
        return sum(tensor.nbytes for tensor in self._tensors().values())

    @property
    def device(self) -> torch.device:
        """Return the device that holds the data."""
        return self.values.device

    @property
    def shape(self) -> tuple[int, int, int]:
        """Return steps, detectors, features."""
        steps, detectors, features = self.values.shape
        return steps, detectors, features

    def shared(self) -> "Series":
        """Move to shared memory, where worker processes of any start method read the same pages."""
        check_shared_memory(self.nbytes, "the data", "set data.storage: memmap")
        return self._moved(torch.Tensor.share_memory_)

    def to(self, device: torch.device) -> "Series":
        """Copy to a device once; everything windows need is then there."""
        # Waits for the device: one blocking copy for the whole training.
        return self._moved(lambda tensor: tensor.to(device))

    def _tensors(self) -> dict[str, torch.Tensor]:
        own = {"values": self.values, "observed": self.observed}
        return own if self.open_gaps is None else {**own, **self.open_gaps.tensors()}

    def _moved(self, move: Callable[[torch.Tensor], torch.Tensor]) -> "Series":
        moved = {name: move(tensor) for name, tensor in self._tensors().items()}
        values, observed = moved.pop("values"), moved.pop("observed")
        return Series(values, observed, self.open_gaps and self.open_gaps.with_tensors(moved))

    def gather(
        self,
        starts: np.ndarray,
        starts_there: torch.Tensor,
        lengths: tuple[int, int],
        *,
        pinned: bool = False,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Copy inputs [B,T,N,F], targets [B,P,N,F] and mask of windows, each in one vectorized pass.

        The starts come twice: as numbers on the host, to decide, and as a tensor beside the values, to index.
        """
        inputs, targets = lengths
        shape = (len(starts), inputs, targets, *self.values.shape[1:])
        features, predicted, mask = allocate(shape, self.device, pinned=pinned)
        _copy(self.values, starts_there, 0, features)
        _copy(self.values, starts_there, inputs, predicted)
        _copy(self.observed, starts_there, inputs, mask)
        if self.open_gaps is not None:
            self.open_gaps.hold(features, starts + (inputs - 1), starts_there + (inputs - 1))
        return features, predicted, mask


def _copy(source: torch.Tensor, starts: torch.Tensor, skip: int, copied: torch.Tensor) -> None:
    """Copy steps [start+skip, start+skip+steps) of every window into copied [B,steps,N,F]."""
    total, detectors, features = source.shape
    windows, steps = copied.shape[:2]
    row = detectors * features
    # Overlapping windows as rows of a matrix: no memory, and a row is contiguous, so copying is memcpy.
    overlapping = source.as_strided(
        (max(0, total - skip - steps + 1), steps * row), (row, 1), source.storage_offset() + skip * row
    )
    torch.index_select(overlapping, 0, starts, out=copied.view(windows, steps * row))


def check_shared_memory(needed: int, what: str, remedy: str) -> None:
    """Refuse what shared memory cannot hold: the kernel would not, and kill with a bus error later."""
    if not _SHARED_MEMORY.is_dir():
        return
    free = shutil.disk_usage(_SHARED_MEMORY).free
    if free < needed:
        raise InputError(
            f"{what} need {needed:,} bytes of shared memory, but {free:,} are free; "
            f"enlarge {_SHARED_MEMORY} (docker run --shm-size) or {remedy}"
        )


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
