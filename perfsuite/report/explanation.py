"""Explain a reading in lines: where the step's time went, the likely cause, and what to try."""

from collections.abc import Collection, Iterable, Mapping, Sequence

from perfsuite.diagnose.diagnosis import Diagnosis, diagnose
from perfsuite.diagnose.facts import Cause
from perfsuite.records import SHARES, Reading, Result
from perfsuite.units import Unit, show

_WORTH_SHOWING = 0.005  # share of the step
_HAS_GROWN = 0.02  # share of the step
MORE = "python -m perfsuite explain"


def explain(
    reading: Reading, before: Mapping[str, float] | None = None, missed: Collection[str] = ()
) -> Iterable[str]:
    """Yield the shares, the likely cause with its evidence, the advice, and the other causes.

    `before` are the shares of the baseline. `missed` are the metrics that fell behind: a cause that explains
    them comes first, and one that was there before the change is marked as such.
    """
    diagnosis = diagnose(reading)
    baseline = before or {}
    if diagnosis.shares:
        how = "would go (predicted)" if reading.modelled else "went"
        yield f"where the step's time {how}: {shares_text(diagnosis.shares, baseline)}"
    if diagnosis.likely is None:
        return
    new = _explaining(diagnosis, missed) or (_grown(diagnosis, baseline) if missed else None)
    is_old = bool(missed) and bool(baseline) and new is None
    likely = new or diagnosis.likely
    yield f"{'as before the change' if is_old else 'likely cause'}: {likely.title} ({likely.evidence})"
    yield f"{likely.advice}; more: {MORE} {likely.name}"
    yield from (
        f"also: {cause.title} ({cause.evidence})" for cause in diagnosis.causes if cause is not likely
    )


def _explaining(diagnosis: Diagnosis, missed: Collection[str]) -> Cause | None:
    """Return the heaviest cause that explains a missed metric."""
    return next((cause for cause in diagnosis.causes if set(cause.explains) & set(missed)), None)


def _grown(diagnosis: Diagnosis, before: Mapping[str, float]) -> Cause | None:
    """Return the cause whose share of the step has grown most since the baseline, if any has."""
    growth = {
        cause.name: diagnosis.shares.get(cause.share, 0.0) - before.get(cause.share, 0.0)
        for cause in diagnosis.causes
        if cause.share and before
    }
    most = max(growth, key=lambda name: growth[name], default=None)
    if most is None or growth[most] < _HAS_GROWN:
        return None
    return next(cause for cause in diagnosis.causes if cause.name == most)


def shares_text(shares: Mapping[str, float], before: Mapping[str, float]) -> str:
    """Return the shares in their order, each with the baseline's in parentheses."""
    parts = []
    for name, label in SHARES.items():
        now, was = shares.get(name, 0.0), before.get(name)
        if now < _WORTH_SHOWING and (was or 0.0) < _WORTH_SHOWING:
            continue
        reference = "" if was is None else f" (baseline {show(was, Unit.FRACTION)})"
        parts.append(f"{label} {show(now, Unit.FRACTION)}{reference}")
    return ", ".join(parts)


def explanations(results: Sequence[Result]) -> list[tuple[str, list[str]]]:
    """Return the name and explanation of every reading, for --perf-explain."""
    return [
        (
            f"{result.test} ({reading.name})" if len(result.readings) > 1 else result.test,
            list(explain(reading, result.expectation.baseline.of(reading.name).shares)),
        )
        for result in results
        if not result.is_failed or result.error  # a missed limit is explained in its failure message
        for reading in result.readings
    ]
