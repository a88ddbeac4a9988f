"""Predict when a loader's batches are ready: workers, prefetching, worker starts at every epoch; no torch."""

import heapq
from dataclasses import dataclass


@dataclass(frozen=True)
class LoaderCosts:
    """A loader's settings and costs."""

    batch_seconds: float  # to make one batch in one process
    workers: int = 0
    prefetch: int = 2
    persistent: bool = False
    batches_per_epoch: int | None = None  # None: epochs never end
    worker_start_seconds: float = 0.0  # to start one worker; they start one after the other
    cores: int | None = None  # shared if there are more workers than cores


class LoaderSchedule:
    """Return, batch by batch, when a requested batch is ready."""

    def __init__(self, costs: LoaderCosts) -> None:
        self._costs = costs
        self._given = 0
        self._ready: list[float] = []  # when each batch under way is ready, in order
        self._free: list[float] = []  # when each worker can begin another batch
        self._is_started = False
        self.first_wait_seconds = 0.0  # for the first batches of epochs

    def __call__(self, requested: float) -> float:
        """Return when the batch requested at this time is ready."""
        ends = self._costs.batches_per_epoch
        is_first = ends is not None and self._given % ends == 0
        ready = self._ready_at(requested)
        if is_first:
            self.first_wait_seconds += ready - requested
        return ready

    def _ready_at(self, requested: float) -> float:
        costs = self._costs
        if costs.workers == 0:
            self._given += 1
            return requested + costs.batch_seconds
        ends = costs.batches_per_epoch
        begins_epoch = ends is not None and self._given % ends == 0
        if not self._is_started or (begins_epoch and not costs.persistent):
            self._start(requested)
        elif begins_epoch:
            self._fill(requested)
        ready = max(self._ready.pop(0), requested)
        self._given += 1
        left = None if ends is None else (ends - self._given % ends) % ends
        if left is None or left > len(self._ready):
            self._order(ready)
        return ready

    def _start(self, now: float) -> None:
        """Start all workers, one after the other, with no batch prefetched."""
        start = self._costs.worker_start_seconds
        self._free = [now + start * (i + 1) for i in range(self._costs.workers)]
        heapq.heapify(self._free)
        self._ready = []
        self._is_started = True
        self._fill(now)

    def _fill(self, now: float) -> None:
        ahead = self._costs.workers * max(self._costs.prefetch, 1)
        if self._costs.batches_per_epoch is not None:
            ahead = min(ahead, self._costs.batches_per_epoch)
        while len(self._ready) < ahead:
            self._order(now)

    def _order(self, now: float) -> None:
        """Let the first free worker make another batch; a loader returns batches in order."""
        slowdown = max(self._costs.workers / self._costs.cores, 1.0) if self._costs.cores else 1.0
        begin = max(heapq.heappop(self._free), now)
        end = begin + self._costs.batch_seconds * slowdown
        heapq.heappush(self._free, end)
        self._ready.append(max(end, self._ready[-1] if self._ready else 0.0))
