"""How fast a training goes: windows per second, and the share of time it waited for data."""

import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch

from social_xlstm.train.hooks import Callback
from social_xlstm.train.state import FitState


class Speedometer(Callback):
    """Time the loader from outside; the step itself stays without a clock.

    The clock is the host's. It is right over an epoch, whose end waits for the device, and an estimate
    within one, where the host may run ahead.
    """

    def __init__(self, world_size: int = 1, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock, self._world_size = clock, world_size
        self._columns: dict[str, float | None] = {}
        self._start()

    def _start(self) -> None:
        self._began = self._clock()  # clock
        self._waited, self._windows = 0.0, 0

    def wrap_loader(self, batches: Iterable[Any]) -> Iterable[Any]:
        """Count windows and the time between requesting a batch and receiving it."""
        self._start()
        return self._timed(batches)

    def _timed(self, batches: Iterable[Any]) -> Iterator[Any]:
        requested = self._clock()  # clock
        for batch in batches:
            self._waited += self._clock() - requested  # clock
            self._windows += windows_in(batch)
            yield batch
            requested = self._clock()  # clock

    @property
    def seconds(self) -> float:
        """Return the time since the epoch, or its resumed rest, began."""
        return self._clock() - self._began  # clock

    @property
    def samples_per_s(self) -> float | None:
        """Return windows per second over all processes, once there is something to divide."""
        seconds = self.seconds
        return self._windows * self._world_size / seconds if self._windows and seconds > 0 else None

    @property
    def data_wait_share(self) -> float | None:
        """Return the share of the epoch's time spent waiting for the next batch."""
        seconds = self.seconds
        return min(self._waited / seconds, 1.0) if self._windows and seconds > 0 else None

    def epoch_columns(self, state: FitState) -> dict[str, float | None]:  # noqa: ARG002 - the hook's signature
        """Add the speed of the epoch's training part."""
        return self._columns

    def on_train_end(self, state: FitState) -> None:  # noqa: ARG002 - the hook's signature
        """Stop the epoch's clock before validation."""
        self._columns = {
            "seconds": self.seconds,
            "samples_per_s": self.samples_per_s,
            "data_wait_share": self.data_wait_share,
        }


def windows_in(batch: Any) -> int:
    """Count a batch's windows, in either format."""
    features = batch.features
    return len(features if isinstance(features, torch.Tensor) else next(iter(features.values())))
