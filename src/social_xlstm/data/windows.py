"""Windows over a part of the time axis: T steps in, P steps out, none across a break in time."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch.utils.data import Dataset

from social_xlstm.data.collate import Batch, Sample
from social_xlstm.data.file_series import FileSeries
from social_xlstm.data.series import Series
from social_xlstm.errors import InputError


@dataclass(frozen=True, eq=False)
class Windows(Dataset):
    """A dataset of windows; a list of indices is answered by one vectorized copy."""

    series: Series | FileSeries
    timestamps: np.ndarray  # datetime64[s] [T]
    sequence_length: int
    prediction_length: int
    stride: int = 1
    step_seconds: int | None = None
    vdids: tuple[str, ...] = ()
    feature_names: tuple[str, ...] = ()
    positions_xy: torch.Tensor | None = None
    starts: np.ndarray = field(init=False)  # int64 [windows]

    def __post_init__(self) -> None:
        for name in ("sequence_length", "prediction_length", "stride"):
            if getattr(self, name) < 1:
                raise InputError(f"data.{name} is {getattr(self, name)}; it must be at least 1")
        object.__setattr__(self, "starts", self._possible_starts())

    def _possible_starts(self) -> np.ndarray:
        """List the first steps of windows whose steps all follow one another at the set's frequency."""
        span = self.sequence_length + self.prediction_length - 1
        starts = np.arange(0, max(0, len(self.timestamps) - span), self.stride)
        if self.step_seconds is None or not len(starts):
            return starts
        breaks = np.diff(self.timestamps).astype(np.int64) != self.step_seconds
        breaks_before = np.concatenate([[0], np.cumsum(breaks)])
        return starts[breaks_before[starts + span] == breaks_before[starts]]

    def __len__(self) -> int:
        return len(self.starts)

    def __getitem__(self, index: int) -> Sample:
        batch = self.gather(np.array([index]))
        return Sample(batch.features[0], batch.targets[0], batch.mask[0])

    def __getitems__(self, indices: Sequence[int] | np.ndarray) -> Batch:
        """Give the windows of a whole batch; torch's loader prefers this to one call for each."""
        return self.gather(np.asarray(indices, dtype=np.int64))

    def gather(
        self, indices: np.ndarray, starts_there: torch.Tensor | None = None, *, pinned: bool = False
    ) -> Batch:
        """Copy windows into a batch; starts_there are their first steps as a tensor beside the data."""
        starts = self.starts[indices]
        if starts_there is None:
            starts_there = torch.from_numpy(starts).to(self.series.device)
        lengths = (self.sequence_length, self.prediction_length)
        return Batch(*self.series.gather(starts, starts_there, lengths, pinned=pinned))

    def to(self, device: torch.device | str) -> "Windows":
        """Give the same windows over a copy of the data on a device (O24)."""
        return replace(self, series=self.series.to(torch.device(device)))

    def target_times(self, index: int) -> np.ndarray:
        """Give the P times a window predicts."""
        first = self.starts[index] + self.sequence_length
        return self.timestamps[first : first + self.prediction_length]

    @property
    def sample_bytes(self) -> int:
        """Count the bytes of one window: inputs, targets, and one byte per target for the mask."""
        _, detectors, features = self.series.shape
        steps = 4 * (self.sequence_length + self.prediction_length) + self.prediction_length
        return steps * detectors * features
