"""The nouns of the line: Reading, Limit, Verdict, Expectation, Result; they hold and do nothing."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from perfsuite.metrics import Kind, Metric
from perfsuite.noise import Spread


@dataclass(frozen=True)
class Reading:
    """What one measurement found; None is «not measured»."""

    name: str
    kind: Kind
    device: str
    steps: int
    warmup_steps: int
    samples: int
    wall_seconds: float
    rounds: tuple[float, ...]  # seconds per step, in order
    samples_per_s: float | None = None
    step_seconds: float | None = None
    utilization: float | None = None
    utilization_swing: float | None = None
    idle_stretch_seconds: float | None = None
    kernel_busy: float | None = None
    peak_memory_bytes: float | None = None
    data_wait: float | None = None
    speedup: float | None = None
    speedup_low: float | None = None
    speedup_high: float | None = None
    difference: float | None = None
    rank_skew: float | None = None
    scaling_efficiency: float | None = None
    scaling_efficiency_low: float | None = None
    scaling_efficiency_high: float | None = None
    counts: Mapping[str, float] = field(default_factory=dict)  # metric → figure
    relative: Mapping[str, float] = field(default_factory=dict)  # metric → step in rounds of a reference
    modelled: bool = False
    places: Mapping[str, Mapping[str, float]] = field(
        default_factory=dict
    )  # metric → place in the code → count
    lines: Mapping[str, int] = field(default_factory=dict)  # place → its line now
    series: tuple[float, ...] = ()  # utilization over time, where it is known
    memory_series: tuple[float, ...] = ()  # bytes over time, where they are known
    reported: Mapping[str, float] = field(default_factory=dict)  # shown and stored, never judged
    notes: tuple[str, ...] = ()
    invalid: tuple[str, ...] = ()  # why this measurement does not count
    conditions: Mapping[str, float] = field(default_factory=dict)  # clocks, power limit: what must not differ
    ranks: tuple[Mapping[str, float], ...] = ()  # each rank's figures, where several measured together
    without: "Reading | None" = None  # a comparison's other arm
    shares: Mapping[str, float] = field(default_factory=dict)  # of the step's wall time, adding up to 1
    clues: Mapping[str, float | str] = field(default_factory=dict)  # what the diagnosis goes by

    def value(self, metric: Metric) -> float | None:
        """Return the figure of a metric as it is shown."""
        value: float | None = getattr(self, metric.field, None)
        if metric.is_relative:
            return self.relative.get(metric.name)
        return self.counts.get(metric.name) if metric.is_count else value

    def judged(self, metric: Metric) -> float | None:
        """Return the figure of a metric as it is judged: the cautious end where there is an interval."""
        value: float | None = getattr(self, metric.judged_field) if metric.judged_field else None
        return value if metric.judged_field else self.value(metric)


@dataclass(frozen=True)
class Limit:
    """The worst value of a metric that still passes, and who asks for it."""

    metric: Metric
    bound: float
    source: str  # "the perf marker", "the baseline", "perf.compare"
    reference: float | None = None  # the baseline's own value, before the tolerance
    tolerance: float | None = None
    spread: Spread | None = None  # the baseline's sessions, where there are enough to know their noise
    visible: float | None = None  # the smallest slowdown that would be found


class Outcome(Enum):
    """How a limit was met."""

    PASSED = "passed"
    IMPROVED = "improved"
    MISSED = "missed"
    UNMEASURED = "not measured"
    NO_BASELINE = "no baseline"
    UNCONFIRMED = "not confirmed"  # suspicious at first, fine in fresh processes
    INVALID = "invalid"  # neither passed nor failed: the measurement does not count

    @property
    def is_failure(self) -> bool:
        """Tell whether the test fails by it."""
        return self in (Outcome.MISSED, Outcome.UNMEASURED, Outcome.NO_BASELINE)


@dataclass(frozen=True)
class Verdict:
    """One limit held against one reading."""

    reading: str
    outcome: Outcome
    limit: Limit | None
    measured: float | None = None
    reason: str = ""
    is_exact: bool = False  # of a modelled reading: another one would say the same


class Match(Enum):
    """How well a stored baseline fits this machine."""

    EXACT = "exact"
    NEAR = "near"
    NONE = "none"


@dataclass(frozen=True)
class Settings:
    """How one test is measured and judged, after command line, marker, ini and defaults are settled."""

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
class Expectation:
    """All that is expected of one test before it runs."""

    limits: tuple[Limit, ...] = ()
    by_reading: Mapping[str, tuple[Limit, ...]] = field(default_factory=dict)  # from the baseline
    match: Match = Match.NONE
    match_reason: str = ""
    stored: Mapping[str, Mapping[str, float]] = field(default_factory=dict)  # reading → metric → value
    conditions: Mapping[str, Mapping[str, float]] = field(default_factory=dict)  # reading → condition → value
    places: Mapping[str, Mapping[str, Mapping[str, float]]] = field(
        default_factory=dict
    )  # reading → metric → place
    settings: Settings = Settings()
    sessions: int = 0  # how many the baseline was measured in
    before: Mapping[str, Any] = field(default_factory=dict)  # reading → all that was stored of it
    environment: Mapping[str, Any] = field(default_factory=dict)  # where that was


@dataclass(frozen=True)
class Result:
    """One test's readings and what was made of them."""

    test: str
    expectation: Expectation
    readings: tuple[Reading, ...]
    verdicts: tuple[Verdict, ...]
    error: str = ""  # the test's own failure, if it had one
    excused: str = ""  # why it was expected to fail, if it was, and did

    @property
    def short_name(self) -> str:
        """Return the test's id without folders."""
        return short_name(self.test)

    @property
    def is_failed(self) -> bool:
        """Tell whether anything about the test failed that was not expected to."""
        is_bad = bool(self.error) or any(verdict.outcome.is_failure for verdict in self.verdicts)
        return is_bad and not self.excused

    @property
    def invalid(self) -> tuple[str, ...]:
        """Return why measurements of this test do not count."""
        return tuple(v.reason for v in self.verdicts if v.outcome is Outcome.INVALID)


def short_name(test: str) -> str:
    """Return a test's id without the folders of its file; parameters may have slashes of their own."""
    file, mark, name = test.partition("::")
    return f"{file.rpartition('/')[2]}{mark}{name}"
