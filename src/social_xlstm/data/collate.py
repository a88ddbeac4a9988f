"""Batches: all detectors in one tensor (centralized), or a dict with one tensor for each (distributed)."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch


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
    """Give the batch that batched reading has gathered already, or stack samples read one by one."""
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
