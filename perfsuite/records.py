"""The records that the stages hand on: Reading, Limit, Verdict, Expectation, Result."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any

from perfsuite.metrics import INSPECTION, METRICS, Kind, Metric
from perfsuite.noise import Spread
from perfsuite.units import show

# In the order they are shown. A device leaves out a share it cannot measure; the present ones add up to 1.
SHARES: Mapping[str, str] = {
    "data_wait": "data wait",
    "transfer": "host→device transfer",
    "launch_gaps": "launch gaps",
    "kernels": "kernels",
    "sync_waits": "sync waits",
    "collectives": "collectives",
    "optimizer": "optimizer",
    "allocator": "allocator",
    "other": "other",
}
Clue = float | str


@dataclass(frozen=True)
class Insight:
    """Figures to report, shares of the step's wall time, and clues for the diagnosis."""

    figures: Mapping[str, float] = field(default_factory=dict)
    shares: Mapping[str, float] = field(default_factory=dict)
    clues: Mapping[str, Clue] = field(default_factory=dict)
    notes: tuple[str, ...] = ()  # what was left out, and why

    @classmethod
    def missing(cls, why: str) -> "Insight":
        """Return an empty insight that says why."""
        return cls(notes=(f"{INSPECTION}: {why}",))


@dataclass(frozen=True)
class Counted:
    """What steps did, counted: figures per step, and where in the code each comes from."""

    figures: Mapping[str, float] = field(default_factory=dict)
    places: Mapping[str, Mapping[str, float]] = field(default_factory=dict)  # metric → place → figure
    lines: Mapping[str, int] = field(default_factory=dict)  # place → its line now
    launched: Mapping[str, Mapping[str, float]] = field(default_factory=dict)  # kernel → place → per step
    reported: Mapping[str, float] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


def whole(shares: Mapping[str, float]) -> dict[str, float]:
    """Return shares that add up to 1: a missing rest becomes «other», an excess is scaled down."""
    known = {name: max(share, 0.0) for name, share in shares.items() if name in SHARES}
    total = sum(known.values())
    if not known or total <= 0:
        return {}
    if total >= 1:
        return {name: share / total for name, share in known.items()}
    known["other"] = known.get("other", 0.0) + 1 - total
    return known


def with_data_wait(shares: Mapping[str, float], waited: float | None) -> dict[str, float]:
    """Return shares with the data wait measured in the window, the other shares scaled to the rest."""
    if waited is None:
        return dict(shares)
    rest = {name: share for name, share in shares.items() if name != "data_wait"}
    total = sum(rest.values())
    if total <= 0:
        return {"data_wait": waited, "other": 1 - waited}
    return {"data_wait": waited, **{name: share / total * (1 - waited) for name, share in rest.items()}}


class Figure:
    """A figure of a reading as an attribute; None means «not measured»."""

    def __init__(self, metric: str, end: int | None = None) -> None:
        self._metric = metric
        self._end = end  # of its interval: 0 is the lower end, 1 the upper one

    def __get__(self, reading: "Reading | None", owner: object = None) -> float | None:
        if reading is None:
            return None
        if self._end is None:
            return reading.figures.get(self._metric)
        interval = reading.intervals.get(self._metric)
        return None if interval is None else interval[self._end]


@dataclass(frozen=True)
class Reading:
    """The result of one measurement; None means «not measured»."""

    name: str
    kind: Kind
    device: str
    steps: int
    warmup_steps: int
    samples: int
    wall_seconds: float
    rounds: tuple[float, ...]  # seconds per step, in order
    figures: Mapping[str, float] = field(default_factory=dict)  # metric → figure; no entry if not measured
    intervals: Mapping[str, tuple[float, float]] = field(default_factory=dict)  # metric → its 95 % interval
    is_accelerator: bool = False
    modelled: bool = False
    origin: str = ""  # such as emulated, where neither «measured» nor «modelled» is the word
    places: Mapping[str, Mapping[str, float]] = field(
        default_factory=dict
    )  # metric → place in the code → count
    lines: Mapping[str, int] = field(default_factory=dict)  # place → its current line number
    launched: Mapping[str, Mapping[str, float]] = field(default_factory=dict)  # kernel → place → per step
    series: tuple[float, ...] = ()  # utilization over time, where known
    memory_series: tuple[float, ...] = ()  # bytes over time, where known
    reported: Mapping[str, float] = field(default_factory=dict)  # shown and stored, never judged
    notes: tuple[str, ...] = ()
    invalid: tuple[str, ...] = ()  # why this measurement does not count
    conditions: Mapping[str, float] = field(default_factory=dict)  # clocks, power limit: must not differ
    ranks: tuple[Mapping[str, float], ...] = ()  # figures of each rank, if several measured together
    without: "Reading | None" = None  # the other variant of a comparison
    shares: Mapping[str, float] = field(default_factory=dict)  # of the step's wall time, adding up to 1
    clues: Mapping[str, float | str] = field(default_factory=dict)  # input of the diagnosis

    # The figures that tests use most, under names with their units.
    samples_per_s = Figure("samples_per_s")
    step_seconds = Figure("step_time")
    utilization = Figure("utilization")
    utilization_swing = Figure("utilization_swing")
    idle_stretch_seconds = Figure("idle_stretch")
    kernel_busy = Figure("kernel_busy")
    peak_memory_bytes = Figure("peak_memory")
    data_wait = Figure("data_wait")
    speedup = Figure("speedup")
    speedup_low = Figure("speedup", end=0)
    speedup_high = Figure("speedup", end=1)
    difference = Figure("difference")
    rank_skew = Figure("rank_skew")
    scaling_efficiency = Figure("scaling_efficiency")
    scaling_efficiency_low = Figure("scaling_efficiency", end=0)
    scaling_efficiency_high = Figure("scaling_efficiency", end=1)

    @property
    def how(self) -> str:
        """Return the word for its figures: nothing may pass for measured that is not."""
        return self.origin or ("modelled" if self.modelled else "measured")

    @property
    def counts(self) -> Mapping[str, float]:
        """Return the figures that were counted, not timed."""
        return {name: value for name, value in self.figures.items() if METRICS[name].is_count}

    def value(self, metric: Metric) -> float | None:
        """Return the figure of a metric as it is shown."""
        return self.figures.get(metric.name)

    def shown(self, metric: Metric) -> str:
        """Return the figure of a metric for people; a modelled step with how far it is typically off."""
        text, error = show(self.value(metric), metric.unit), self.reported.get("modelled_step_error")
        return f"{text} ±{100 * error:.0f} %" if error is not None and metric.name == "step_time" else text

    def judged(self, metric: Metric) -> float | None:
        """Return the figure of a metric as it is judged: the cautious end of its interval, if it has one."""
        if metric.name not in self.intervals:
            return self.value(metric)
        low, high = self.intervals[metric.name]
        return low if metric.higher_is_better else high

    def with_figures(self, **figures: float | None) -> "Reading":
        """Return the reading with figures added or replaced; None removes a figure."""
        merged = {**self.figures, **figures}
        return replace(self, figures={name: value for name, value in merged.items() if value is not None})


BASELINE = "the baseline"  # the source of limits that come from a stored baseline


@dataclass(frozen=True)
class Limit:
    """The worst value of a metric that still passes, and where it comes from."""

    metric: Metric
    bound: float
    source: str  # "the perf marker", "the baseline", "perf.compare"
    reference: float | None = None  # the baseline's value, before the tolerance
    tolerance: float | None = None
    spread: Spread | None = None  # of the baseline's sessions, if there are enough to know their noise
    visible: float | None = None  # the smallest slowdown that would be detected


class Outcome(Enum):
    """The outcome of comparing a reading with a limit."""

    PASSED = "passed"
    IMPROVED = "improved"
    MISSED = "missed"
    UNMEASURED = "not measured"
    NO_BASELINE = "no baseline"
    UNCONFIRMED = "not confirmed"  # suspicious at first, fine in fresh processes
    INVALID = "invalid"  # neither passed nor failed: the measurement does not count
    INCONCLUSIVE = "inconclusive"  # neither passed nor failed: the comparison is not certain enough

    @property
    def is_failure(self) -> bool:
        """Return whether this outcome fails the test."""
        return self in (Outcome.MISSED, Outcome.UNMEASURED, Outcome.NO_BASELINE)


@dataclass(frozen=True)
class Verdict:
    """The outcome of one limit for one reading."""

    reading: str
    outcome: Outcome
    limit: Limit | None
    measured: float | None = None
    reason: str = ""
    is_exact: bool = False  # of a modelled reading: measuring again would give the same figure


class Match(Enum):
    """How well a stored baseline matches this machine."""

    EXACT = "exact"
    NEAR = "near"
    NONE = "none"


class CardMatch(Enum):
    """Whether a baseline was measured on this very card: cards of one kind differ."""

    SAME = "same"
    OTHER = "other"
    UNKNOWN = "unknown"  # a device without an identity, or a baseline from before it was stored


@dataclass(frozen=True)
class Settings:
    """How one test is measured and judged, resolved from command line, marker, ini and defaults."""

    device: str = "auto"
    tolerance: float | None = None
    memory_tolerance: float | None = None
    count_tolerance: float | None = None
    min_time: float | None = None
    max_time: float | None = None
    strict: bool = False
    on_invalid: str = "fail"
    cooldown: float = 10.0


@dataclass(frozen=True)
class StoredReading:
    """One reading of a baseline."""

    values: Mapping[str, float] = field(default_factory=dict)  # metric → figure
    sessions: Mapping[str, Sequence[float]] = field(default_factory=dict)  # metric → one figure per session
    conditions: Mapping[str, float] = field(default_factory=dict)
    places: Mapping[str, Mapping[str, float]] = field(default_factory=dict)  # metric → place → count
    launched: Mapping[str, float] = field(default_factory=dict)  # kernel, by its short name → per step
    shares: Mapping[str, float] = field(default_factory=dict)
    rounds: Sequence[float] = ()

    def without_times(self) -> "StoredReading":
        """Return what does not depend on the speed of the machine it was stored on."""
        values = {name: value for name, value in self.values.items() if not METRICS[name].is_timing}
        return replace(self, values=values, sessions={}, shares={}, rounds=())


@dataclass(frozen=True)
class Baseline:
    """The stored readings of one test, and how well they match this machine."""

    match: Match = Match.NONE
    reason: str = ""  # what differs from this machine
    readings: Mapping[str, StoredReading] = field(default_factory=dict)
    environment: Mapping[str, Any] = field(default_factory=dict)  # where it was measured, as stored
    card: CardMatch = CardMatch.UNKNOWN
    # The readings of all cards of this kind that have a baseline of the same commit, if this card has none.
    cards: tuple[Mapping[str, StoredReading], ...] = ()

    @property
    def is_gating(self) -> bool:
        """Return whether it limits readings; one from another machine is only shown."""
        return self.match is Match.EXACT

    @property
    def sessions(self) -> int:
        """Return the number of sessions it was measured in."""
        counts = [len(values) for stored in self.readings.values() for values in stored.sessions.values()]
        return max(counts, default=1)

    def without_times(self) -> "Baseline":
        """Return the baseline of a device whose times cannot be compared."""
        return replace(self, readings={name: one.without_times() for name, one in self.readings.items()})

    def of(self, reading: str) -> StoredReading:
        """Return the stored reading of that name, an empty one if there is none."""
        return self.readings.get(reading, StoredReading())


@dataclass(frozen=True)
class Expectation:
    """Everything that is expected of one test, known before it runs."""

    limits: tuple[Limit, ...] = ()
    by_reading: Mapping[str, tuple[Limit, ...]] = field(default_factory=dict)  # from the baseline
    baseline: Baseline = Baseline()
    settings: Settings = Settings()

    @property
    def needs_references(self) -> bool:
        """Return whether any limit is in rounds of a reference workload."""
        limits = [*self.limits, *(limit for limits in self.by_reading.values() for limit in limits)]
        return any(limit.metric.is_relative for limit in limits)


@dataclass(frozen=True)
class Result:
    """The readings of one test and their verdicts."""

    test: str
    expectation: Expectation
    readings: tuple[Reading, ...]
    verdicts: tuple[Verdict, ...]
    error: str = ""  # why the test itself failed, if it did
    excused: str = ""  # the reason of an expected failure (xfail) that occurred

    @property
    def short_name(self) -> str:
        """Return the test's id without folders."""
        return short_name(self.test)

    @property
    def is_failed(self) -> bool:
        """Return whether the test failed unexpectedly."""
        is_bad = bool(self.error) or any(verdict.outcome.is_failure for verdict in self.verdicts)
        return is_bad and not self.excused

    @property
    def invalid(self) -> tuple[str, ...]:
        """Return the reasons why measurements of this test do not count."""
        return tuple(v.reason for v in self.verdicts if v.outcome is Outcome.INVALID)


def short_name(test: str) -> str:
    """Return a test's id without the folders of its file; slashes in parameters stay."""
    file, mark, name = test.partition("::")
    return f"{file.rpartition('/')[2]}{mark}{name}"


@dataclass(frozen=True)
class SessionReading:
    """One reading of one session: its figures, and why they do not count, if they do not."""

    values: Mapping[str, float]
    invalid: tuple[str, ...] = ()
    rounds: tuple[float, ...] = ()  # seconds per step, thinned out if there are many


@dataclass(frozen=True)
class Session:
    """The results of one fresh process: test → reading → figures, and the tests that failed."""

    readings: Mapping[str, Mapping[str, SessionReading]]
    errors: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class DeviceFacts:
    """What identifies a device in a baseline; None where it does not apply."""

    kind: str  # cpu, cuda, rocm6.2
    name: str
    clock: str
    threads: int | None = None
    uuid: str | None = None
    memory_bytes: int | None = None
    driver: str | None = None
    cuda: str | None = None
    ranks: int | None = None  # number of processes that measure together, each on its own device
    host: str | None = None  # the processor that launches the device's work, where that decides its speed
