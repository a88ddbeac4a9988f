"""The JSON Schemas of stored documents, and the check that names what does not match them."""

import json
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, get_args

from perfsuite.metrics import METRICS, Kind, Metric
from perfsuite.records import SHARES

SCHEMA = "perfsuite-baseline/2"
READABLE = ("perfsuite-baseline/1", SCHEMA)  # version 1 had a single session and no noise
MAX_BYTES = 1_000_000
MAX_ROUNDS = 200
MAX_SESSIONS = 100
_MAX_READINGS = 100
_DIALECT = "https://json-schema.org/draft/2020-12/schema"
_LARGEST_FLOAT = sys.float_info.max  # an integer in JSON may have any number of digits
_MAX_DEPTH = 50
_TYPES: Mapping[str, Callable[[Any], bool]] = {
    "object": lambda value: isinstance(value, dict),
    "array": lambda value: isinstance(value, list),
    "string": lambda value: isinstance(value, str),
    "boolean": lambda value: isinstance(value, bool),
    "null": lambda value: value is None,
    # NaN and infinity are not JSON, and must not pass as numbers.
    "number": lambda value: _is_number(value) and abs(value) <= _LARGEST_FLOAT,
    "integer": lambda value: _is_number(value) and abs(value) <= _LARGEST_FLOAT and value == int(value),
}
_LARGEST = 1e18  # far above any figure of a training: FLOPs of a step, bytes, seconds
_TEXT, _LONG_TEXT = 500, 5_000
_MANY = 400  # places, reported figures, notes

Schema = dict[str, Any]


class InvalidDocument(ValueError):
    """A document that does not match its schema; the message has the path and the reason."""


_NUMBER: Schema = {"type": "number", "minimum": 0, "maximum": _LARGEST}
_TIME: Schema = {"type": "number", "exclusiveMinimum": 0, "maximum": _LARGEST}
_WHOLE: Schema = {"type": "integer", "minimum": 0, "maximum": 10**15}
_NAME: Schema = {"type": "string", "minLength": 1, "maxLength": _TEXT}
_WORDS: Schema = {"type": "string", "maxLength": _LONG_TEXT}
_SHARE: Schema = {"type": "number", "minimum": 0, "maximum": 1.000001}


def _object(
    properties: dict[str, Schema] | None = None,
    required: list[str] | None = None,
    *,
    others: Schema | bool = False,
    most: int | None = None,
    least: int = 0,
) -> Schema:
    """Return the schema of an object; unnamed properties are refused unless `others` is their schema."""
    schema: Schema = {"type": "object", "additionalProperties": others, "propertyNames": {"maxLength": _TEXT}}
    if properties:
        schema["properties"] = properties
    if required:
        schema["required"] = required
    if most is not None:
        schema["maxProperties"] = most
    if least:
        schema["minProperties"] = least
    return schema


def _list(items: Schema, most: int) -> Schema:
    return {"type": "array", "items": items, "maxItems": most}


def _environment() -> Schema:
    plain: Schema = {"type": ["string", "integer", "boolean", "null"], "maxLength": _TEXT}
    text: Schema = {"type": ["string", "null"], "maxLength": _TEXT}
    whole: Schema = {"type": ["integer", "null"], "minimum": 0}
    # Fields that make up the machine key are typed strictly; the rest is only shown.
    known = {
        **dict.fromkeys(("device_kind", "device_name"), _NAME),
        **dict.fromkeys(("cuda", "torch", "driver", "device_uuid", "host"), text),
        **dict.fromkeys(("threads", "ranks"), whole),
    }
    return _object(known, ["device_kind", "device_name"], others=plain, most=50)


def _metric(unit: str, higher_is_better: bool, value: Schema) -> Schema:
    return _object(
        {"value": value, "unit": {"const": unit}, "higher_is_better": {"const": higher_is_better}},
        ["value", "unit", "higher_is_better"],
    )


def _metrics(value: Schema | None = None) -> Schema:
    """Return the schema of figures by metric; a stored time is never zero."""
    return _object(
        {
            metric.name: _metric(metric.unit.value, metric.higher_is_better, value or _figure(metric))
            for metric in METRICS.values()
        }
    )


def _figure(metric: Metric) -> Schema:
    return _TIME if metric.is_timing else _NUMBER


_KIND: Schema = {"enum": list(get_args(Kind))}
_FIGURES = _object(others=_NUMBER, most=_MANY)
_SHARES = _object(dict.fromkeys(SHARES, _SHARE))
_PLACES = _object(dict.fromkeys(METRICS, _object(others=_NUMBER, most=_MANY)))


def baseline_schema() -> Schema:
    """Return the schema of one stored baseline."""
    reading = _object(
        {
            "kind": _KIND,
            "steps": _WHOLE,
            "warmup_steps": _WHOLE,
            "samples": _WHOLE,
            "metrics": _metrics(),
            "conditions": _FIGURES,
            "reported": _FIGURES,
            "shares": _SHARES,
            "rounds": _list(_NUMBER, MAX_ROUNDS),
            "sessions": _object(
                {m.name: {**_list(_figure(m), MAX_SESSIONS), "minItems": 1} for m in METRICS.values()}
            ),
            "places": _PLACES,
            "launched": _object(others=_NUMBER, most=_MANY),
        },
        ["kind", "metrics", "rounds", "steps", "samples"],
    )
    return {
        "$schema": _DIALECT,
        "title": "perfsuite baseline",
        **_object(
            {
                "schema": {"enum": list(READABLE)},
                "test": _NAME,
                "environment": _environment(),
                "readings": _object(others=reading, least=1, most=_MAX_READINGS),
            },
            ["schema", "test", "environment", "readings"],
        ),
    }


def readings_schema() -> Schema:
    """Return the schema of --perf-json: pytest-benchmark's format with our data in extra_info."""
    number_or_text: Schema = {
        "type": ["number", "string", "null"],
        "minimum": 0,
        "maximum": _LARGEST,
        "maxLength": _TEXT,
    }
    verdict = _object({"outcome": _NAME, "limit": {"type": ["string", "null"], "maxLength": _TEXT}})
    extra = _object(
        {
            "reading": _NAME,
            "kind": _KIND,
            "device": _NAME,
            "modelled": {"type": "boolean"},
            "origin": _NAME,
            "metrics": _metrics(number_or_text),
            "reported": _FIGURES,
            "conditions": _FIGURES,
            "notes": _list(_WORDS, _MANY),
            "invalid": _list(_WORDS, _MANY),
            "launched": _object(others=_object(others=_NUMBER, most=_MANY), most=_MANY),
            "places": _PLACES,
            "utilization_series": _list(_SHARE, 10_000),
            "shares": _SHARES,
            "clues": _object(others={"type": ["number", "string"], "maxLength": _LONG_TEXT}, most=100),
            "ranks": _list(_FIGURES, 10_000),
            "against_baseline": {"type": ["string", "null"], "maxLength": _TEXT},
            "verdicts": _list(verdict, 1_000),
            "failed": {"type": "boolean"},
        },
        ["reading", "kind", "device", "modelled", "metrics", "failed"],
        others=True,
        most=50,
    )
    stats = _object(
        {"data": _list(_NUMBER, 200_000), "outliers": _NAME},
        ["min", "max", "mean", "median", "rounds", "data"],
        others=_NUMBER,
        most=30,
    )
    benchmark = _object(
        {
            "name": _NAME,
            "fullname": _NAME,
            "stats": stats,
            "extra_info": _object({"perfsuite": extra}, ["perfsuite"]),
        },
        ["name", "fullname", "stats", "extra_info"],
        others=True,
        most=20,
    )
    return {
        "$schema": _DIALECT,
        "title": "perfsuite readings",
        **_object(
            {
                "benchmarks": _list(benchmark, 10_000),
                "machine_info": {"type": "object"},
                "commit_info": {"type": "object"},
                "datetime": _NAME,
                "version": _NAME,
            },
            ["benchmarks", "machine_info"],
        ),
    }


def read_json(path: Path, max_bytes: int = MAX_BYTES) -> Any:
    """Return a file's JSON; raise if it is too large, not JSON, nested too deep, or has duplicate keys."""
    size = path.stat().st_size
    if size > max_bytes:
        raise InvalidDocument(f"it is {size:,} bytes long, at most {max_bytes:,} are read")
    try:
        return json.loads(
            path.read_text(encoding="utf-8"), parse_constant=_no_constant, object_pairs_hook=_each_once
        )
    except RecursionError:
        raise InvalidDocument("it is nested too deep") from None


def _no_constant(name: str) -> float:
    raise InvalidDocument(f"{name} is not a number a reading can have")


def _each_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    entries = dict(pairs)
    if len(entries) < len(pairs):
        # Parsers disagree on which duplicate wins: the value checked here may not be the one used elsewhere.
        raise InvalidDocument("it has a key twice in one object")
    return entries


def check_baseline(document: Any) -> None:
    """Raise InvalidDocument with the first problem of a document that is not a valid baseline."""
    if isinstance(document, dict) and document.get("schema") not in READABLE:
        raise InvalidDocument(
            f"its schema is {document.get('schema')!r}, this perfsuite reads {' and '.join(READABLE)}"
        )
    for problem in problems(document, baseline_schema()):
        raise InvalidDocument(problem)
    for name, reading in document["readings"].items():
        counts = {len(values) for values in reading.get("sessions", {}).values()}
        if len(counts) > 1:  # cannot be expressed in JSON Schema
            numbers = " and ".join(map(str, sorted(counts)))
            raise InvalidDocument(f"readings.{name}.sessions has {numbers} sessions at once")


def problems(value: Any, schema: Schema | bool, where: str = "the document", depth: int = 0) -> Iterator[str]:
    """Yield what does not match a schema: its path, what it is, and what it should be.

    Implements the part of JSON Schema that is used here, because patches of strangers are checked on machines
    where nothing but Python is installed.
    """
    if schema is True:
        return
    if schema is False:
        yield f"{where} is not expected"
        return
    if depth > _MAX_DEPTH:
        yield f"{where} is nested too deep"
        return
    if "type" in schema and not _is_type(value, schema["type"]):
        wanted = schema["type"]
        yield f"{where} is {shown(value)}, not {wanted if isinstance(wanted, str) else ' or '.join(wanted)}"
        return
    if "const" in schema and not _same(value, schema["const"]):
        yield f"{where} is {shown(value)}, not {schema['const']!r}"
    if "enum" in schema and not any(_same(value, known) for known in schema["enum"]):
        yield f"{where} is {shown(value)}, not one of {', '.join(map(repr, schema['enum']))}"
    if _is_number(value):
        yield from _number_problems(value, schema, where)
    elif isinstance(value, str):
        yield from _size_problems(len(value), schema, where, "Length", "characters")
    elif isinstance(value, list):
        yield from _size_problems(len(value), schema, where, "Items", "entries")
        for i, entry in enumerate(value):
            yield from problems(entry, schema.get("items", True), f"{where}[{i}]", depth + 1)
    elif isinstance(value, dict):
        yield from _object_problems(value, schema, where, depth)


def _object_problems(value: dict[str, Any], schema: Schema, where: str, depth: int) -> Iterator[str]:
    yield from _size_problems(len(value), schema, where, "Properties", "entries")
    missing = [name for name in schema.get("required", ()) if name not in value]
    if missing:
        yield f"{where} lacks {', '.join(missing)}"
    known, others = schema.get("properties", {}), schema.get("additionalProperties", True)
    for name, entry in value.items():
        inside = f"{where}.{name[:60]}" if where != "the document" else name[:60]
        yield from problems(name, schema.get("propertyNames", True), f"the name {name[:60]!r}", depth + 1)
        if name not in known and others is False and known:
            yield f"{inside} is not expected; known: {', '.join(known)}"
        else:
            yield from problems(entry, known.get(name, others), inside, depth + 1)


def _number_problems(value: float, schema: Schema, where: str) -> Iterator[str]:
    if "minimum" in schema and value < schema["minimum"]:
        yield f"{where} is {shown(value)}, below {schema['minimum']!r}"
    if "exclusiveMinimum" in schema and value <= schema["exclusiveMinimum"]:
        yield f"{where} is {shown(value)}: no time is that short"
    if "maximum" in schema and value > schema["maximum"]:
        yield f"{where} is {shown(value)}, above {schema['maximum']!r}"


def _size_problems(size: int, schema: Schema, where: str, word: str, unit: str) -> Iterator[str]:
    if size < schema.get(f"min{word}", 0):
        yield f"{where} has {size} {unit}, at least {schema[f'min{word}']} are needed"
    if size > schema.get(f"max{word}", size):
        yield f"{where} has {size:,} {unit}, at most {schema[f'max{word}']:,} are allowed"


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_type(value: Any, wanted: str | list[str]) -> bool:
    return any(_TYPES[name](value) for name in ([wanted] if isinstance(wanted, str) else wanted))


def _same(value: Any, expected: Any) -> bool:
    # True equals 1 in Python, but not in JSON.
    return bool(value == expected and isinstance(value, bool) == isinstance(expected, bool))


def shown(value: object) -> str:
    """Return a value shortened for a message."""
    try:
        text = repr(value)
    except ValueError:  # an integer with more digits than Python prints
        return "a number of thousands of digits"
    return text if len(text) <= 60 else f"{text[:57]}…"
