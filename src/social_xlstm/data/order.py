"""The order of windows in an epoch, and which of them each process gets: none twice, none lost."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from social_xlstm.errors import InputError


@dataclass(frozen=True)
class EpochOrder:
    """A plan that depends on these numbers and the epoch alone, so that any process can repeat it."""

    windows: int
    batch_size: int
    shuffle: bool
    seed: int
    drop_last: bool
    rank: int = 0
    world_size: int = 1
    even: bool = True  # equally many batches for every process; measuring needs no such thing

    def __post_init__(self) -> None:
        if self.batch_size < 1:
            raise InputError(f"data.loader.batch_size is {self.batch_size}; it must be at least 1")
        if not 0 <= self.rank < self.world_size:
            raise InputError(f"rank {self.rank} is not one of {self.world_size} processes; count from 0")
        if len(self) == 0 and (self.even or self.windows == 0):
            raise InputError(
                f"{self.windows} windows do not fill one batch of {self.batch_size} for each of "
                f"{self.world_size} processes; lower data.loader.batch_size or set drop_last: false"
            )
        if self.even and not self.drop_last and self._shortest() < len(self):
            raise InputError(
                f"{self.windows} windows cannot be shared by {self.world_size} processes in equally many "
                f"batches of {self.batch_size}; set data.loader.drop_last: true, or change the batch size"
            )

    def __len__(self) -> int:
        """Count the batches of an epoch: unless uneven, equally many for every process."""
        if not self.even:
            own = len(range(self.rank, self.windows, self.world_size))
            return own // self.batch_size if self.drop_last else math.ceil(own / self.batch_size)
        if self.drop_last:
            return self.windows // (self.batch_size * self.world_size)
        return math.ceil(self.windows / (self.batch_size * self.world_size))

    def _shortest(self) -> int:
        """Count the windows of the process that has fewest."""
        return self.windows // self.world_size

    def batches(self, epoch: int, start_batch: int = 0) -> Iterator[np.ndarray]:
        """Yield this process's batches of window indices from a position of the epoch on."""
        order = np.arange(self.windows)
        if self.shuffle:
            order = np.random.default_rng([self.seed, epoch]).permutation(self.windows)
        # Every n-th, so that batch k of all processes together is batch k of one process n times as fast.
        own = order[self.rank :: self.world_size]
        edges = np.minimum(np.arange(len(self) + 1) * self.batch_size, len(own))
        if self.even and edges[-1] == edges[-2]:
            # This process has one window less than others and its last batch would be empty, which would
            # leave the others waiting for its gradients: the batch before gives one up.
            edges[-2] -= 1
        for begin, end in zip(edges[start_batch:-1], edges[start_batch + 1 :], strict=True):
            yield own[begin:end]
