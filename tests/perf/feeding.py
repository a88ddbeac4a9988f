"""Data for the loading contracts: windows as fast as memory, as slow as a disk, or copied by workers."""

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from social_xlstm.config import DataConfig, LoaderConfig
from social_xlstm.data.loader import Loader, build_loader
from social_xlstm.data.prepare import Prepared, prepare
from social_xlstm.data.series import Series
from social_xlstm.data.synthetic import SyntheticOptions, generate
from social_xlstm.data.windows import Windows


def prepared(detectors: int, steps: int = 2000, **data: Any) -> Prepared:
    """Prepare synthetic traffic; the same for the same numbers."""
    traffic = generate(SyntheticOptions(detectors=detectors, steps=steps, missing_share=0.0))
    return prepare(DataConfig(**data), traffic)


@dataclass(frozen=True, eq=False)
class SlowSeries(Series):
    """A series whose batches take their time to come, like those of a disk that others use too."""

    seconds: float = 0.0  # every batch
    burst_seconds: float = 0.0  # every `burst_every`-th batch instead
    burst_every: int = 8
    batch_size: int = 1

    def gather(self, starts, starts_there, lengths, *, pinned=False):
        """Wait as the disk would, then copy."""
        number = int(starts[0]) // self.batch_size
        is_burst = self.burst_seconds and number % self.burst_every == self.burst_every - 1
        time.sleep(self.burst_seconds if is_burst else self.seconds)
        return super().gather(starts, starts_there, lengths, pinned=pinned)


@dataclass(frozen=True, eq=False)
class CopiedSeries(Series):
    """A series that every process copies for itself before it reads: what sharing avoids."""

    copies: dict[int, Series] = field(default_factory=dict)

    def gather(self, starts, starts_there, lengths, *, pinned=False):
        """Read from this process's own copy."""
        own = self.copies.get(os.getpid())
        if own is None:
            own = self.copies[os.getpid()] = Series(self.values.clone(), self.observed.clone())
        return own.gather(starts, starts_there, lengths, pinned=pinned)


def slowed(windows: Windows, **delays: Any) -> Windows:
    """Give the same windows over a slow series."""
    return replace(windows, series=SlowSeries(windows.series.values, windows.series.observed, **delays))


def loader(
    windows: Windows, *, shuffle: bool = False, step_seconds: float | None = None, **switches: Any
) -> Loader:
    """Build the subject's own loader for the CPU."""
    config = LoaderConfig(**{"pin_memory": False, **switches})
    return build_loader(windows, config, shuffle=shuffle, seed=0, step_seconds=step_seconds)


class AsConfigured:
    """Batches with a loader's settings, for a modelled card: it plays workers by what they cost.

    Starting forty processes to count kernels would measure this machine, not the card's.
    """

    def __init__(self, batches: list[Any], config: LoaderConfig, *, epoch: int | None = None) -> None:
        self._batches, self._epoch = batches, epoch or len(batches)
        self.num_workers = 0 if config.resident else config.num_workers
        self.prefetch_factor = (config.prefetch_factor or 2) if self.num_workers else None
        self.persistent_workers = config.persistent_workers
        self.pin_memory = config.pin_memory and not config.resident

    def __len__(self) -> int:
        return self._epoch

    def __iter__(self) -> Iterator[Any]:
        return (self._batches[index % len(self._batches)] for index in range(self._epoch))


def private_bytes(pid: int) -> int:
    """Return the memory only this process holds."""
    import psutil

    return int(psutil.Process(pid).memory_full_info().uss)


def large_windows(mebibytes: int, kind: type[Series] = Series) -> Windows:
    """Make windows over a series of a given size in shared memory."""
    small = prepared(detectors=64, steps=300).train
    rows = mebibytes * 2**20 // (64 * 5)  # four bytes a value, one a mask
    values = torch.zeros(rows, 64, 1).share_memory_()
    observed = torch.ones(rows, 64, 1, dtype=torch.bool).share_memory_()
    start, step = small.timestamps[0], small.timestamps[1] - small.timestamps[0]
    return replace(
        small,
        series=kind(values, observed),
        timestamps=start + step * torch.arange(rows).numpy(),
    )
