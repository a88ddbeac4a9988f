"""Batches for a training, in repeatable order: loaded here, by workers, or from the device itself."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import torch
from torch.utils.data import DataLoader

from social_xlstm.config import LoaderConfig
from social_xlstm.data.series import check_shared_memory
from social_xlstm.data.windows import Batch, DetectorBatch, Windows, pack
from social_xlstm.data.workers import (
    check_num_workers,
    choose_num_workers,
    estimate_loader_seconds,
    host_memory_bytes,
    measure_loader_seconds,
    usable_cores,
)
from social_xlstm.errors import InputError

_DEFAULT_PREFETCH = 2
_CPU_STEP_SECONDS, _ACCELERATOR_STEP_SECONDS = 0.5, 0.01
_PINNING_DEVICES = ("cuda", "xpu")


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


@dataclass(frozen=True)
class LoaderState:
    """A position in the stream of batches, enough to continue exactly there."""

    epoch: int
    batch: int


class Loader:
    """An iterable over the batches of one epoch at a time."""

    def __init__(
        self,
        windows: Windows,
        order: EpochOrder,
        cfg: LoaderConfig,
        *,
        device: torch.device,
        num_workers: int,
        batch_format: str,
    ) -> None:
        self.windows = windows.to(device) if cfg.resident else windows
        self.order = order
        self.device = device
        self.batch_format = batch_format
        self.batch_size = order.batch_size
        self.drop_last = order.drop_last
        self.resident = cfg.resident
        self.num_workers = num_workers
        self.prefetch_factor = (cfg.prefetch_factor or _DEFAULT_PREFETCH) if num_workers else None
        self.persistent_workers = cfg.persistent_workers and num_workers > 0
        # Elsewhere there is nothing to pin for, and torch warns.
        self.pin_memory = cfg.pin_memory and device.type in _PINNING_DEVICES and not cfg.resident
        self.timeout = cfg.timeout if num_workers else 0.0
        # Positions never change: they go to the device once and accompany every batch from there.
        positions = windows.positions_xy
        if positions is not None and device.type == "mps":  # which has no doubles
            positions = positions.float()
        self._positions_xy = None if positions is None else positions.to(device)
        self._plan = _Plan(order)
        self._position = 0
        self._by_workers: DataLoader | None = None

    def __len__(self) -> int:
        """Count the batches of a whole epoch, also while one is resumed."""
        return len(self.order)

    @property
    def state(self) -> LoaderState:
        """Return the epoch and how many of its batches were yielded."""
        return LoaderState(self._plan.epoch, self._position)

    @property
    def host_memory_bytes(self) -> int:
        """Count the host memory that batches in flight take."""
        return host_memory_bytes(
            self.num_workers, self.prefetch_factor, self.batch_size, self.windows.sample_bytes
        )

    def set_epoch(self, epoch: int, start_batch: int = 0) -> None:
        """Choose the epoch, and thereby the order, of the next iteration; skip its first batches unread."""
        if epoch < 0 or not 0 <= start_batch <= len(self):
            raise InputError(
                f"epoch {epoch}, batch {start_batch} does not exist; an epoch has {len(self)} batches"
            )
        self._plan.epoch, self._plan.start_batch, self._position = epoch, start_batch, start_batch

    def __iter__(self) -> Iterator[Batch | DetectorBatch]:
        batches = self._loaded_by_workers() if self.num_workers else self._loaded_here()
        self._position = self._plan.start_batch
        for batch in batches:
            self._position += 1
            yield self._finished(batch)
        self._plan.start_batch = 0

    def _finished(self, batch: Batch) -> Batch | DetectorBatch:
        """Add the positions and bring the batch into its format."""
        batch = replace(batch, positions_xy=self._positions_xy)
        # Split here and not in a worker: sending a thousand small tensors costs a hundred times more.
        return batch.distributed(self.windows.vdids) if self.batch_format == "distributed" else batch

    def _loaded_here(self) -> Iterator[Batch]:
        """Gather each batch when it is requested, into pinned memory or on the device."""
        indices = list(self._plan)
        if not indices:
            return
        # The only copy of an epoch of resident data: all window starts at once.
        starts = torch.from_numpy(self.windows.starts[np.concatenate(indices)]).to(self.windows.series.device)
        begin = 0
        for chosen in indices:
            yield self.windows.gather(chosen, starts[begin : begin + len(chosen)], pinned=self.pin_memory)
            begin += len(chosen)

    def _loaded_by_workers(self) -> Iterator[Batch]:
        """Let torch's loader gather batches in other processes."""
        if self._by_workers is None:
            self._by_workers = self._torch_loader()
        batches = iter(self._by_workers)
        while True:
            try:
                batch = next(batches)
            except StopIteration:
                return
            except RuntimeError as error:
                if "timed out" not in str(error):
                    raise
                # The exception keeps the iterator alive, and with it the workers: stop them now.
                batches._shutdown_workers()
                self.close()
                raise TimeoutError(
                    f"no batch came from {self.num_workers} workers within data.loader.timeout = "
                    f"{self.timeout:g} s; a worker hangs: find where with num_workers 0, or raise the timeout"
                ) from error
            yield batch.unpacked()

    def _torch_loader(self) -> DataLoader:
        """Build torch's loader over the plan of whole batches."""
        return _WorkerLoader(
            self.windows,
            batch_sampler=self._plan,
            num_workers=self.num_workers,
            collate_fn=pack,
            pin_memory=self.pin_memory,
            prefetch_factor=self.prefetch_factor,
            persistent_workers=self.persistent_workers,
            timeout=self.timeout,
            # Its own generator: drawing the workers' seeds must not move the training's random numbers.
            generator=torch.Generator().manual_seed(self.order.seed),
        )

    def close(self) -> None:
        """Stop the workers, if any are kept."""
        self._by_workers = None


class _WorkerLoader(DataLoader):
    """Torch's loader without its warning: check_num_workers has judged the number already."""

    def check_worker_number_rationality(self) -> None:
        """Do not warn."""


class _Plan:
    """The batches of the chosen epoch, in the form torch's loader takes them."""

    def __init__(self, order: EpochOrder) -> None:
        self.order = order
        self.epoch = self.start_batch = 0

    def __len__(self) -> int:
        return len(self.order)

    def __iter__(self) -> Iterator[np.ndarray]:
        # Arrays, not tensors: torch would send each tensor of indices through a file descriptor.
        return self.order.batches(self.epoch, self.start_batch)


def build_loader(
    windows: Windows,
    cfg: LoaderConfig,
    *,
    device: torch.device | str = "cpu",
    shuffle: bool,
    seed: int,
    batch_format: Literal["centralized", "distributed"] = "centralized",
    rank: int = 0,
    world_size: int = 1,
    even: bool = True,
    step_seconds: float | None = None,
) -> Loader:
    """Build the loader of a configuration; with step_seconds, num_workers: auto measures its choice."""
    device = torch.device(device)
    order = EpochOrder(len(windows), cfg.batch_size, shuffle, seed, cfg.drop_last, rank, world_size, even)
    if batch_format not in ("centralized", "distributed"):
        raise InputError(f"data.batch_format is {batch_format!r}; choose centralized or distributed")
    _check_switches(cfg)
    cores = usable_cores(world_size)
    if cfg.resident:
        num_workers = 0
    elif cfg.num_workers == "auto":
        num_workers = auto_num_workers(
            windows,
            order,
            batch_format,
            on_accelerator=device.type != "cpu",
            cores=cores,
            step_seconds=step_seconds,
        )
    else:
        num_workers = check_num_workers(cfg.num_workers, cores)
    loader = Loader(windows, order, cfg, device=device, num_workers=num_workers, batch_format=batch_format)
    if num_workers:
        check_shared_memory(
            loader.host_memory_bytes, "batches in flight", "lower prefetch_factor or num_workers"
        )
    return loader


def auto_num_workers(
    windows: Windows,
    order: EpochOrder,
    batch_format: str,
    *,
    on_accelerator: bool,
    cores: int,
    step_seconds: float | None,
) -> int:
    """Choose by measurement where the step's time is known, else by rule.

    The rule assumes a fast step for the device: half a second on CPU, where a worker would also take a core
    from the model; 10 ms on an accelerator.
    """
    if step_seconds is not None:
        chosen = choose_num_workers(
            measure_loader_seconds(windows, order.batch_size), step_seconds, cores=cores
        )
    else:
        assumed = _ACCELERATOR_STEP_SECONDS if on_accelerator else _CPU_STEP_SECONDS
        estimated = estimate_loader_seconds(windows, order.batch_size, batch_format)
        chosen = choose_num_workers(estimated, assumed, cores=cores)
    # A worker takes longer to start than a handful of batches takes to load.
    return min(chosen, len(order) // 8)


def _check_switches(cfg: LoaderConfig) -> None:
    """Refuse switches that contradict each other; torch would do so later and less clearly."""
    if cfg.prefetch_factor is not None and cfg.prefetch_factor < 1:
        raise InputError(f"data.loader.prefetch_factor is {cfg.prefetch_factor}; give at least 1, or null")
    if cfg.prefetch_factor is not None and cfg.num_workers == 0:
        raise InputError(
            f"data.loader.prefetch_factor is {cfg.prefetch_factor} with num_workers 0, but only "
            "workers fetch ahead; set prefetch_factor: null, or num_workers above 0"
        )
    if cfg.timeout < 0:
        raise InputError(f"data.loader.timeout is {cfg.timeout:g} s; give 0 (wait for ever) or more")
    if cfg.resident and cfg.num_workers not in (0, "auto"):
        raise InputError(
            f"data.loader.resident keeps the data on the device, so {cfg.num_workers} workers have nothing "
            "to load; set num_workers: 0 or auto"
        )
