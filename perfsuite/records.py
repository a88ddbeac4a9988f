"""The nouns of the line: Metric, Reading, Limit, Verdict, Expectation, Result; they hold and do nothing."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Literal

from perfsuite.counts import COUNTED
from perfsuite.units import Unit

Kind = Literal["step", "loop", "comparison", "benchmark"]
_ALL_KINDS: frozenset[Kind] = frozenset({"step", "loop", "comparison", "benchmark"})


@dataclass(frozen=True)
class Tolerance:
    """How far a reading may fall behind its baseline: a share of it, and never less than an amount."""

    relative: float
    absolute: float = 0.0
    least: float = 0.0  # no option makes the share smaller: a predicted time is no better than its model


@dataclass(frozen=True)
class Metric:
    """One figure of a reading; the only place that knows whether higher is better."""

    name: str
    field: str
    label: str
    unit: Unit
    higher_is_better: bool
    is_timing: bool = False
    tolerance: Tolerance | None = None
    gated_kinds: frozenset[Kind] = frozenset()  # the readings whose baseline gates it; elsewhere it is told
    kinds: frozenset[Kind] = _ALL_KINDS
    is_count: bool = False  # counted, not timed: the same code gives the same number
    judged_field: str | None = None  # the cautious end of an interval, where the figure has one

    @property
    def limit_name(self) -> str:
        """Return the marker argument that limits this metric."""
        return f"{'min' if self.higher_is_better else 'max'}_{self.name}"

    def is_better(self, one: float, other: float) -> bool:
        """Tell whether one value beats the other."""
        return one > other if self.higher_is_better else one < other


_ROWS = (
    Metric(
        "samples_per_s",
        "samples_per_s",
        "samples/s",
        Unit.PER_SECOND,
        True,
        is_timing=True,
        tolerance=Tolerance(0.10),
        gated_kinds=frozenset({"loop"}),  # a stall now and then moves this and leaves the median alone
    ),
    Metric("utilization", "utilization", "utilization", Unit.FRACTION, True),
    Metric(
        "peak_memory",
        "peak_memory_bytes",
        "peak memory",
        Unit.BYTES,
        False,
        tolerance=Tolerance(0.005),
        gated_kinds=_ALL_KINDS,
    ),
    Metric(
        "step_time",
        "step_seconds",
        "step time",
        Unit.SECONDS,
        False,
        is_timing=True,
        tolerance=Tolerance(0.10),
        gated_kinds=_ALL_KINDS - {"loop"},  # the median: another process on the machine hardly moves it
    ),
    Metric("data_wait", "data_wait", "data wait", Unit.FRACTION, False, kinds=frozenset({"loop"})),
    Metric(
        "speedup",
        "speedup",
        "speed-up",
        Unit.RATIO,
        True,
        is_timing=True,
        tolerance=Tolerance(0.10),
        gated_kinds=frozenset({"comparison"}),
        kinds=frozenset({"comparison"}),
        judged_field="speedup_low",
    ),
    Metric(
        "difference",
        "difference",
        "difference of results",
        Unit.RATIO,
        False,
        kinds=frozenset({"comparison"}),
    ),
    *(
        Metric(
            *(name, name, label, unit, False),
            tolerance=Tolerance(0.0),
            gated_kinds=_ALL_KINDS,
            is_count=True,
        )
        for name, label, unit in COUNTED
    ),
)
METRICS: Mapping[str, Metric] = {metric.name: metric for metric in _ROWS}


def primary_metric(kind: Kind) -> Metric:
    """Return the one timing that a kind of reading is compared by."""
    gated = [metric for metric in _ROWS if metric.is_timing and kind in metric.gated_kinds]
    return gated[-1]  # a comparison's speed-up before its step time


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
    peak_memory_bytes: float | None = None
    data_wait: float | None = None
    speedup: float | None = None
    speedup_low: float | None = None
    speedup_high: float | None = None
    difference: float | None = None
    counts: Mapping[str, float] = field(default_factory=dict)  # metric → figure
    modelled: bool = False
    places: Mapping[str, Mapping[str, float]] = field(
        default_factory=dict
    )  # metric → place in the code → count
    lines: Mapping[str, int] = field(default_factory=dict)  # place → its line now
    series: tuple[float, ...] = ()  # utilization over time, where it is known
    reported: Mapping[str, float] = field(default_factory=dict)  # shown and stored, never judged
    notes: tuple[str, ...] = ()
    without: "Reading | None" = None  # a comparison's other arm

    def value(self, metric: Metric) -> float | None:
        """Return the figure of a metric as it is shown."""
        value: float | None = getattr(self, metric.field, None)
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


class Outcome(Enum):
    """How a limit was met."""

    PASSED = "passed"
    IMPROVED = "improved"
    MISSED = "missed"
    UNMEASURED = "not measured"
    NO_BASELINE = "no baseline"

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


@dataclass(frozen=True)
class Expectation:
    """All that is expected of one test before it runs."""

    limits: tuple[Limit, ...] = ()
    by_reading: Mapping[str, tuple[Limit, ...]] = field(default_factory=dict)  # from the baseline
    match: Match = Match.NONE
    match_reason: str = ""
    stored: Mapping[str, Mapping[str, float]] = field(default_factory=dict)  # reading → metric → value
    places: Mapping[str, Mapping[str, Mapping[str, float]]] = field(
        default_factory=dict
    )  # reading → metric → place
    settings: Settings = Settings()


@dataclass(frozen=True)
class Result:
    """One test's readings and what was made of them."""

    test: str
    expectation: Expectation
    readings: tuple[Reading, ...]
    verdicts: tuple[Verdict, ...]
    error: str = ""  # the test's own failure, if it had one

    @property
    def is_failed(self) -> bool:
        """Tell whether anything about the test failed."""
        return bool(self.error) or any(verdict.outcome.is_failure for verdict in self.verdicts)
