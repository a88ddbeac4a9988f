"""Where batches are written, and how a worker hands one over: as a single block of shared memory."""

from dataclasses import dataclass, replace

import numpy as np
import torch

from social_xlstm.data.collate import Batch

Shape = tuple[int, int, int, int, int]  # B windows, T inputs, P targets, N detectors, F features


def allocate(
    shape: Shape, device: torch.device | None = None, *, pinned: bool = False
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Make room for features, targets and mask where the consumer wants them."""
    if torch.utils.data.get_worker_info() is not None:
        # Written into shared memory at once, a batch is not copied to be sent; torch's collate does so too.
        return _views(torch.UntypedStorage._new_shared(_block_bytes(shape)), shape)
    features, targets, mask = (
        torch.empty(size, dtype=dtype, device=device, pin_memory=pinned) for size, dtype in _layout(shape)
    )
    return features, targets, mask


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
        """Give the batch that lies in the block."""
        return Batch(*_views(self.block.untyped_storage(), self.shape))


def pack(batch: Batch) -> Packed:
    """Pack a batch that allocate made room for in a worker."""
    windows, inputs, detectors, features = batch.features.shape
    block = torch.empty(0, dtype=torch.uint8).set_(batch.features.untyped_storage())
    return Packed(block, (windows, inputs, batch.targets.shape[1], detectors, features))


def _layout(shape: Shape) -> tuple[tuple[tuple[int, ...], torch.dtype], ...]:
    """List size and type of features, targets and mask, the widest type first so that all are aligned."""
    windows, inputs, targets, detectors, features = shape
    predicted = (windows, targets, detectors, features)
    return (
        ((windows, inputs, detectors, features), torch.float32),
        (predicted, torch.float32),
        (predicted, torch.bool),
    )


def _block_bytes(shape: Shape) -> int:
    """Count the bytes of a packed batch."""
    return sum(int(np.prod(size)) * dtype.itemsize for size, dtype in _layout(shape))


def _views(storage: torch.UntypedStorage, shape: Shape) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """See a block as features, targets and mask, without copying."""
    views, begin = [], 0
    for size, dtype in _layout(shape):
        views.append(torch.empty(0, dtype=dtype).set_(storage, begin // dtype.itemsize, size))
        begin += views[-1].nbytes
    features, targets, mask = views
    return features, targets, mask
