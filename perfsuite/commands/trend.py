"""Find the commits at which a history's timings changed; change points come from the library ruptures."""

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from perfsuite.errors import HistoryUnusable
from perfsuite.metrics import METRICS, Metric, primary_metric
from perfsuite.statistics import median
from perfsuite.units import show

_ANCHOR = 5  # the first readings; they stay, so that many small losses cannot hide in a moving view
_RECENT = 5
_LEAST_STRETCH = 3  # readings between two changes: fewer are outliers
_LEAST_CHANGE = 0.02
_PENALTY = 4.0  # of one more change point, in units of variance × ln(readings)
_LEAST_DEVIATION = 0.002
_STEADIER = 0.7  # of the seconds' noise: rounds of a reference are followed where they are that much steadier

Entry = Mapping[str, Any]


@dataclass(frozen=True)
class Change:
    """One change point: where, and by how much (a share; positive is slower)."""

    commit: str  # as it is named to a person
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
    found = (_trend(*where, entries) for where, entries in sorted(series.items()))
    return [trend for trend in found if trend is not None]


def _trend(key: str, test: str, reading: str, entries: Sequence[Entry]) -> Trend | None:
    """Return the trend of one reading, None where nothing was timed."""
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
    half = max(len(values) // 2, 1)  # no reading is both among the first and of late
    anchor, recent = median(values[: min(_ANCHOR, half)]), median(values[-min(_RECENT, half) :])
    return Trend(key, test, reading, metric, len(values), anchor, recent, tuple(changes))


def _steadiest(plain: Metric, timed: Sequence[Entry]) -> Metric:
    """Return the figure to follow: seconds, unless rounds of a reference, as the gate knows, vary less."""
    relative = [m for m in METRICS.values() if m.is_relative and timed[-1]["kind"] in m.gated_kinds]
    known = [m for m in relative if all(entry["metrics"].get(m.name, 0) > 0 for entry in timed)]
    noise = {
        metric: _noise([math.log(metric.cost(entry["metrics"][metric.name])) for entry in timed])
        for metric in (plain, *known)
    }
    best = min(noise, key=lambda metric: noise[metric])
    return best if noise[best] < _STEADIER * noise[plain] else plain


def _noise(costs: Sequence[float]) -> float:
    """Return the noise from one reading to the next: a change of level hardly touches it."""
    steps = [abs(b - a) for a, b in itertools.pairwise(costs)]
    return max(1.4826 * median(steps) / math.sqrt(2), _LEAST_DEVIATION) if steps else _LEAST_DEVIATION


def _commit(entry: Entry) -> str:
    """Name a reading's commit; what was not committed is nobody's fault but its own."""
    name = str(entry["commit"] or "unknown")[:12]
    return f"uncommitted changes on {name}" if entry.get("dirty") else f"commit {name}"


def _stretch(costs: Sequence[float], at: int) -> tuple[float, float]:
    """Return the typical cost shortly before and after a place."""
    return median(costs[max(0, at - 10) : at]), median(costs[at : at + 10])


def change_points(costs: Sequence[float]) -> list[int]:
    """Return the places where the level changes: the first reading of each new level."""
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
        unit, name = trend.metric.unit, f"{trend.test} ({trend.reading}), {trend.key}: {trend.metric.label}"
        if trend.readings == 1:
            lines.append(f"{name} {show(trend.recent, unit)}, 1 reading")
        else:
            lines.append(
                f"{name} {show(trend.anchor, unit)} at first, {show(trend.recent, unit)} of late "
                f"({_told(trend.since_anchor)} since the first), {trend.readings} readings"
            )
        lines += [f"  {_told(c.slower)} at {c.commit} ({c.time}), {_since(c)}" for c in trend.changes]
        if not trend.changes:
            is_known = trend.readings >= 2 * _LEAST_STRETCH
            few = f"too few readings: {2 * _LEAST_STRETCH} are needed"
            lines.append(f"  {'no change point' if is_known else few}")
    return "\n".join(lines) if lines else "the history is empty: run pytest --perf --perf-history=FILE"


def _since(change: Change) -> str:
    is_same = change.last_before == change.commit
    return "between two readings of the same" if is_same else f"last as before: {change.last_before}"


def _told(slower: float) -> str:
    return f"{abs(100 * slower):.1f} % {'slower' if slower > 0 else 'faster'}"
