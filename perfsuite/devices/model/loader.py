"""When a loader's batches would be ready: workers, prefetching, and their start at every epoch; no torch."""

import heapq
from dataclasses import dataclass


@dataclass(frozen=True)
class LoaderCosts:
    """What a loader does and what it costs."""

    batch_seconds: float  # to make one batch in one process
    workers: int = 0
    prefetch: int = 2
    persistent: bool = False
    batches_per_epoch: int | None = None  # None: it never ends
    worker_start_seconds: float = 0.0  # to start one worker; they start one after the other
    cores: int | None = None  # more workers than these share them


class Starving:
    """Tell, batch by batch, when the one asked for is there."""

    def __init__(self, costs: LoaderCosts) -> None:
        self._costs = costs
        self._given = 0
        self._ready: list[float] = []  # of the batches under way, in order
        self._free: list[float] = []  # when each worker can begin another
        self._is_started = False
        self.first_wait_seconds = 0.0  # for the first batches of epochs

    def __call__(self, asked: float) -> float:
        """Return when the batch asked for now is there."""
        ends = self._costs.batches_per_epoch
        is_first = ends is not None and self._given % ends == 0
        ready = self._ready_at(asked)
        if is_first:
            self.first_wait_seconds += ready - asked
        return ready

    def _ready_at(self, asked: float) -> float:
        costs = self._costs
        if costs.workers == 0:
            self._given += 1
            return asked + costs.batch_seconds
        ends = costs.batches_per_epoch
        begins_epoch = ends is not None and self._given % ends == 0
        if not self._is_started or (begins_epoch and not costs.persistent):
            self._start(asked)
        elif begins_epoch:
            self._fill(asked)
        ready = max(self._ready.pop(0), asked)
        self._given += 1
        left = None if ends is None else (ends - self._given % ends) % ends
        if left is None or left > len(self._ready):
            self._order(ready)
        return ready

    def _start(self, now: float) -> None:
        """Start all workers, one after the other, with nothing prepared."""
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
        """Let the first free worker make one batch more; a loader hands them out in order."""
        crowd = max(self._costs.workers / self._costs.cores, 1.0) if self._costs.cores else 1.0
        begin = max(heapq.heappop(self._free), now)
        end = begin + self._costs.batch_seconds * crowd
        heapq.heappush(self._free, end)
        self._ready.append(max(end, self._ready[-1] if self._ready else 0.0))
