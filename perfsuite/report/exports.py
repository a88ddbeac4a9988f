"""Readings in the shapes dashboards take: github-action-benchmark's two lists and bencher's BMF."""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from perfsuite.metrics import METRICS, Metric
from perfsuite.records import Outcome, Reading, Result
from perfsuite.statistics import quantile
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


def named(results: Sequence[Result]) -> Iterator[tuple[str, Reading]]:
    """Yield every reading that counts under a name of its own; a modelled one says so, whoever draws it."""
    for result in results:
        invalid = {verdict.reading for verdict in result.verdicts if verdict.outcome is Outcome.INVALID}
        for reading in result.readings:
            if reading.invalid or reading.name in invalid:
                continue
            name = f"{result.test} ({reading.name})" if len(result.readings) > 1 else result.test
            yield f"{name} [modelled]" if reading.modelled else name, reading


def _figures(reading: Reading) -> Iterator[tuple[Metric, float]]:
    for metric in METRICS.values():
        if (value := reading.value(metric)) is not None and math.isfinite(value):  # JSON has no NaN
            yield metric, value


def github_action_benchmark(results: Sequence[Result], *, bigger_is_better: bool) -> str:
    """Return the list for `customBiggerIsBetter` or `customSmallerIsBetter`, each figure in its own unit."""
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
    """Return bencher's metric format: benchmark → measure → value, with quartiles where there are steps."""
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
