"""Decide which readings become baselines and put them into the stored form."""

import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from perfsuite.environment import Environment
from perfsuite.kernel_names import totals
from perfsuite.metrics import METRICS, Metric
from perfsuite.records import Reading, Result
from perfsuite.remember.schema import MAX_ROUNDS, SCHEMA
from perfsuite.statistics import geometric_mean, median
from perfsuite.units import Unit

# test → reading → the figures of each session
Sessions = Mapping[str, Mapping[str, Sequence[Mapping[str, float]]]]


def remember(
    results: Iterable[Result], environments: dict[str, Environment], more: Sessions | None = None
) -> dict[str, dict[str, Any]]:
    """Return test → document for a run without failures, and an empty mapping if anything failed.

    Tests with invalid measurements are left out. `more` are the sessions of fresh processes.
    """
    results = list(results)
    if any(result.is_failed for result in results):
        return {}
    return {
        result.test: _document(
            result, environments[result.readings[0].device], (more or {}).get(result.test, {})
        )
        for result in results
        if result.readings and not result.invalid
    }


def _document(
    result: Result, environment: Environment, more: Mapping[str, Sequence[Mapping[str, float]]]
) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "test": result.test,
        "environment": environment.to_stored(),
        "readings": {
            reading.name: stored_reading(reading, more.get(reading.name, ())) for reading in result.readings
        },
    }


def stored_reading(reading: Reading, more: Sequence[Mapping[str, float]] = ()) -> dict[str, Any]:
    """Return a reading in its stored form: metrics with unit and direction, all sessions, and the rounds."""
    sessions = sessions_of(reading, more)
    return {
        "kind": reading.kind,
        "steps": reading.steps,
        "warmup_steps": reading.warmup_steps,
        "samples": reading.samples,
        "metrics": {
            metric.name: {
                "value": value if _is_exact(metric, reading) else _rounded(_typical(metric, value, sessions)),
                "unit": metric.unit.value,
                "higher_is_better": metric.higher_is_better,
            }
            for metric in METRICS.values()
            if (value := reading.value(metric)) is not None
        },
        **({"conditions": _all_rounded(reading.conditions)} if reading.conditions else {}),
        **({"sessions": sessions} if more else {}),
        "reported": _all_rounded(reading.reported),
        **({"shares": _all_rounded(reading.shares)} if reading.shares else {}),
        "rounds": [_rounded(value) for value in rounds(reading.rounds)],
        **(
            {"places": {name: dict(counts) for name, counts in reading.places.items()}}
            if reading.places
            else {}
        ),
        **({"launched": totals(reading.launched)} if reading.launched else {}),
    }


def sessions_of(reading: Reading, more: Sequence[Mapping[str, float]]) -> dict[str, list[float]]:
    """Return the figures of all sessions by metric, this process first; counts need only one session."""
    sessions = {}
    for metric in METRICS.values():
        values = [reading.value(metric), *(figures.get(metric.name) for figures in more)]
        if not metric.is_count and None not in values:
            sessions[metric.name] = [_rounded(value) for value in values if value is not None]
    return sessions


def _typical(metric: Metric, value: float, sessions: Mapping[str, Sequence[float]]) -> float:
    values = sessions.get(metric.name, [value])
    return geometric_mean(values) if metric.is_timing and min(values) > 0 else median(values)


def _is_exact(metric: Metric, reading: Reading) -> bool:
    # A count is compared exactly, so it is stored exactly.
    return metric.is_count or (reading.modelled and metric.unit is Unit.BYTES)


def rounds(steps: Sequence[float], most: int = MAX_ROUNDS) -> list[float]:
    """Return the steps, or the means of equal groups of them if there are too many to store."""
    if len(steps) <= most:
        return list(steps)
    edges = [len(steps) * i // most for i in range(most + 1)]
    return [sum(steps[low:high]) / (high - low) for low, high in itertools.pairwise(edges)]


def _all_rounded(values: Mapping[str, float]) -> dict[str, float]:
    return {name: _rounded(value) for name, value in values.items()}


def _rounded(value: float) -> float:
    # Six digits are more precise than any clock here, and keep diffs readable.
    return float(f"{value:.6g}")
