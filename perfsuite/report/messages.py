"""Say what a verdict means: measured, asked, by whom, how far off, what to do."""

from collections.abc import Iterable, Mapping

from perfsuite.diagnose.diagnosis import diagnose
from perfsuite.metrics import METRICS, Metric
from perfsuite.records import Limit, Outcome, Reading, Result, Verdict
from perfsuite.report.explanation import MORE, explain
from perfsuite.report.whereabouts import where
from perfsuite.units import Unit, show


def failure_text(result: Result) -> str:
    """Return all failed limits of a test; the first line stands alone in the short summary."""
    failed = [verdict for verdict in result.verdicts if verdict.outcome.is_failure]
    failed.sort(key=_importance)
    readings = {reading.name: reading for reading in result.readings}
    lines: list[str] = []
    for verdict in failed:
        reading = readings.get(verdict.reading)
        lines.append(_named(verdict_line(verdict, reading), verdict, readings))
        lines.extend(f"  {line}" for line in _context(verdict, reading, result))
    lines.extend(f"  {line}" for line in _acceptance(failed))
    for reading in result.readings:
        missed = [v for v in failed if v.reading == reading.name and v.outcome is Outcome.MISSED]
        if missed:
            names = {verdict.limit.metric.name for verdict in missed if verdict.limit is not None}
            told = explain(reading, result.expectation.before.get(reading.name), names)
            lines.extend(f"  {_of_several(line, reading, readings)}" for line in told)
    return "\n".join(lines)


def _importance(verdict: Verdict) -> int:
    """Order what failed: what a user waits for, what was counted, memory in all, and its parts."""
    metric = verdict.limit.metric if verdict.limit is not None else None
    if metric is None or metric.is_timing:
        return 0
    if metric.unit is not Unit.BYTES:
        return 1
    return 2 if metric.name == "peak_memory" else 3


def _acceptance(failed: Iterable[Verdict]) -> Iterable[str]:
    """Say once how figures that are meant become the baseline's."""
    metrics = [v.limit.metric for v in failed if _is_behind_baseline(v) and v.limit is not None]
    if metrics:
        worse = "slower" if metrics[0].is_timing else "larger"
        noun = "figure is" if len(metrics) == 1 else "figures are"
        yield f"if the {worse} {noun} meant: delete this test's baseline and run pytest --save-baseline"


def _is_behind_baseline(verdict: Verdict) -> bool:
    return (
        verdict.outcome is Outcome.MISSED
        and verdict.limit is not None
        and verdict.limit.reference is not None
    )


def _of_several(line: str, reading: Reading, readings: Mapping[str, Reading]) -> str:
    return f"{reading.name}: {line}" if len(readings) > 1 else line


def invalid_text(result: Result) -> str:
    """Return what makes a test's measurements worthless, and what to do about it."""
    readings = {reading.name: reading for reading in result.readings}
    lines = [
        _named(verdict_line(verdict, None), verdict, readings)
        for verdict in result.verdicts
        if verdict.outcome is Outcome.INVALID
    ]
    return "\n".join(
        [*lines, f"  it was repeated once and is neither a pass nor a regression; more: {MORE} invalid"]
    )


def _named(line: str, verdict: Verdict, readings: Mapping[str, Reading]) -> str:
    # One reading needs no name; of several, each line must say whose it is.
    return f"{verdict.reading}: {line}" if verdict.reading and len(readings) > 1 else line


def verdict_line(verdict: Verdict, reading: Reading | None) -> str:
    """Return one line for one failed limit."""
    limit = verdict.limit
    if limit is None:
        is_invalid = verdict.outcome is Outcome.INVALID
        return f"invalid measurement: {verdict.reason}" if is_invalid else verdict.reason
    metric = limit.metric
    label = metric_label(metric, reading)
    asked = show(limit.bound, metric.unit)
    if verdict.outcome is Outcome.UNMEASURED or verdict.measured is None:
        word = "at least" if metric.higher_is_better else "at most"
        return f"{label} was not measured, but {limit.source} asks for {word} {asked}: {verdict.reason}"
    side = "below" if metric.higher_is_better else "above"
    measured = show(verdict.measured, metric.unit)
    if limit.reference is None:
        off = _off(verdict.measured, limit.bound)
        shown = _with_interval(metric, reading, measured)
        return f"{label} {shown} is {side} the {asked} asked by {limit.source}{off}"
    change = abs(verdict.measured - limit.reference) / limit.reference if limit.reference else 1.0
    return (
        f"{label} {measured} is {100 * change:.1f} % {side} the baseline "
        f"{show(limit.reference, metric.unit)} (allowed: {asked}{_noise(limit)})"
    )


def _noise(limit: Limit) -> str:
    """Say how far the baseline's own sessions lie apart, where that is known."""
    if limit.spread is None:
        return ""
    return f"; noise ±{100 * limit.spread.deviation:.1f} %, {limit.spread.count} sessions"


def _with_interval(metric: Metric, reading: Reading | None, measured: str) -> str:
    """Say that a speed-up is judged by the end of its interval that is certain."""
    if metric.judged_field is None or reading is None or reading.speedup is None:
        return measured
    high = show(reading.speedup_high, metric.unit)
    return f"{show(reading.speedup, metric.unit)} (proven: {measured}, 95 % interval to {high})"


def metric_label(metric: Metric, reading: Reading | None) -> str:
    """Return a metric's name, with the device where the name alone would promise too much."""
    label = metric.label
    if metric.name == "utilization" and reading is not None:
        label = (
            f"{reading.device.split(':')[0].upper().replace('CUDA', 'GPU').replace('MODEL', 'GPU')} {label}"
        )
    return f"modelled {label}" if reading is not None and reading.modelled else label


def _off(measured: float, bound: float) -> str:
    return f" (off by {100 * abs(measured - bound) / bound:.0f} %)" if bound else ""


def _context(verdict: Verdict, reading: Reading | None, result: Result) -> Iterable[str]:
    """Yield the lines behind a figure."""
    limit = verdict.limit
    if limit is None or reading is None or verdict.outcome is not Outcome.MISSED:
        return
    if verdict.reason:
        yield f"measured again: {verdict.reason}"
    if limit.metric.is_relative:
        yield "in turns with a reference workload, so that a slower machine does not look like slower code"
    if limit.metric.is_timing or limit.metric.name in ("utilization", "step_time", "data_wait"):
        yield from (note for note in reading.notes if not _explains_absence(note))
    yield from where(limit.metric, reading, _places_before(limit, reading, result))


def _places_before(
    limit: Limit, reading: Reading, result: Result
) -> Mapping[str, Mapping[str, float]] | None:
    # A marker's limit says nothing about what was there before.
    return result.expectation.places.get(reading.name, {}) if limit.reference is not None else None


def _explains_absence(note: str) -> bool:
    return any(note.startswith(f"{metric.field}: ") for metric in METRICS.values())


def properties(result: Result) -> Iterable[tuple[str, object]]:
    """Yield what junitxml keeps of a test."""
    many = len(result.readings) > 1
    for reading in result.readings:
        prefix = f"perf.{reading.name}." if many else "perf."
        for metric in METRICS.values():
            if (value := reading.value(metric)) is not None:
                yield f"{prefix}{metric.name}", value
        yield from ((f"{prefix}share.{name}", share) for name, share in reading.shares.items())
        if (likely := diagnose(reading).likely) is not None:
            yield f"{prefix}cause", likely.name
        yield f"{prefix}device", reading.device
        if reading.modelled:
            yield f"{prefix}modelled", True
