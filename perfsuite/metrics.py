"""The figures a reading can have: name, unit, direction, and how each is held against a baseline."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from perfsuite.counts import COUNTED
from perfsuite.units import Unit

Kind = Literal["step", "loop", "comparison", "benchmark", "scaling"]
_ALL_KINDS: frozenset[Kind] = frozenset({"step", "loop", "comparison", "benchmark", "scaling"})


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
    is_relative: bool = False  # in rounds of a reference workload, which a slow machine slows as well
    judged_field: str | None = None  # the cautious end of an interval, where the figure has one
    via: str = ""  # the field whose absence explains this one's

    @property
    def limit_name(self) -> str:
        """Return the marker argument that limits this metric."""
        return f"{'min' if self.higher_is_better else 'max'}_{self.name}"

    def cost(self, value: float) -> float:
        """Return a timing as something that grows when code gets slower."""
        return 1 / value if self.higher_is_better else value

    def is_better(self, one: float, other: float) -> bool:
        """Tell whether one value beats the other."""
        return one > other if self.higher_is_better else one < other


_SERIES = "utilization"
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
    Metric("utilization_swing", "utilization_swing", "utilization swing", Unit.FRACTION, False, via=_SERIES),
    Metric("idle_stretch", "idle_stretch_seconds", "longest idle stretch", Unit.SECONDS, False, via=_SERIES),
    Metric("kernel_busy", "kernel_busy", "kernel-busy share", Unit.FRACTION, True),
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
        gated_kinds=_ALL_KINDS - {"loop", "comparison"},  # the median; a comparison is held to its ratio
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
    Metric("rank_skew", "rank_skew", "rank skew", Unit.FRACTION, False),
    Metric(
        "scaling_efficiency",
        "scaling_efficiency",
        "scaling efficiency",
        Unit.FRACTION,
        True,
        kinds=frozenset({"scaling"}),
        judged_field="scaling_efficiency_low",
    ),
    *(
        Metric(
            *(name, name, label, Unit.RATIO, False),
            is_timing=True,
            tolerance=Tolerance(0.10),
            gated_kinds=frozenset({"step"}),
            kinds=frozenset({"step"}),
            is_relative=True,
        )
        for name, label in (
            ("step_in_products", "step time in matrix products"),
            ("step_in_copies", "step time in memory copies"),
            ("step_in_tiny_ops", "step time in tiny operations"),
        )
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
    gated = [m for m in _ROWS if m.is_timing and not m.is_relative and kind in m.gated_kinds]
    return gated[-1]  # a comparison's speed-up before its step time
