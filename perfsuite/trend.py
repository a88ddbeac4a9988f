"""Find the commits at which a history's timings changed; change points come from the library ruptures."""

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from perfsuite.errors import HistoryUnusable
from perfsuite.metrics import Metric, primary_metric
from perfsuite.statistics import geometric_mean, median
from perfsuite.units import show

_ANCHOR = 5  # the first readings; they stay, so that many small losses cannot hide in a moving view
_RECENT = 5
_LEAST_STRETCH = 3  # readings between two changes: fewer are outliers
_LEAST_CHANGE = 0.02
_PENALTY = 4.0  # of one more change point, in units of variance × ln(readings)
_LEAST_DEVIATION = 0.002

Entry = Mapping[str, Any]


@dataclass(frozen=True)
class Change:
    """One change point: where, and by how much (a share; positive is slower)."""

    commit: str
    time: str
    slower: float


@dataclass(frozen=True)
class Trend:
    """One test's timing over its history on one machine."""

    key: str
    test: str
    reading: str
    metric: Metric
    readings: int
    anchor: float
    recent: float
    changes: tuple[Change, ...]

    @property
    def since_anchor(self) -> float:
        """Return how much slower (a share) the latest readings are than the first ones."""
        return self.metric.cost(self.recent) / self.metric.cost(self.anchor) - 1


def trends(entries: Iterable[Entry]) -> list[Trend]:
    """Return the trend of every test and machine; modelled and measured readings have different keys."""
    series: dict[tuple[str, str, str], list[Entry]] = {}
    for entry in entries:
        if not entry.get("invalid"):
            series.setdefault((entry["key"], entry["test"], entry["reading"]), []).append(entry)
    return [_trend(*where, found) for where, found in sorted(series.items())]


def _trend(key: str, test: str, reading: str, entries: Sequence[Entry]) -> Trend:
    metric = primary_metric(entries[-1]["kind"])
    timed = [entry for entry in entries if entry["metrics"].get(metric.name, 0) > 0]
    values = [float(entry["metrics"][metric.name]) for entry in timed]
    if not values:
        raise HistoryUnusable(f"{test} ({reading}) has no {metric.label} in its history")
    costs = [math.log(metric.cost(value)) for value in values]
    changes = []
    for at in change_points(costs):
        before, after = _stretch(costs, at)
        slower = math.expm1(after - before)
        if abs(slower) >= _LEAST_CHANGE:
            changes.append(Change(str(timed[at]["commit"] or "unknown"), timed[at]["time"], slower))
    anchor, recent = geometric_mean(values[:_ANCHOR]), geometric_mean(values[-_RECENT:])
    return Trend(key, test, reading, metric, len(values), anchor, recent, tuple(changes))


def _stretch(costs: Sequence[float], at: int) -> tuple[float, float]:
    """Return the typical cost shortly before and after a place."""
    return median(costs[max(0, at - 10) : at]), median(costs[at : at + 10])


def change_points(costs: Sequence[float]) -> list[int]:
    """Return the places where the level changes: the first reading of each new level."""
    if len(costs) < 2 * _LEAST_STRETCH:
        return []
    import numpy

    ruptures = load_ruptures()
    # The noise from one reading to the next: a change of level hardly touches it.
    steps = [abs(b - a) for a, b in itertools.pairwise(costs)]
    noise = max(1.4826 * median(steps) / math.sqrt(2), _LEAST_DEVIATION)
    search = ruptures.Pelt(model="l2", min_size=_LEAST_STRETCH, jump=1)
    penalty = _PENALTY * noise**2 * math.log(len(costs))
    ends = search.fit_predict(numpy.array(costs).reshape(-1, 1), pen=penalty)
    return [int(end) for end in ends[:-1]]


def load_ruptures() -> Any:
    """Return the library, or say how to get it."""
    try:
        import ruptures
    except ImportError:
        raise HistoryUnusable(
            "change points need the library ruptures; install it with: pip install 'perfsuite[trend]'"
        ) from None
    return ruptures


def render(found: Sequence[Trend]) -> str:
    """Return the trends as lines: the fixed anchor, the latest readings, and every change with its commit."""
    lines = []
    for trend in found:
        unit = trend.metric.unit
        lines.append(
            f"{trend.test} ({trend.reading}), {trend.key}: {trend.metric.label} "
            f"{show(trend.anchor, unit)} at first, {show(trend.recent, unit)} of late "
            f"({_told(trend.since_anchor)} since the first), {trend.readings} readings"
        )
        lines += [f"  {_told(c.slower)} at commit {c.commit[:12]} ({c.time})" for c in trend.changes]
        if not trend.changes:
            is_known = trend.readings >= 2 * _LEAST_STRETCH
            few = f"too few readings: {2 * _LEAST_STRETCH} are needed"
            lines.append(f"  {'no change point' if is_known else few}")
    return "\n".join(lines) if lines else "the history is empty: run pytest --perf --perf-history=FILE"


def _told(slower: float) -> str:
    return f"{abs(100 * slower):.1f} % {'slower' if slower > 0 else 'faster'}"
