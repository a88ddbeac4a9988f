"""The figures a reading can have: name, unit, direction, and how each is compared with a baseline."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from perfsuite.units import Unit

COUNTED: tuple[tuple[str, str, Unit], ...] = (
    ("kernels", "kernels per step", Unit.COUNT),
    ("syncs", "host syncs per step", Unit.COUNT),
    ("h2d_bytes", "bytes to the device per step", Unit.BYTES),
    ("d2h_bytes", "bytes to the host per step", Unit.BYTES),
    ("blocking_copies", "blocking copies per step", Unit.COUNT),
    ("d2d_copies", "copies within the device per step", Unit.COUNT),
    ("memsets", "memsets per step", Unit.COUNT),
    ("flops", "FLOPs per step", Unit.COUNT),
    ("parameter_memory", "memory of parameters", Unit.BYTES),
    ("gradient_memory", "memory of gradients", Unit.BYTES),
    ("optimizer_memory", "memory of the optimizer", Unit.BYTES),
    ("activation_memory", "memory of activations", Unit.BYTES),
)
_SERIES = "utilization"  # what its swing and its idle stretches are derived from
Kind = Literal["step", "loop", "comparison", "benchmark", "scaling"]
_ALL_KINDS: frozenset[Kind] = frozenset({"step", "loop", "comparison", "benchmark", "scaling"})


@dataclass(frozen=True)
class Tolerance:
    """How far a reading may fall behind its baseline: a share of it, but at least an absolute amount."""

    relative: float
    absolute: float = 0.0
    least: float = 0.0  # no option lowers the share below this: a predicted time is only as good as its model


@dataclass(frozen=True)
class Metric:
    """One figure of a reading; the single place that defines whether higher is better."""

    name: str
    label: str
    unit: Unit
    higher_is_better: bool
    is_timing: bool = False
    tolerance: Tolerance | None = None
    gated_kinds: frozenset[Kind] = frozenset()  # where a baseline gates it; elsewhere it is shown
    kinds: frozenset[Kind] = _ALL_KINDS
    is_count: bool = False  # counted, not timed: the same code gives the same number
    is_relative: bool = False  # in rounds of a reference workload, which a slow machine slows down too
    via: str = ""  # the metric or part of a measurement that this one is derived from, and missing with

    @property
    def limit_name(self) -> str:
        """Return the marker argument that limits this metric."""
        return f"{'min' if self.higher_is_better else 'max'}_{self.name}"

    @property
    def needs_series(self) -> bool:
        """Return whether it comes from utilization over time, which takes a window of many sample periods."""
        return _SERIES in (self.name, self.via)

    def cost(self, value: float) -> float:
        """Return a timing as a cost, which grows when code gets slower."""
        return 1 / value if self.higher_is_better else value

    def is_better(self, value: float, reference: float) -> bool:
        """Return whether a value is better than a reference."""
        return value > reference if self.higher_is_better else value < reference


INSPECTION = "inspection"  # of a few steps after the window
# Where a device does not count, its profile may.
_INSPECTED = ("kernels", "syncs", "blocking_copies", "d2d_copies", "memsets")


_ROWS = (
    Metric(
        "samples_per_s",
        "samples/s",
        Unit.PER_SECOND,
        True,
        is_timing=True,
        tolerance=Tolerance(0.10),
        gated_kinds=frozenset({"loop"}),  # a rare stall changes this figure, but not the median
    ),
    Metric("utilization", "utilization", Unit.FRACTION, True),
    Metric("utilization_swing", "utilization swing", Unit.FRACTION, False, via=_SERIES),
    Metric("idle_stretch", "longest idle stretch", Unit.SECONDS, False, via=_SERIES),
    Metric("kernel_busy", "kernel-busy share", Unit.FRACTION, True, via=INSPECTION),
    Metric(
        "peak_memory",
        "peak memory",
        Unit.BYTES,
        False,
        tolerance=Tolerance(0.005),
        gated_kinds=_ALL_KINDS,
    ),
    Metric(
        "step_time",
        "step time",
        Unit.SECONDS,
        False,
        is_timing=True,
        tolerance=Tolerance(0.10),
        gated_kinds=_ALL_KINDS - {"loop", "comparison"},  # the median; a comparison is judged by its ratio
    ),
    Metric("data_wait", "data wait", Unit.FRACTION, False, kinds=frozenset({"loop"})),
    Metric(
        "speedup",
        "speed-up",
        Unit.RATIO,
        True,
        is_timing=True,
        tolerance=Tolerance(0.10),
        gated_kinds=frozenset({"comparison"}),
        kinds=frozenset({"comparison"}),
    ),
    Metric(
        "difference",
        "difference of results",
        Unit.RATIO,
        False,
        kinds=frozenset({"comparison"}),
    ),
    Metric("rank_skew", "rank skew", Unit.FRACTION, False),
    Metric(
        "scaling_efficiency",
        "scaling efficiency",
        Unit.FRACTION,
        True,
        kinds=frozenset({"scaling"}),
    ),
    *(
        Metric(
            *(name, label, Unit.RATIO, False),
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
            *(name, label, unit, False),
            tolerance=Tolerance(0.0),
            gated_kinds=_ALL_KINDS,
            is_count=True,
            via=INSPECTION if name in _INSPECTED else "",
        )
        for name, label, unit in COUNTED
    ),
    # What the host itself launches, a graph's replay as one: a lost replay shows here and nowhere else.
    Metric(
        *("launches", "launches by the host per step", Unit.COUNT, False),
        tolerance=Tolerance(0.0),
        gated_kinds=_ALL_KINDS,
        is_count=True,
        via="kernels",
    ),
    # Not gated by a baseline: two graphs made one, or fused kernels in a graph, are fewer and no loss.
    Metric("graph_launches", "graph launches per step", Unit.COUNT, True, is_count=True),
    Metric("graph_nodes", "graph nodes per step", Unit.COUNT, True, is_count=True),
)


METRICS: Mapping[str, Metric] = {metric.name: metric for metric in _ROWS}


def primary_metric(kind: Kind) -> Metric:
    """Return the timing by which readings of a kind are compared."""
    gated = [m for m in _ROWS if m.is_timing and not m.is_relative and kind in m.gated_kinds]
    return gated[-1]  # a comparison's speed-up before its step time
