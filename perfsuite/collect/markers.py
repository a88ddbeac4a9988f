"""Parse perf markers and limits in human units; errors in them are reported before the run."""

import difflib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from perfsuite.errors import InvalidMarker
from perfsuite.metrics import METRICS, Metric
from perfsuite.records import Limit
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
MARKER = "the perf marker"


class Mark(Protocol):
    """The part of a pytest mark that is read."""

    @property
    def args(self) -> tuple[object, ...]: ...  # noqa: D102
    @property
    def kwargs(self) -> Mapping[str, object]: ...  # noqa: D102


@dataclass(frozen=True)
class MarkerValues:
    """The limits and settings from a test's perf markers."""

    limits: tuple[Limit, ...] = ()
    settings: Mapping[str, object] = field(default_factory=dict)


def parse_markers(marks: Iterable[Mark]) -> MarkerValues:
    """Return the limits and settings of a test's perf markers; the marker closest to the test wins."""
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
    return MarkerValues(limits, settings)


def parse_limits(arguments: Mapping[str, object], source: str) -> tuple[Limit, ...]:
    """Return the limits given as keyword arguments, or raise one error that lists all wrong ones."""
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
    """Return a setting from a marker, the command line or an ini file, converted to its type."""
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


def _known() -> str:
    return ", ".join(_names())


def _names() -> Sequence[str]:
    return [*LIMITS, *SETTING_UNITS]


def _nearest(name: str) -> str:
    matches = difflib.get_close_matches(name, _names(), n=1)
    return f" (did you mean {matches[0]!r}?)" if matches else ""
