"""Play a step's events on lanes for host, device, copies and collectives, as the host enqueues; no torch."""

from array import array
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from perfsuite.devices.kernels import REDUCED, VIEW, Copy, Event, HostWork, Kernel, Launch, Reduce, Sync
from perfsuite.devices.model.cards import Card
from perfsuite.devices.model.roofline import seconds
from perfsuite.devices.model.uncertainty import combined_error

_QUEUE = 1024  # launches the driver queues before the host must wait for the device
_PINNED_SHARE, _PAGEABLE_SHARE = 0.85, 0.45  # of the bus: a pageable copy goes through a staging buffer
_COPY_START = 10e-6
_HOST_BANDWIDTH = 8e9  # of operators on host tensors
VIEW_SHARE = 0.5  # of the dispatch of an operator with a kernel
CAUSES = ("launch", "sync", "copy", "data")


@dataclass(frozen=True)
class Played:
    """The result of playing all steps."""

    step_ends: tuple[float, ...]  # when the device was done with each step
    starts: Sequence[float]  # of the spans in which kernels ran without a gap
    ends: Sequence[float]
    gaps: dict[str, float]  # cause → seconds the device was idle because of it
    wait_seconds: float  # the host blocked in the loader
    collective_seconds: float = 0.0  # the link was in use
    exposed_seconds: float = 0.0  # of these, the device could do nothing else
    relative_error: float | None = None  # of the predicted time, by what its rules miss on unknown cards

    @property
    def seconds(self) -> float:
        """Return the length of all steps."""
        return self.step_ends[-1] if self.step_ends else 0.0

    @property
    def busy_share(self) -> float | None:
        """Return the share of time with a kernel running, as NVML would report it."""
        busy = sum(self.ends) - sum(self.starts)
        return min(busy / self.seconds, 1.0) if self.seconds else None


class Timeline:
    """Play steps one after the other; the host runs ahead of the device from step to step."""

    def __init__(self, card: Card) -> None:
        self._card = card
        self._dispatch_seconds, self._is_host = card.dispatch_seconds, card.is_host
        # By identity, since hashing a kernel takes longer: kernel, seconds, launches, seconds of a launch.
        self._known: dict[int, list[Any]] = {}
        self._host = self._device = self._bus = 0.0
        self._ready = 0.0  # the next kernel may not start earlier: a copy to the device is under way
        self._cause = "launch"  # why the device would be idle now
        self._gaps = dict.fromkeys(CAUSES, 0.0)
        self._starts, self._ends = array("d"), array("d")
        self._queue: deque[float] = deque(maxlen=_QUEUE)
        self._steps: list[float] = []
        self._waited = 0.0
        self._link = 0.0  # when the link has sent everything
        self._awaited = 0.0  # when the gradients for the next kernel have arrived; 0: it needs none
        self._sent_seconds = self._exposed = 0.0

    def play(self, events: Sequence[Event], wait: Callable[[float], float] | None = None) -> None:
        """Play one step; `wait` returns when a batch requested at a given time is ready."""
        if wait is not None:
            ready = max(wait(self._host), self._host)
            self._waited += ready - self._host
            if ready > self._host:
                self._host, self._cause = ready, "data"
        view_seconds = VIEW_SHARE * self._card.dispatch_seconds
        for event in events:
            if type(event) is Launch:
                self._launch(event.kernel)
            elif event is VIEW:
                self._host += view_seconds
            else:
                self._play_other(event)
        self._join()
        self._steps.append(max(self._device, self._ready) if self._ends else self._host)

    def _play_other(self, event: Event) -> None:
        if isinstance(event, Sync):
            self._join()
            self._host = max(self._host, self._device, self._ready) + self._card.sync_seconds
            self._cause = "sync"
        elif isinstance(event, Copy):
            self._copy(event)
        elif isinstance(event, HostWork):
            self._host += self._card.dispatch_seconds + event.size_bytes / _HOST_BANDWIDTH
        elif isinstance(event, Reduce):
            # A bucket is full when the last kernel queued so far is done, and follows the bucket before.
            self._link = max(self._host, self._device, self._link) + event.seconds
            self._sent_seconds += event.seconds
        elif event is REDUCED:
            self._awaited = self._link

    def _launch(self, kernel: Kernel) -> None:
        # Called a million times for a large step: attributes are read once, and nothing is called twice.
        known = self._known.get(id(kernel))
        if known is None:
            card = self._card
            launch_seconds = 0.0 if card.is_host else card.launch_seconds * kernel.commands
            known = self._known[id(kernel)] = [kernel, seconds(kernel, card), 0, launch_seconds]
        known[2] += 1
        host, device, queue = self._host + self._dispatch_seconds, self._device, self._queue
        if not self._is_host:
            host += known[3]
            if len(queue) == _QUEUE and queue[0] > host:
                host = queue[0]
        if self._awaited:
            self._host = host
            self._join()
        start = max(host, device, self._ready)
        if start > device:
            self._gaps[self._cause] += start - device
        self._cause = "launch"
        end = start + known[1]
        ends = self._ends
        if ends and ends[-1] >= start:
            ends[-1] = end
        else:
            self._starts.append(start)
            ends.append(end)
        self._device = end
        queue.append(end)
        self._host = end if self._is_host else host

    def _join(self) -> None:
        """Hold the device until the last bucket has arrived; whatever else it waits for hides that."""
        alone = max(self._host, self._device, self._ready)
        if self._awaited > alone:
            self._exposed += self._awaited - alone
            self._ready, self._cause = self._awaited, "collectives"
            self._gaps.setdefault("collectives", 0.0)
        self._awaited = 0.0

    def _copy(self, copy: Copy) -> None:
        if self._card.is_host:
            return
        share = _PINNED_SHARE if copy.pinned else _PAGEABLE_SHARE
        # One stream: a copy starts when everything queued before it is done, and what follows waits for it.
        start = max(self._host, self._bus, self._device)
        end = start + _COPY_START + copy.size_bytes / (self._card.pcie_bandwidth * share)
        self._bus = end
        self._host += self._card.dispatch_seconds
        if copy.blocking:
            self._host = max(self._host, end)
        self._ready, self._cause = max(self._ready, end), "copy"

    def result(self) -> Played:
        """Return the result so far."""
        spent = [(kernel, took * count) for kernel, took, count, _ in self._known.values()]
        idle = sum(self._gaps.values())
        return Played(
            tuple(self._steps),
            self._starts,
            self._ends,
            dict(self._gaps),
            self._waited,
            self._sent_seconds,
            self._exposed,
            combined_error(spent, self._card, idle),
        )


def utilization_series(played: Played, period: float) -> list[float]:
    """Return the busy share of each period, as a sampler with that period would read it."""
    if played.seconds <= 0 or period <= 0:
        return []
    count = max(int(played.seconds / period + 0.5), 1)
    filled = [0.0] * count
    for start, end in zip(played.starts, played.ends, strict=True):
        for slot in range(int(start / period), min(int(end / period), count - 1) + 1):
            filled[slot] += max(min(end, (slot + 1) * period) - max(start, slot * period), 0.0)
    return [min(value / period, 1.0) for value in filled]
