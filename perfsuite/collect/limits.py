"""Turn marker arguments and the stored baseline into limits, before anything is measured."""

import difflib
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from perfsuite.errors import InvalidMarker
from perfsuite.metrics import METRICS, Metric, Tolerance
from perfsuite.noise import LEAST_SESSIONS, Spread, allowed, smallest_visible
from perfsuite.records import Expectation, Limit, Match, Settings
from perfsuite.units import Unit, parse

LIMITS: Mapping[str, Metric] = {metric.limit_name: metric for metric in METRICS.values()}
SETTING_UNITS: Mapping[str, Unit | type | tuple[str, ...]] = {
    "tolerance": Unit.FRACTION,
    "memory_tolerance": Unit.FRACTION,
    "count_tolerance": Unit.FRACTION,
    "min_time": Unit.SECONDS,
    "max_time": Unit.SECONDS,
    "device": str,
    "strict": bool,
    "on_invalid": ("fail", "skip", "warn"),
    "cooldown": Unit.SECONDS,
}
KNOWN_NOISE_TOLERANCE = 0.05  # the floor under what the spread says, unless the user says another
_PLAIN = "step_time"
_CLEARLY = 0.7  # five sessions tell spreads apart only roughly
MARKER = "the perf marker"
BASELINE = "the baseline"


@dataclass(frozen=True)
class SecondStage:
    """How a suspicious reading is measured again: in how many fresh processes, and how sure it must be."""

    sessions: int = 0
    level: float = 0.01


class Mark(Protocol):
    """What is read of a pytest mark."""

    @property
    def args(self) -> tuple[object, ...]: ...  # noqa: D102
    @property
    def kwargs(self) -> Mapping[str, object]: ...  # noqa: D102


def parse_markers(marks: Iterable[Mark]) -> tuple[tuple[Limit, ...], dict[str, object]]:
    """Return the limits and settings of a test's perf markers, the closest to the test winning."""
    merged: dict[str, object] = {}
    for mark in marks:
        if mark.args:
            raise InvalidMarker(
                f"perf takes named arguments only, got {', '.join(map(repr, mark.args))}; known: {_known()}"
            )
        for name, value in mark.kwargs.items():
            merged.setdefault(name, value)
    limits = parse_limits({k: v for k, v in merged.items() if k not in SETTING_UNITS}, MARKER)
    settings = {k: parse_setting(k, v) for k, v in merged.items() if k in SETTING_UNITS}
    return limits, settings


def parse_limits(arguments: Mapping[str, object], source: str) -> tuple[Limit, ...]:
    """Return the limits given as keyword arguments, or refuse all wrong ones at once."""
    limits, problems = [], []
    for name, value in arguments.items():
        if name not in LIMITS:
            problems.append(f"unknown argument {name!r}{_nearest(name)}")
            continue
        try:
            limits.append(Limit(LIMITS[name], parse(value, LIMITS[name].unit), source))
        except ValueError as error:
            problems.append(f"{name}: {error}")
    if problems:
        # A wrong value needs no list of names.
        known = "" if arguments.keys() <= LIMITS.keys() else f". Known: {_known()}"
        raise InvalidMarker(f"{'; '.join(problems)}{known}")
    return tuple(limits)


def parse_setting(name: str, value: object) -> object:
    """Return a setting of a marker, the command line or an ini file in its own type."""
    kind = SETTING_UNITS[name]
    if isinstance(kind, Unit):
        try:
            return parse(value, kind)
        except ValueError as error:
            raise InvalidMarker(f"{name}: {error}") from None
    if isinstance(kind, tuple):
        if value not in kind:
            raise InvalidMarker(f"{name}: {value!r} is not one of {', '.join(kind)}")
        return value
    if not isinstance(value, kind):
        raise InvalidMarker(f"{name}: {value!r} is not a {kind.__name__}")
    return value


def expect(
    limits: tuple[Limit, ...],
    settings: Settings,
    *,
    stored: Mapping[str, Mapping[str, float]],
    places: Mapping[str, Mapping[str, Mapping[str, float]]] | None = None,
    match: Match,
    match_reason: str,
    device_tolerances: Mapping[str, Tolerance],
    conditions: Mapping[str, Mapping[str, float]] | None = None,
    sessions: Mapping[str, Mapping[str, Sequence[float]]] | None = None,
    second: SecondStage | None = None,
    before: Mapping[str, Any] | None = None,
    environment: Mapping[str, Any] | None = None,
) -> Expectation:
    """Join marker limits and baseline values into one expectation; only an exact match gates."""
    gating = stored if match is Match.EXACT else {}
    sessions, second = sessions or {}, second or SecondStage()
    return Expectation(
        limits=limits,
        by_reading={
            name: _baseline_limits(values, settings, device_tolerances, sessions.get(name, {}), second)
            for name, values in gating.items()
        },
        match=match,
        match_reason=match_reason,
        stored=stored,
        conditions=(conditions or {}) if match is Match.EXACT else {},
        places=places or {},
        settings=settings,
        sessions=max((len(s) for figures in sessions.values() for s in figures.values()), default=1),
        before=before or {},
        environment=environment or {},
    )


def _baseline_limits(
    values: Mapping[str, float],
    settings: Settings,
    device_tolerances: Mapping[str, Tolerance],
    sessions: Mapping[str, Sequence[float]],
    second: SecondStage,
) -> tuple[Limit, ...]:
    known = timing_limits(sessions, settings, second)
    limits = list(known)
    for name, value in values.items():
        metric = METRICS[name]
        tolerance = device_tolerances.get(name, metric.tolerance)
        if metric.tolerance is None or tolerance is None or metric.is_relative:
            continue
        if metric.is_timing and known:
            continue
        asked = _asked_tolerance(metric, settings)
        relative = tolerance.relative if asked is None else max(asked, tolerance.least)
        allowed_amount = max(relative * value, tolerance.absolute)
        bound = max(value - allowed_amount, 0.0) if metric.higher_is_better else value + allowed_amount
        limits.append(Limit(metric, bound, BASELINE, reference=value, tolerance=relative))
    return tuple(limits)


def timing_limits(
    sessions: Mapping[str, Sequence[float]], settings: Settings, second: SecondStage
) -> tuple[Limit, ...]:
    """Return the limits of timings that were measured in enough sessions; a step is judged by one clock."""
    steadiest = _steadiest(sessions)
    return tuple(
        _limit_from_sessions(metric, sessions[name], settings.tolerance, second)
        for name in sessions
        if (metric := METRICS[name]).is_timing
        and len(sessions[name]) >= LEAST_SESSIONS
        and (name == steadiest or not (metric.is_relative or name == _PLAIN))
    )


def _steadiest(sessions: Mapping[str, Sequence[float]]) -> str:
    """Return the one timing a step is judged by: in seconds, unless a reference makes it clearly steadier."""
    known = {
        name: Spread.from_costs(values).deviation
        for name, values in sessions.items()
        if len(values) >= LEAST_SESSIONS and (METRICS[name].is_relative or name == _PLAIN)
    }
    best = min(known, key=lambda name: known[name], default=_PLAIN)
    return best if best in known and known[best] < _CLEARLY * known.get(_PLAIN, math.inf) else _PLAIN


def _limit_from_sessions(
    metric: Metric, sessions: Sequence[float], asked: float | None, second: SecondStage
) -> Limit:
    """Return the limit that the spread of a baseline's sessions allows."""
    spread = Spread.from_costs([metric.cost(value) for value in sessions])
    tolerance = KNOWN_NOISE_TOLERANCE if asked is None else asked
    return Limit(
        metric,
        metric.cost(math.exp(spread.centre + allowed(spread, tolerance))),  # the cost of a cost is the figure
        BASELINE,
        reference=metric.cost(math.exp(spread.centre)),
        tolerance=tolerance,
        spread=spread,
        visible=smallest_visible(spread, tolerance, second.sessions, second.level),
    )


def _asked_tolerance(metric: Metric, settings: Settings) -> float | None:
    if metric.is_count:
        return settings.count_tolerance
    return settings.tolerance if metric.is_timing else settings.memory_tolerance


def _known() -> str:
    return ", ".join(_names())


def _names() -> Sequence[str]:
    return [*LIMITS, *SETTING_UNITS]


def _nearest(name: str) -> str:
    near = difflib.get_close_matches(name, _names(), n=1)
    return f" (did you mean {near[0]!r}?)" if near else ""
