"""Where batches are written: on their device, or in a worker as a single block of shared memory."""

import numpy as np
import torch

Shape = tuple[int, int, int, int, int]  # B windows, T inputs, P targets, N detectors, F features


def allocate(
    shape: Shape, device: torch.device | None = None, *, pinned: bool = False
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Make room for features, targets and mask where the consumer wants them."""
    if torch.utils.data.get_worker_info() is not None:
        # Written into shared memory at once, a batch is not copied to be sent; torch's collate does so too.
        return views(torch.UntypedStorage._new_shared(_block_bytes(shape)), shape)
    features, targets, mask = (
        torch.empty(size, dtype=dtype, device=device, pin_memory=pinned) for size, dtype in _layout(shape)
    )
    return features, targets, mask


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
    return sum(int(np.prod(size)) * dtype.itemsize for size, dtype in _layout(shape))


def views(storage: torch.UntypedStorage, shape: Shape) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """View a block as features, targets and mask, without copying."""
    views, begin = [], 0
    for size, dtype in _layout(shape):
        views.append(torch.empty(0, dtype=dtype).set_(storage, begin // dtype.itemsize, size))
        begin += views[-1].nbytes
    features, targets, mask = views
    return features, targets, mask
