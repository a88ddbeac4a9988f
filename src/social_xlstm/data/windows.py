"""Windows over a part of the time axis, T steps in, P steps out, and the batches they are gathered into."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
import torch
from torch.utils.data import Dataset

from social_xlstm.data.series import FileSeries, Series
from social_xlstm.data.transport import Shape, views
from social_xlstm.errors import InputError


class Sample(NamedTuple):
    """One window over all detectors."""

    features: torch.Tensor  # [T, N, F]
    targets: torch.Tensor  # [P, N, F]
    mask: torch.Tensor  # bool [P, N, F]: True where the target was measured


@dataclass(frozen=True, eq=False)
class Batch:
    """B windows over all detectors."""

    features: torch.Tensor  # [B, T, N, F]
    targets: torch.Tensor  # [B, P, N, F]
    mask: torch.Tensor  # bool [B, P, N, F]: True where the target was measured
    positions_xy: torch.Tensor | None = None  # [N, 2] metres

    def pin_memory(self) -> "Batch":
        """Copy to page-locked memory; torch's loader calls this in its pinning thread."""
        return replace(
            self,
            features=self.features.pin_memory(),
            targets=self.targets.pin_memory(),
            mask=self.mask.pin_memory(),
        )

    def distributed(self, vdids: Sequence[str]) -> "DetectorBatch":
        """Split into one contiguous tensor for each detector."""
        return DetectorBatch(
            features=_split(self.features, vdids),
            targets=_split(self.targets, vdids),
            mask=_split(self.mask, vdids),
            positions_xy=None
            if self.positions_xy is None
            else dict(zip(vdids, self.positions_xy.unbind(0), strict=True)),
        )


@dataclass(frozen=True, eq=False)
class DetectorBatch:
    """B windows as a dict of detectors: the format of the original, kept for the per-detector encoder."""

    features: dict[str, torch.Tensor]  # [B, T, F] each
    targets: dict[str, torch.Tensor]  # [B, P, F] each
    mask: dict[str, torch.Tensor]
    positions_xy: dict[str, torch.Tensor] | None = None  # [2] each

    def centralized(self, vdids: Sequence[str]) -> Batch:
        """Join the detectors, in the order given, into one batch."""
        return Batch(
            features=torch.stack([self.features[vdid] for vdid in vdids], dim=2),
            targets=torch.stack([self.targets[vdid] for vdid in vdids], dim=2),
            mask=torch.stack([self.mask[vdid] for vdid in vdids], dim=2),
            positions_xy=None
            if self.positions_xy is None
            else torch.stack([self.positions_xy[vdid] for vdid in vdids]),
        )


def _split(block: torch.Tensor, vdids: Sequence[str]) -> dict[str, torch.Tensor]:
    """Copy [B,T,N,F] detector by detector into tensors [B,T,F] of one storage."""
    return dict(zip(vdids, block.permute(2, 0, 1, 3).contiguous().unbind(0), strict=True))


def collate(samples: Batch | Sequence[Sample]) -> Batch:
    """Return the batch that batched reading has gathered already, or stack samples read one by one."""
    if isinstance(samples, Batch):
        return samples
    features, targets, mask = zip(*samples, strict=True)
    return Batch(torch.stack(features), torch.stack(targets), torch.stack(mask))


def collate_detectors(samples: Sequence[Sample], vdids: Sequence[str]) -> DetectorBatch:
    """Stack samples detector by detector: what the original does, slow, for comparison (O5)."""
    return DetectorBatch(
        *(
            {
                vdid: torch.stack([getattr(sample, name)[:, index] for sample in samples])
                for index, vdid in enumerate(vdids)
            }
            for name in Sample._fields
        )
    )


@dataclass(frozen=True, eq=False)
class Packed:
    """A batch on its way out of a worker.

    One tensor instead of three: each would cost a file descriptor and a connection, about 0.8 ms.
    """

    block: torch.Tensor  # uint8
    shape: Shape

    def pin_memory(self) -> "Packed":
        """Copy to page-locked memory; torch's loader calls this in its pinning thread."""
        return replace(self, block=self.block.pin_memory())

    def unpacked(self) -> Batch:
        """Return the batch that lies in the block."""
        return Batch(*views(self.block.untyped_storage(), self.shape))


def pack(batch: Batch) -> Packed:
    """Pack a batch that allocate made room for in a worker."""
    windows, inputs, detectors, features = batch.features.shape
    block = torch.empty(0, dtype=torch.uint8).set_(batch.features.untyped_storage())
    return Packed(block, (windows, inputs, batch.targets.shape[1], detectors, features))


@dataclass(frozen=True, eq=False)
class Windows(Dataset):
    """A dataset of windows; a list of indices is read by one vectorized copy."""

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
        """Return the windows of a whole batch; torch's loader prefers this to one call for each."""
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
        """Return the same windows over a copy of the data on a device (O24)."""
        return replace(self, series=self.series.to(torch.device(device)))

    def target_times(self, index: int) -> np.ndarray:
        """Return the P times a window predicts."""
        first = self.starts[index] + self.sequence_length
        return self.timestamps[first : first + self.prediction_length]

    @property
    def sample_bytes(self) -> int:
        """Count the bytes of one window: inputs, targets, and one byte per target for the mask."""
        _, detectors, features = self.series.shape
        steps = 4 * (self.sequence_length + self.prediction_length) + self.prediction_length
        return steps * detectors * features
