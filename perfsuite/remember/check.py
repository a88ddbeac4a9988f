"""The shape of a baseline document, version by version; checks every number before it may judge anything."""

import sys
from collections.abc import Mapping
from typing import Any

from perfsuite.metrics import METRICS

SCHEMA = "perfsuite-baseline/2"
_READABLE = ("perfsuite-baseline/1", SCHEMA)  # 1 knew a single session and nothing of its noise
MAX_BYTES = 1_000_000
MAX_ROUNDS = 200
MAX_SESSIONS = 100
_MAX_READINGS = 100


# What a key is made of must be what it says; the rest is only told.
_ENVIRONMENT: Mapping[str, Any] = {
    **dict.fromkeys(("device_kind", "device_name"), str),
    **dict.fromkeys(("cuda", "torch", "driver", "device_uuid"), str | None),
    **dict.fromkeys(("threads", "ranks"), int | None),
}


class InvalidDocument(ValueError):
    """A document that cannot be a baseline."""


def check(document: object) -> None:
    """Raise InvalidDocument with the first thing that is wrong."""
    whole = _mapping(document, "the document")
    if whole.get("schema") not in _READABLE:
        raise InvalidDocument(
            f"its schema is {whole.get('schema')!r}, this perfsuite reads {' and '.join(_READABLE)}"
        )
    _need(whole, {"schema", "test", "environment", "readings"}, "the document")
    if not isinstance(whole["test"], str):
        raise InvalidDocument("test is not a text")
    _environment(whole["environment"])
    readings = _mapping(whole["readings"], "readings")
    if not 1 <= len(readings) <= _MAX_READINGS:
        raise InvalidDocument(f"it has {len(readings)} readings, 1 to {_MAX_READINGS} are possible")
    for name, reading in readings.items():
        _reading(_mapping(reading, f"reading {name!r}"), f"reading {name!r}")


def _environment(value: object) -> None:
    environment = _mapping(value, "environment")
    for name in ("device_kind", "device_name"):
        if not isinstance(environment.get(name), str):
            raise InvalidDocument(f"environment has no {name}")
    for name, entry in environment.items():
        wanted = _ENVIRONMENT.get(name, str | int | bool | None)
        if not isinstance(entry, wanted):
            raise InvalidDocument(f"environment's {name} is {shown(entry)}")


def _reading(reading: Mapping[str, Any], where: str) -> None:
    _need(reading, {"kind", "metrics", "rounds", "steps", "samples"}, where)
    for name in ("steps", "samples"):
        _number(reading[name], f"{name} of {where}")
    metrics = _mapping(reading["metrics"], f"metrics of {where}")
    for name, entry in metrics.items():
        _metric(name, _mapping(entry, f"{name} of {where}"), f"{name} of {where}")
    for name, value in _mapping(reading.get("conditions", {}), f"conditions of {where}").items():
        _number(value, f"condition {name} of {where}")
    _places(reading.get("places", {}), f"places of {where}")
    _sessions(reading.get("sessions", {}), f"sessions of {where}")
    rounds = reading["rounds"]
    if not isinstance(rounds, list) or len(rounds) > MAX_ROUNDS:
        raise InvalidDocument(f"rounds of {where} is not a list of at most {MAX_ROUNDS} numbers")
    for value in rounds:
        _number(value, f"a round of {where}")


def _metric(name: str, entry: Mapping[str, Any], where: str) -> None:
    metric = METRICS.get(name)
    if metric is None:
        raise InvalidDocument(f"{where} is not a metric; known: {', '.join(METRICS)}")
    _need(entry, {"value", "unit", "higher_is_better"}, where)
    _number(entry["value"], where)
    if metric.is_timing and entry["value"] <= 0:
        raise InvalidDocument(f"{where} is {entry['value']!r}: no time is that short")
    if entry["unit"] != metric.unit.value:
        raise InvalidDocument(f"{where} is in {entry['unit']!r}, not in {metric.unit.value!r}")
    if entry["higher_is_better"] is not metric.higher_is_better:
        raise InvalidDocument(
            f"{where} says higher_is_better={entry['higher_is_better']!r}: the wrong direction"
        )


def _places(value: object, where: str) -> None:
    for name, counts in _mapping(value, where).items():
        if name not in METRICS:
            raise InvalidDocument(f"{where}: {name!r} is not a metric; known: {', '.join(METRICS)}")
        for place, count in _mapping(counts, f"{name} in {where}").items():
            _number(count, f"{name} at {place!r} in {where}")


def _sessions(value: object, where: str) -> None:
    lengths = set()
    for name, values in _mapping(value, where).items():
        if name not in METRICS:
            raise InvalidDocument(f"{where}: {name!r} is not a metric; known: {', '.join(METRICS)}")
        if not isinstance(values, list) or not 1 <= len(values) <= MAX_SESSIONS:
            raise InvalidDocument(f"{name} in {where} is not a list of 1 to {MAX_SESSIONS} numbers")
        for one in values:
            _number(one, f"{name} in {where}")
        if METRICS[name].is_timing and min(values) <= 0:
            raise InvalidDocument(
                f"{name} in {where} has a session of {min(values)!r}: no time is that short"
            )
        lengths.add(len(values))
    if len(lengths) > 1:
        raise InvalidDocument(f"{where} has {' and '.join(map(str, sorted(lengths)))} sessions at once")


def _number(value: object, where: str) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= sys.float_info.max:
        raise InvalidDocument(f"{where} is {shown(value)}, not a finite number of at least 0")


def shown(value: object) -> str:
    """Return a value as a message has room for it."""
    try:
        text = repr(value)
    except ValueError:  # a whole number of more digits than Python prints
        return "a number of thousands of digits"
    return text if len(text) <= 60 else f"{text[:57]}…"


def _mapping(value: object, where: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise InvalidDocument(f"{where} is not an object")
    return value


def _need(entry: Mapping[str, Any], names: set[str], where: str) -> None:
    missing = sorted(names - set(entry))
    if missing:
        raise InvalidDocument(f"{where} lacks {', '.join(missing)}")
