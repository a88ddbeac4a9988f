"""Sample a card during the measured steps: one thread, cheap queries, at most twice a second."""

import itertools
import math
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from perfsuite.devices.cuda.card import Card
from perfsuite.devices.cuda.nvml import Nvml
from perfsuite.devices.cuda.others import IDLE, QUIET_SECONDS, OtherProcesses
from perfsuite.devices.cuda.series import MIN_PERIODS, Piece, Series, join
from perfsuite.devices.cuda.window_checks import Snapshot, WindowSummary, check_before, summarise
from perfsuite.errors import RunInvalid
from perfsuite.processes.world import ProcessSet
from perfsuite.statistics import median

# NVML's metric id → name in the reading; percent of the whole device, averaged over the window.
_METRICS: Mapping[int, str] = {2: "sm_active", 3: "sm_occupancy", 5: "tensor_active", 10: "dram_active"}
_MIN_SECONDS = 0.1  # NVML rejects two samples that are closer together
PERIOD_SECONDS = 0.5  # every query takes the driver's lock: more of them slow down what is measured
_LONGEST_SAMPLE_SECONDS = 1.0  # of any card; where the buffer is empty, its period is not known yet
PATIENCE_SECONDS = 2.0  # a call stuck in the driver must not hang the test


def utilization_seconds(card: Card) -> float:
    """Return how long a window must be for this card's utilization to be judged; 0 if it reports none."""
    samples = card.samples(0)
    if samples.why:
        period = 0.0 if card.utilization().why else PERIOD_SECONDS
    else:
        stamps = [stamp / 1e6 for stamp, _ in samples.value]
        spaces = [later - earlier for earlier, later in itertools.pairwise(stamps) if later > earlier]
        period = median(spaces) if spaces else _LONGEST_SAMPLE_SECONDS
    return (MIN_PERIODS + 1) * period  # one more: the window cuts the first and the last


class GpmWindow:
    """NVML's GPM counters between start and stop; costs two calls and no polling."""

    def __init__(self, nvml: Nvml) -> None:
        self._nvml = nvml
        self._first = self._sample() if self._is_supported() else None

    def _is_supported(self) -> bool:
        # Queried, never inferred from the card's name.
        answer = self._nvml.ask("nvmlGpmQueryDeviceSupport")
        return not answer.why and bool(answer.value.isSupportedDevice)

    def _sample(self) -> Any:
        allocated = self._nvml.ask_system("nvmlGpmSampleAlloc")
        if allocated.why:
            return None
        taken = self._nvml.ask("nvmlGpmSampleGet", allocated.value)
        if taken.why:
            self._free(allocated.value)
            return None
        return allocated.value

    def _free(self, sample: Any) -> None:
        self._nvml.ask_system("nvmlGpmSampleFree", sample)

    def stop(self, seconds: float) -> Mapping[str, float]:
        """Return the shares over a window of that length; what the card does not count is missing."""
        first, self._first = self._first, None
        if first is None:
            return {}
        second = self._sample() if seconds > _MIN_SECONDS else None
        shares = {} if second is None else self._shares(first, second)
        for sample in (first, second):
            if sample is not None:
                self._free(sample)
        return shares

    def _shares(self, first: Any, second: Any) -> Mapping[str, float]:
        binding = self._nvml.binding
        request = binding.c_nvmlGpmMetricsGet_t()
        request.version = binding.NVML_GPM_METRICS_GET_VERSION
        request.numMetrics = len(_METRICS)
        request.sample1, request.sample2 = first, second
        for place, number in enumerate(_METRICS):
            request.metrics[place].metricId = number
        answer = self._nvml.ask_system("nvmlGpmMetricsGet", request)
        if answer.why:
            return {}
        return {
            name: request.metrics[place].value / 100
            for place, name in enumerate(_METRICS.values())
            if request.metrics[place].nvmlReturn == 0
        }


class Clock(Protocol):
    """The sampler's clock, which tests can script."""

    def now(self) -> float: ...  # noqa: D102
    def wait(self, over: threading.Event, seconds: float) -> bool: ...  # noqa: D102


class WallClock:
    """The host's clock."""

    def now(self) -> float:
        """Return monotonic seconds."""
        return time.monotonic()

    def wait(self, over: threading.Event, seconds: float) -> bool:
        """Wait that long or until `over` is set; return whether it is."""
        return over.wait(seconds)


@dataclass(frozen=True)
class Sampled:
    """What the sampler recorded in a window."""

    utilization: Series
    summary: WindowSummary = field(default_factory=WindowSummary)


class Sampler:
    """Sample one card from start to stop."""

    def __init__(
        self,
        nvml: Nvml,
        *,
        ours: ProcessSet | None = None,
        own_bytes: float = 0.0,
        hides_others: bool = False,
        clock: Clock | None = None,
        period_seconds: float = PERIOD_SECONDS,
        patience_seconds: float = PATIENCE_SECONDS,
    ) -> None:
        self._nvml, self._card = nvml, Card(nvml)
        self._others = None if ours is None else OtherProcesses(self._card, ours, is_hidden=hides_others)
        self._own_bytes = own_bytes
        self._clock = clock or WallClock()
        self._period, self._patience = period_seconds, patience_seconds
        self._over, self._ready = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="perfsuite-nvml", daemon=True)
        self._is_complete = False  # the thread reached the window's end
        self._invalid = nvml.invalid
        self._why = nvml.absent
        self._started = 0.0
        self._result: Sampled | None = None
        self._snapshots: list[Snapshot] = []
        self._figures: dict[str, float] = {}
        self._counted: Mapping[str, float] = {}
        self._before = WindowSummary()
        self._trace = Trace(self._card)

    def start(self) -> None:
        """Start the thread; return after its first snapshot, so that this is not part of the window."""
        if not self._nvml.absent:
            self._thread.start()
            self._ready.wait(self._patience + QUIET_SECONDS)  # the CPU waits here, before the clock runs

    def _run(self) -> None:
        try:
            own_bytes = self._own_bytes
            if self._others is not None:
                self._others.check_before(lambda seconds: self._clock.wait(self._over, seconds))
                # The run that started this process keeps its context and its cached memory.
                own_bytes = max(own_bytes, self._others.own_bytes)
            self._before = check_before(self._card, own_bytes)
            counted, energy = self._card.throttled_seconds(), self._card.energy()
            gpm = GpmWindow(self._nvml)
            self._trace.begin(self._clock.now())
            self._append_snapshot()
            self._started = self._clock.now()
            self._ready.set()
            while not self._clock.wait(self._over, self._period * self._trace.periods_between_polls):
                self.take_snapshot()
            ended = self._clock.now()
            self._trace.poll(ended)
            if self._others is not None:
                self._others.look()
                self._others.conclude()
            self._count(ended - self._started, gpm, counted, energy)
        except RunInvalid as error:
            self._invalid = str(error)
        self._is_complete = True
        self._ready.set()

    def _count(
        self, seconds: float, gpm: GpmWindow, counted: Mapping[str, float], energy: float | None
    ) -> None:
        """Read by how much the driver's counters have grown; what cannot be is left out."""
        card, after = self._card, self._card.throttled_seconds()
        self._figures = {
            name: share
            for name, share in gpm.stop(seconds).items()
            if card.is_plausible(name, 100 * share, 100, "%")
        }
        # Two counters are added up for «too hot», and both may count the whole window.
        self._counted = {
            cause: after[cause] - counted[cause]
            for cause in counted.keys() & after.keys()
            if card.is_plausible(cause, after[cause] - counted[cause], 2 * seconds + 1, "s of throttling")
        }
        now = card.energy()
        if (
            energy is not None
            and now is not None
            and card.is_plausible("energy", now - energy, math.inf, "J")
        ):
            self._figures["energy_joules"] = now - energy

    def take_snapshot(self) -> None:
        """Query everything that is sampled regularly once."""
        self._trace.poll(self._clock.now())
        self._append_snapshot()

    def _append_snapshot(self) -> None:
        card = self._card
        if self._others is not None:
            self._others.look()
        self._snapshots.append(
            Snapshot(
                card.memory(),
                card.reasons(),
                card.sm_clock(),
                card.memory_clock(),
                card.temperature(),
                card.power(),
                is_busy=self._trace.latest is None or self._trace.latest > IDLE,
            )
        )

    def stop(self) -> Sampled:
        """Stop and return what was recorded; may be called twice."""
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
            return Sampled(Series(absent=why), WindowSummary(invalid=(invalid,) if invalid else ()))
        series = self._trace.series(self._started, ended, self._period)
        summary = summarise(self._snapshots, self._counted, ended - self._started)
        reported = {"utilization_samples": float(series.samples), **summary.reported, **self._figures}
        before, others = self._before, self._others
        doubts = (f"{name}: {why}" for name, why in self._card.doubts.items() if name != "utilization")
        return Sampled(
            series,
            replace(
                summary,
                reported=reported,
                conditions={**before.conditions, **summary.conditions},
                notes=(*before.notes, *summary.notes, *(others.notes if others else ()), *doubts),
                invalid=(*before.invalid, *summary.invalid, *(others.invalid if others else ())),
            ),
        )

    def _lost_thread(self) -> str:
        """Return a reason if the thread is stuck or has died: then its snapshots do not cover the window."""
        if self._nvml.absent or self._is_complete:
            return ""
        if self._thread.is_alive():
            return f"NVML has not answered for {self._patience:g} s: the sampler is stuck in the driver"
        return "the sampler died"


class Trace:
    """Collect utilization: from the driver's buffer by a cursor, from polls where the buffer is empty."""

    def __init__(self, card: Card) -> None:
        self._card = card
        self._cursor = 0
        self._offset = float("inf")  # the buffer has another clock: its newest sample ≈ now
        self._samples: list[tuple[int, float]] = []
        self._polls: list[Piece] = []
        self._polled_at = 0.0
        self._has_seen_samples = False
        self._why = ""
        self.latest: float | None = None  # the last known share

    @property
    def periods_between_polls(self) -> int:
        """Return how many periods may pass between two polls: the driver's buffer fills by itself."""
        return 2 if self._has_seen_samples else 1

    def begin(self, now: float) -> None:
        """Move the cursor past everything that happened before the window."""
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
        """Fetch new samples; if there are none, poll: the card may be idle or have no buffer at all."""
        if not self._fetch(now):
            rate = self._card.utilization()
            self._why = rate.why
            if not rate.why and now > self._polled_at:
                self._polls.append(Piece(self._polled_at, now, rate.value))
                self.latest = rate.value
        self._polled_at = now

    def series(self, start: float, end: float, poll_seconds: float) -> Series:
        """Return the window's utilization, absent where the card reports it in neither way."""
        doubt = self._card.doubts.get("utilization", "")
        if doubt or not (self._has_seen_samples or self._polls):
            return Series(sample_seconds=poll_seconds, absent=doubt or self._why)
        samples = [(stamp / 1e6 + self._offset, share) for stamp, share in self._samples]
        return join(samples, self._polls, start, end, poll_seconds)
