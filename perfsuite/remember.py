"""Decide which readings become baselines and put them into the stored form."""

import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from perfsuite.environment import Environment
from perfsuite.metrics import METRICS, Metric
from perfsuite.records import Reading, Result
from perfsuite.schema import MAX_ROUNDS, SCHEMA
from perfsuite.units import Unit


def remember(results: Iterable[Result], environments: dict[str, Environment]) -> dict[str, dict[str, Any]]:
    """Return test → document for a run in which nothing failed, and nothing at all for any other.

    What does not count is left out, whatever else was done about it.
    """
    results = list(results)
    if any(result.is_failed for result in results):
        return {}
    return {
        result.test: _document(result, environments[result.readings[0].device])
        for result in results
        if result.readings and not result.invalid
    }


def _document(result: Result, environment: Environment) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "test": result.test,
        "environment": environment.to_stored(),
        "readings": {reading.name: stored_reading(reading) for reading in result.readings},
    }


def stored_reading(reading: Reading) -> dict[str, Any]:
    """Return a reading as stored: metrics with unit and direction, and the raw rounds."""
    return {
        "kind": reading.kind,
        "steps": reading.steps,
        "warmup_steps": reading.warmup_steps,
        "samples": reading.samples,
        "metrics": {
            metric.name: {
                "value": value if _is_exact(metric, reading) else _rounded(value),
                "unit": metric.unit.value,
                "higher_is_better": metric.higher_is_better,
            }
            for metric in METRICS.values()
            if (value := reading.value(metric)) is not None
        },
        **({"conditions": _all_rounded(reading.conditions)} if reading.conditions else {}),
        "reported": _all_rounded(reading.reported),
        **({"shares": _all_rounded(reading.shares)} if reading.shares else {}),
        "rounds": [_rounded(value) for value in rounds(reading.rounds)],
        **(
            {"places": {name: dict(counts) for name, counts in reading.places.items()}}
            if reading.places
            else {}
        ),
    }


def _is_exact(metric: Metric, reading: Reading) -> bool:
    # A count is gated to the last digit, so it is stored to the last digit.
    return metric.is_count or (reading.modelled and metric.unit is Unit.BYTES)


def rounds(steps: Sequence[float], most: int = MAX_ROUNDS) -> list[float]:
    """Return the steps, or the means of equal stretches of them where they are too many to store."""
    if len(steps) <= most:
        return list(steps)
    edges = [len(steps) * i // most for i in range(most + 1)]
    return [sum(steps[low:high]) / (high - low) for low, high in itertools.pairwise(edges)]


def _all_rounded(values: Mapping[str, float]) -> dict[str, float]:
    return {name: _rounded(value) for name, value in values.items()}


def _rounded(value: float) -> float:
    # Six digits are finer than any clock here and keep diffs readable.
    return float(f"{value:.6g}")
