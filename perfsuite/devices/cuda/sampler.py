"""Look at a card beside the measured steps: one thread, cheap questions, at most twice a second."""

import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol

from perfsuite.devices.cuda.card import Card
from perfsuite.devices.cuda.gpm import GpmWindow
from perfsuite.devices.cuda.guards import look_before
from perfsuite.devices.cuda.nvml import Nvml
from perfsuite.devices.cuda.series import Piece, Series, join
from perfsuite.devices.cuda.window_checks import Look, Seen, summarise
from perfsuite.errors import RunInvalid
from perfsuite.processes.family import Kin

PERIOD_SECONDS = 0.5  # every question takes the driver's lock: asking more often slows what is measured
PATIENCE_SECONDS = 2.0  # a call stuck in the driver must not hang the test
_BUSY = 0.05


class Clock(Protocol):
    """The sampler's time, so that tests can write it down."""

    def now(self) -> float: ...  # noqa: D102
    def wait(self, over: threading.Event, seconds: float) -> bool: ...  # noqa: D102


class WallClock:
    """The host's time."""

    def now(self) -> float:
        """Return seconds that only grow."""
        return time.monotonic()

    def wait(self, over: threading.Event, seconds: float) -> bool:
        """Wait that long, or until it is over; tell whether it is."""
        return over.wait(seconds)


@dataclass(frozen=True)
class Sampled:
    """What the sampler saw of a window."""

    utilization: Series
    seen: Seen = field(default_factory=Seen)


class Sampler:
    """Watch one card from start to stop."""

    def __init__(
        self,
        nvml: Nvml,
        *,
        kin: Kin | None = None,
        own_bytes: float = 0.0,
        clock: Clock | None = None,
        period_seconds: float = PERIOD_SECONDS,
        patience_seconds: float = PATIENCE_SECONDS,
    ) -> None:
        self._nvml, self._card = nvml, Card(nvml)
        self._kin = kin
        self._own_bytes = own_bytes
        self._clock = clock or WallClock()
        self._period, self._patience = period_seconds, patience_seconds
        self._over, self._ready = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="perfsuite-nvml", daemon=True)
        self._is_whole = False  # the thread saw the window's end
        self._invalid = nvml.invalid
        self._why = nvml.absent
        self._started = 0.0
        self._result: Sampled | None = None
        self._looks: list[Look] = []
        self._figures: dict[str, float] = {}
        self._counted: Mapping[str, float] = {}
        self._before = Seen()
        self._trace = Trace(self._card)

    def start(self) -> None:
        """Begin; returns when the first look is taken, so that none of it falls into the window."""
        if not self._nvml.absent:
            self._thread.start()
            self._ready.wait(self._patience)  # the CPU waits here, before the clock runs

    def _run(self) -> None:
        try:
            self._before = look_before(self._card, self._own_bytes, self._kin)
            counted, energy = self._card.throttled_seconds(), self._card.energy()
            gpm = GpmWindow(self._nvml)
            self._trace.begin(self._clock.now())
            self._look()
            self._started = self._clock.now()
            self._ready.set()
            while not self._clock.wait(self._over, self._period * self._trace.periods_between_looks):
                self._trace.poll(self._clock.now())
                self._look()
            ended = self._clock.now()
            self._trace.poll(ended)
            self._figures.update(gpm.stop(ended - self._started))
            after = self._card.throttled_seconds()
            self._counted = {cause: after[cause] - counted[cause] for cause in counted.keys() & after.keys()}
            if energy is not None and (now := self._card.energy()) is not None:
                self._figures["energy_joules"] = now - energy
        except RunInvalid as error:
            self._invalid = str(error)
        self._is_whole = True
        self._ready.set()

    def _look(self) -> None:
        card = self._card
        self._looks.append(
            Look(
                card.memory(),
                card.processes() if self._kin else None,
                card.reasons(),
                card.sm_clock(),
                card.memory_clock(),
                card.temperature(),
                card.power(),
                is_busy=self._trace.latest is None or self._trace.latest > _BUSY,
            )
        )

    def stop(self) -> Sampled:
        """End and return what was seen; may be called twice."""
        if self._result is None:
            ended = self._clock.now()
            self._over.set()
            if self._thread.ident is not None:
                self._thread.join(self._patience)
            self._result = self._read(ended)
        return self._result

    def _read(self, ended: float) -> Sampled:
        invalid = self._invalid or self._lost_thread()
        if self._nvml.absent or invalid:
            why = self._why or invalid
            return Sampled(Series(absent=why), Seen(invalid=(invalid,) if invalid else ()))
        series = self._trace.series(self._started, ended, self._period)
        seen = summarise(self._looks, self._counted, ended - self._started, kin=self._kin)
        reported = {"utilization_samples": float(series.samples), **seen.reported, **self._figures}
        before = self._before
        return Sampled(
            series,
            replace(
                seen,
                reported=reported,
                conditions={**before.conditions, **seen.conditions},
                notes=(*before.notes, *seen.notes),
                invalid=(*before.invalid, *seen.invalid),
            ),
        )

    def _lost_thread(self) -> str:
        """Say when the thread is stuck or has died: what it saw before is no picture of the window."""
        if self._nvml.absent or self._is_whole:
            return ""
        if self._thread.is_alive():
            return f"NVML has not answered for {self._patience:g} s: the sampler is stuck in the driver"
        return "the sampler died"


class Trace:
    """Gather utilization: from the driver's buffer by a cursor, from polls where the buffer is empty."""

    def __init__(self, card: Card) -> None:
        self._card = card
        self._cursor = 0
        self._offset = float("inf")  # the buffer's clock is not ours: newest sample ≈ now
        self._samples: list[tuple[int, float]] = []
        self._polls: list[Piece] = []
        self._polled_at = 0.0
        self._has_seen_samples = False
        self._why = ""
        self.latest: float | None = None  # the share last heard of

    @property
    def periods_between_looks(self) -> int:
        """Return how many periods may pass between two looks: a buffer fills without being asked."""
        return 2 if self._has_seen_samples else 1

    def begin(self, now: float) -> None:
        """Move the cursor behind everything that happened before the window."""
        self._fetch(now)
        self._samples.clear()
        self._polled_at = now

    def _fetch(self, now: float) -> bool:
        answer = self._card.samples(self._cursor)
        if not answer.value:
            return False
        self._cursor = answer.value[-1][0]
        self._offset = min(self._offset, now - self._cursor / 1e6)
        self._samples += answer.value
        self._has_seen_samples = True
        self.latest = answer.value[-1][1]
        return True

    def poll(self, now: float) -> None:
        """Fetch what is new; an empty buffer is asked about, since it may be idle or no buffer at all."""
        if not self._fetch(now):
            rate = self._card.utilization()
            self._why = rate.why
            if not rate.why and now > self._polled_at:
                self._polls.append(Piece(self._polled_at, now, rate.value))
                self.latest = rate.value
        self._polled_at = now

    def series(self, start: float, end: float, poll_seconds: float) -> Series:
        """Return the window's utilization, absent where the card tells it in neither way."""
        if not self._has_seen_samples and not self._polls:
            return Series(sample_seconds=poll_seconds, absent=self._why)
        samples = [(stamp / 1e6 + self._offset, share) for stamp, share in self._samples]
        return join(samples, self._polls, start, end, poll_seconds)
