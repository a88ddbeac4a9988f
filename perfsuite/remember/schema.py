"""JSON Schemas of baselines and of readings (--perf-json), every number, text and list bounded."""

from typing import Any, get_args

from perfsuite.insight import SHARES
from perfsuite.metrics import METRICS, Kind

_DIALECT = "https://json-schema.org/draft/2020-12/schema"
_LARGEST = 1e18  # no figure of a training comes near: FLOPs of a step, bytes, seconds
_TEXT, _LONG_TEXT = 500, 5_000
_MANY = 400  # places, reported figures, notes

Schema = dict[str, Any]

NUMBER: Schema = {"type": "number", "minimum": 0, "maximum": _LARGEST}
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
    """Return the schema of an object; what is not named is refused unless `others` says how it looks."""
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
    return _object(
        {"device_kind": _NAME, "device_name": _NAME}, ["device_kind", "device_name"], others=plain, most=50
    )


def _metric(unit: str, higher_is_better: bool, value: Schema) -> Schema:
    return _object(
        {"value": value, "unit": {"const": unit}, "higher_is_better": {"const": higher_is_better}},
        ["value", "unit", "higher_is_better"],
    )


def _metrics(value: Schema) -> Schema:
    return _object(
        {
            metric.name: _metric(metric.unit.value, metric.higher_is_better, value)
            for metric in METRICS.values()
        }
    )


def _by_metric(entry: Schema) -> Schema:
    return _object(dict.fromkeys(METRICS, entry))


_KIND: Schema = {"enum": list(get_args(Kind))}
_FIGURES = _object(others=NUMBER, most=_MANY)
_SHARES = _object(dict.fromkeys(SHARES, _SHARE))
_PLACES = _by_metric(_object(others=NUMBER, most=_MANY))


def baseline_schema() -> Schema:
    """Return the schema of one stored baseline."""
    reading = _object(
        {
            "kind": _KIND,
            "steps": _WHOLE,
            "warmup_steps": _WHOLE,
            "samples": _WHOLE,
            "metrics": _metrics(NUMBER),
            "conditions": _FIGURES,
            "reported": _FIGURES,
            "shares": _SHARES,
            "rounds": _list(NUMBER, 200),
            "sessions": _by_metric({**_list(NUMBER, 100), "minItems": 1}),
            "places": _PLACES,
        },
        ["kind", "metrics", "rounds", "steps", "samples"],
    )
    return {
        "$schema": _DIALECT,
        "title": "perfsuite baseline",
        **_object(
            {
                "schema": {"enum": ["perfsuite-baseline/1", "perfsuite-baseline/2"]},
                "test": _NAME,
                "environment": _environment(),
                "readings": _object(others=reading, least=1, most=100),
            },
            ["schema", "test", "environment", "readings"],
        ),
    }


def readings_schema() -> Schema:
    """Return the schema of what --perf-json writes: pytest-benchmark's shape with ours inside."""
    number_or_text: Schema = {
        "type": ["number", "string", "null"],
        "minimum": 0,
        "maximum": _LARGEST,
        "maxLength": _TEXT,
    }
    verdict = _object({"outcome": _NAME, "limit": {"type": ["string", "null"], "maxLength": _TEXT}})
    told = _object(
        {
            "reading": _NAME,
            "kind": _KIND,
            "device": _NAME,
            "modelled": {"type": "boolean"},
            "metrics": _metrics(number_or_text),
            "reported": _FIGURES,
            "conditions": _FIGURES,
            "notes": _list(_WORDS, _MANY),
            "invalid": _list(_WORDS, _MANY),
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
        {"data": _list(NUMBER, 200_000), "outliers": _NAME},
        ["min", "max", "mean", "median", "rounds", "data"],
        others=NUMBER,
        most=30,
    )
    benchmark = _object(
        {
            "name": _NAME,
            "fullname": _NAME,
            "stats": stats,
            "extra_info": _object({"perfsuite": told}, ["perfsuite"]),
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
