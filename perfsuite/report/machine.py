"""Readings as JSON: pytest-benchmark's format, and those of github-action-benchmark and bencher."""

import json
import math
import platform
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from importlib import metadata
from math import isfinite
from typing import Any

from perfsuite.environment import Environment
from perfsuite.metrics import METRICS, Metric
from perfsuite.records import Outcome, Reading, Result
from perfsuite.report.terminal import against_baseline
from perfsuite.statistics import deviation, mean, median, quantile
from perfsuite.units import Unit

_UNITS = {
    Unit.FRACTION: "%",
    Unit.BYTES: "MiB",
    Unit.SECONDS: "ms",
    Unit.PER_SECOND: "1/s",
    Unit.RATIO: "x",
    Unit.COUNT: "count",
}
_FACTORS = {Unit.FRACTION: 100.0, Unit.BYTES: 2.0**-20, Unit.SECONDS: 1e3}


def render(
    results: Sequence[Result],
    environments: Mapping[str, Environment],
    params: Mapping[str, Mapping[str, object]],
) -> str:
    """Return the JSON text of all readings."""
    any_environment = next(iter(environments.values()))
    document = {
        "machine_info": _machine_info(any_environment),
        "commit_info": {
            "id": any_environment.commit or "unknown",
            "dirty": any_environment.dirty,
            "project": "",
            "branch": "(unknown)",
            "time": None,
            "author_time": None,
        },
        "benchmarks": [
            _benchmark(result, reading, params.get(result.test, {}), environments[reading.device])
            for result in results
            for reading in result.readings
        ],
        "datetime": datetime.now(UTC).isoformat(),
        "version": metadata.version("pytest-benchmark"),
    }
    return json.dumps(document, indent=1, sort_keys=True, allow_nan=False) + "\n"


def _machine_info(environment: Environment) -> dict[str, Any]:
    return {
        "node": platform.node(),
        "machine": platform.machine(),
        "processor": platform.processor(),
        "system": platform.system(),
        "release": platform.release(),
        "python_version": platform.python_version(),
        "python_implementation": platform.python_implementation(),
        "cpu": {"brand_raw": environment.cpu},
        "perfsuite": environment.to_stored(),
    }


def _benchmark(
    result: Result, reading: Reading, params: Mapping[str, object], environment: Environment
) -> dict[str, Any]:
    # One entry per reading: several readings of a test need different names.
    suffix = f" ({reading.name})" if len(result.readings) > 1 else ""
    return {
        "group": None,
        "name": result.test.rsplit("::", 1)[-1] + suffix,
        "fullname": result.test + suffix,
        "params": plain(dict(params)) or None,
        "param": None,
        "options": {"timer": environment.device_kind, "warmup": reading.warmup_steps},
        "stats": stats(reading.rounds),
        "extra_info": {
            "perfsuite": {
                "reading": reading.name,
                "kind": reading.kind,
                "device": reading.device,
                "modelled": reading.modelled,
                **({"origin": reading.origin} if reading.origin else {}),
                "metrics": {
                    metric.name: {
                        "value": plain(reading.value(metric)),
                        "unit": metric.unit.value,
                        "higher_is_better": metric.higher_is_better,
                    }
                    for metric in METRICS.values()
                },
                "reported": dict(reading.reported),
                "conditions": dict(reading.conditions),
                "notes": list(reading.notes),
                "invalid": list(result.invalid),
                **(
                    {"launched": {name: dict(at) for name, at in reading.launched.items()}}
                    if reading.launched
                    else {}
                ),
                "places": {name: dict(counts) for name, counts in reading.places.items()},
                "utilization_series": list(reading.series),
                "shares": dict(reading.shares),
                "clues": dict(reading.clues),
                "ranks": [dict(figures) for figures in reading.ranks],
                "against_baseline": against_baseline(result, reading),
                "verdicts": [
                    {"outcome": v.outcome.value, "limit": v.limit.metric.limit_name if v.limit else None}
                    for v in result.verdicts
                    if v.reading in (reading.name, "")
                ],
                "failed": result.is_failed,
            }
        },
    }


def plain(value: Any) -> Any:
    """Return a value that JSON can represent: NaN, infinity and other objects become their repr."""
    if isinstance(value, dict):
        return {str(name): plain(entry) for name, entry in value.items()}
    if isinstance(value, list | tuple):
        return [plain(entry) for entry in value]
    is_plain = (
        value is None or isinstance(value, str | bool | int) or (isinstance(value, float) and isfinite(value))
    )
    return value if is_plain else repr(value)


def stats(data: Sequence[float]) -> dict[str, Any]:
    """Return the statistics that pytest-benchmark stores for its rounds."""
    q1, q3 = quantile(data, 0.25), quantile(data, 0.75)
    centre, spread = mean(data), deviation(data)
    iqr = q3 - q1
    low, high = q1 - 1.5 * iqr, q3 + 1.5 * iqr
    inside = [value for value in data if low <= value <= high]
    iqr_outliers = len(data) - len(inside)
    stddev_outliers = sum(abs(value - centre) > spread for value in data)
    return {
        "min": min(data),
        "max": max(data),
        "mean": centre,
        "stddev": spread,
        "median": median(data),
        "q1": q1,
        "q3": q3,
        "iqr": iqr,
        "ld15iqr": min(inside),
        "hd15iqr": max(inside),
        "iqr_outliers": iqr_outliers,
        "stddev_outliers": stddev_outliers,
        "outliers": f"{stddev_outliers};{iqr_outliers}",
        "ops": 1 / centre if centre > 0 else 0.0,
        "total": sum(data),
        "rounds": len(data),
        "iterations": 1,
        "data": list(data),
    }


def named(results: Sequence[Result]) -> Iterator[tuple[str, Reading]]:
    """Yield every reading that counts with a unique name; modelled ones are marked for every dashboard."""
    for result in results:
        invalid = {verdict.reading for verdict in result.verdicts if verdict.outcome is Outcome.INVALID}
        for reading in result.readings:
            if reading.invalid or reading.name in invalid:
                continue
            name = f"{result.test} ({reading.name})" if len(result.readings) > 1 else result.test
            yield f"{name} [{reading.how}]" if reading.modelled else name, reading


def _figures(reading: Reading) -> Iterator[tuple[Metric, float]]:
    for metric in METRICS.values():
        if (value := reading.value(metric)) is not None and math.isfinite(value):  # JSON has no NaN
            yield metric, value


def github_action_benchmark(results: Sequence[Result], *, bigger_is_better: bool) -> str:
    """Return the list for `customBiggerIsBetter` or `customSmallerIsBetter`, in human units."""
    entries = [
        {
            "name": f"{name}: {metric.label}",
            "unit": _UNITS[metric.unit],
            "value": value * _FACTORS.get(metric.unit, 1.0),
            "extra": f"device: {reading.device}",
            **({"range": _spread(reading)} if metric.name == "step_time" and reading.rounds else {}),
        }
        for name, reading in named(results)
        for metric, value in _figures(reading)
        if metric.higher_is_better is bigger_is_better
    ]
    return _text(entries)


def _spread(reading: Reading) -> str:
    low, high = quantile(reading.rounds, 0.25), quantile(reading.rounds, 0.75)
    return f"± {(high - low) / 2 * 1e3:.4g}"


def bencher(results: Sequence[Result]) -> str:
    """Return bencher's metric format: benchmark → measure → value, with quartiles for step times."""
    document: dict[str, Mapping[str, Any]] = {}
    for name, reading in named(results):
        document[name] = {
            metric.name.replace("_", "-"): _measure(metric, value, reading)
            for metric, value in _figures(reading)
        }
    return _text(document)


def _measure(metric: Metric, value: float, reading: Reading) -> dict[str, float]:
    measure = {"value": value}
    if metric.name == "step_time" and reading.rounds:
        measure["lower_value"] = min(quantile(reading.rounds, 0.25), value)
        measure["upper_value"] = max(quantile(reading.rounds, 0.75), value)
    elif metric.name == "speedup" and reading.speedup_low is not None and reading.speedup_high is not None:
        measure |= {"lower_value": reading.speedup_low, "upper_value": reading.speedup_high}
    return measure


def _text(document: object) -> str:
    return json.dumps(document, indent=1, allow_nan=False, ensure_ascii=False) + "\n"
