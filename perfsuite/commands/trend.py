"""Find the commits at which a history's timings changed; the library ruptures finds the change points."""

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from perfsuite.errors import HistoryUnusable
from perfsuite.metrics import METRICS, Metric, primary_metric
from perfsuite.noise import steadiest
from perfsuite.statistics import median
from perfsuite.units import show

_ANCHOR = 5  # the first readings; they stay fixed, so that many small losses cannot hide in a moving window
_RECENT = 5
_LEAST_STRETCH = 3  # readings between two changes: fewer are outliers
_LEAST_CHANGE = 0.02
_PENALTY = 4.0  # of one more change point, in units of variance × ln(readings)
_LEAST_DEVIATION = 0.002

Entry = Mapping[str, Any]


@dataclass(frozen=True)
class Change:
    """One change point: where, and by how much (a share; positive is slower)."""

    commit: str  # as shown to users
    time: str
    slower: float
    last_before: str  # the commit of the reading just before


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
    candidates = (_trend(*key, entries) for key, entries in sorted(series.items()))
    return [trend for trend in candidates if trend is not None]


def _trend(key: str, test: str, reading: str, entries: Sequence[Entry]) -> Trend | None:
    """Return the trend of one reading, None if nothing was timed."""
    plain = primary_metric(entries[-1]["kind"])
    timed = [entry for entry in entries if entry["metrics"].get(plain.name, 0) > 0]
    if not timed:
        return None
    metric = _steadiest(plain, timed)
    values = [float(entry["metrics"][metric.name]) for entry in timed]
    costs = [math.log(metric.cost(value)) for value in values]
    changes = []
    for at in change_points(costs):
        before, after = _stretch(costs, at)
        slower = math.expm1(after - before)
        if abs(slower) >= _LEAST_CHANGE:
            change = Change(_commit(timed[at]), timed[at]["time"], slower, _commit(timed[at - 1]))
            changes.append(change)
    half = max(len(values) // 2, 1)  # no reading counts both as a first and as a recent one
    anchor, recent = median(values[: min(_ANCHOR, half)]), median(values[-min(_RECENT, half) :])
    return Trend(key, test, reading, metric, len(values), anchor, recent, tuple(changes))


def _steadiest(plain: Metric, timed: Sequence[Entry]) -> Metric:
    """Return the metric to follow: seconds, unless rounds of a reference, as in the gate, are steadier."""
    relative = [m for m in METRICS.values() if m.is_relative and timed[-1]["kind"] in m.gated_kinds]
    complete = [m for m in relative if all(entry["metrics"].get(m.name, 0) > 0 for entry in timed)]
    noise = {
        metric.name: _noise([math.log(metric.cost(entry["metrics"][metric.name])) for entry in timed])
        for metric in (plain, *complete)
    }
    return METRICS[steadiest(noise, plain.name)]


def _noise(costs: Sequence[float]) -> float:
    """Return the noise between neighbouring readings, which a change of level hardly affects."""
    steps = [abs(b - a) for a, b in itertools.pairwise(costs)]
    return max(1.4826 * median(steps) / math.sqrt(2), _LEAST_DEVIATION) if steps else _LEAST_DEVIATION


def _commit(entry: Entry) -> str:
    """Return the name of a reading's commit; uncommitted changes are not blamed on the commit below them."""
    name = str(entry["commit"] or "unknown")[:12]
    return f"uncommitted changes on {name}" if entry.get("dirty") else f"commit {name}"


def _stretch(costs: Sequence[float], at: int) -> tuple[float, float]:
    """Return the typical cost just before and just after an index."""
    return median(costs[max(0, at - 10) : at]), median(costs[at : at + 10])


def change_points(costs: Sequence[float]) -> list[int]:
    """Return the indices where the level changes: the first reading of each new level."""
    if len(costs) < 2 * _LEAST_STRETCH:
        return []
    import numpy

    ruptures = load_ruptures()
    noise = _noise(costs)
    search = ruptures.Pelt(model="l2", min_size=_LEAST_STRETCH, jump=1)
    penalty = _PENALTY * noise**2 * math.log(len(costs))
    ends = search.fit_predict(numpy.array(costs).reshape(-1, 1), pen=penalty)
    return [int(end) for end in ends[:-1]]


def load_ruptures() -> Any:
    """Import the library, or raise an error that says how to install it."""
    try:
        import ruptures
    except ImportError:
        raise HistoryUnusable(
            "change points need the library ruptures; install it with: pip install 'pytest-perfsuite[trend]'"
        ) from None
    return ruptures


def render(trends: Sequence[Trend]) -> str:
    """Return the trends as lines: the fixed anchor, the latest readings, and every change with its commit."""
    lines = []
    for trend in trends:
        unit, name = trend.metric.unit, f"{trend.test} ({trend.reading}), {trend.key}: {trend.metric.label}"
        if trend.readings == 1:
            lines.append(f"{name} {show(trend.recent, unit)}, 1 reading")
        else:
            lines.append(
                f"{name} {show(trend.anchor, unit)} at first, {show(trend.recent, unit)} recently "
                f"({_percent(trend.since_anchor)} since the first), {trend.readings} readings"
            )
        lines += [f"  {_percent(c.slower)} at {c.commit} ({c.time}), {_since(c)}" for c in trend.changes]
        if not trend.changes:
            is_enough = trend.readings >= 2 * _LEAST_STRETCH
            too_few = f"too few readings: {2 * _LEAST_STRETCH} are needed"
            lines.append(f"  {'no change point' if is_enough else too_few}")
    return "\n".join(lines) if lines else "the history is empty: run pytest --perf --perf-history=FILE"


def _since(change: Change) -> str:
    is_same = change.last_before == change.commit
    return "between two readings of the same" if is_same else f"unchanged until {change.last_before}"


def _percent(slower: float) -> str:
    return f"{abs(100 * slower):.1f} % {'slower' if slower > 0 else 'faster'}"
