"""Format verdicts as text: measured, expected, by whom, how far off, what to do."""

from collections.abc import Iterable, Mapping

from perfsuite.diagnose.diagnosis import diagnose
from perfsuite.metrics import METRICS, Metric
from perfsuite.records import BASELINE, Limit, Outcome, Reading, Result, StoredReading, Verdict
from perfsuite.report.explanation import MORE, explain
from perfsuite.report.kernels import more_kernels, where
from perfsuite.units import Unit, show

_MAX_LINES = 5


def place_lines(metric: Metric, reading: Reading, stored: StoredReading | None) -> Iterable[str]:
    """Yield the places whose counts grew, the largest growth first; without a baseline the largest counts."""
    now = _places(metric, reading.places)
    if stored is None:
        largest = sorted(now.items(), key=lambda entry: (-entry[1], entry[0]))[:_MAX_LINES]
        yield from (
            f"{show(count, metric.unit)} at {_place_text(place, reading)}" for place, count in largest
        )
        return
    before = _places(metric, stored.places)
    grown = {place: count - before.get(place, 0.0) for place, count in now.items()}
    chosen = sorted((p for p in grown if grown[p] > 0), key=lambda place: (-grown[place], place))
    for place in chosen[:_MAX_LINES]:
        was = show(before.get(place, 0.0), metric.unit)
        yield f"{show(grown[place], metric.unit)} more (baseline {was}) at {_place_text(place, reading)}"
    if len(chosen) > _MAX_LINES:
        yield f"and at {len(chosen) - _MAX_LINES} further lines"
    if metric.name == "kernels":
        yield from more_kernels(reading, stored.launched, chosen)


def _places(metric: Metric, places: Mapping[str, Mapping[str, float]]) -> Mapping[str, float]:
    """Return a metric's places; without its own, those of the metric it is derived from."""
    return places.get(metric.name) or places.get(metric.via, {})


def _place_text(place: str, reading: Reading) -> str:
    """Return a place with its file, line number, function and source line."""
    head, _, text = place.partition(": ")
    found = where(place, reading)
    return place if found == place else f"{found} in {head.rpartition(' ')[2]}: {text}"


def failure_text(result: Result) -> str:
    """Return all failed limits of a test; pytest's short summary shows only the first line."""
    failed = [verdict for verdict in result.verdicts if verdict.outcome.is_failure]
    failed = sorted((verdict for verdict in failed if not _repeats(verdict, failed)), key=_importance)
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
            explanation = explain(reading, result.expectation.baseline.of(reading.name).shares, names)
            lines.extend(f"  {_of_several(line, reading, readings)}" for line in explanation)
    return "\n".join(lines)


def _repeats(verdict: Verdict, others: Iterable[Verdict]) -> bool:
    """Return whether a derived metric says what the one it is derived from says: launches without graphs."""
    limit = verdict.limit
    return limit is not None and any(
        other.limit is not None
        and (other.reading, other.limit.metric.name) == (verdict.reading, limit.metric.via)
        and (other.measured, other.limit.reference) == (verdict.measured, limit.reference)
        for other in others
    )


def _importance(verdict: Verdict) -> int:
    """Return the order of failures: times first, then counts, peak memory, and parts of the memory."""
    metric = verdict.limit.metric if verdict.limit is not None else None
    if metric is None or metric.is_timing:
        return 0
    if metric.unit is not Unit.BYTES:
        return 1
    return 2 if metric.name == "peak_memory" else 3


def _acceptance(failed: Iterable[Verdict]) -> Iterable[str]:
    """Yield one line on how to accept worse figures as the new baseline."""
    metrics = [v.limit.metric for v in failed if _is_behind_baseline(v) and v.limit is not None]
    if metrics:
        worse = "slower" if metrics[0].is_timing else "larger"
        noun = "figure is" if len(metrics) == 1 else "figures are"
        yield f"if the {worse} {noun} intended: delete this test's baseline and run pytest --save-baseline"


def _is_behind_baseline(verdict: Verdict) -> bool:
    limit = verdict.limit
    return verdict.outcome is Outcome.MISSED and limit is not None and limit.source == BASELINE


def _of_several(line: str, reading: Reading, readings: Mapping[str, Reading]) -> str:
    return f"{reading.name}: {line}" if len(readings) > 1 else line


def undecided_text(result: Result) -> str:
    """Return the reasons of inconclusive comparisons, empty if there are none."""
    return "\n".join(v.reason for v in result.verdicts if v.outcome is Outcome.INCONCLUSIVE)


def invalid_text(result: Result) -> str:
    """Return why the measurements of a test do not count, and where to read more."""
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
    # A single reading needs no name; with several, each line must name its reading.
    return f"{verdict.reading}: {line}" if verdict.reading and len(readings) > 1 else line


def verdict_line(verdict: Verdict, reading: Reading | None) -> str:
    """Return the line for one failed limit."""
    limit = verdict.limit
    if limit is None:
        is_invalid = verdict.outcome is Outcome.INVALID
        return f"invalid measurement: {verdict.reason}" if is_invalid else verdict.reason
    metric = limit.metric
    label = metric_label(metric, reading)
    bound = show(limit.bound, metric.unit)
    if verdict.outcome is Outcome.UNMEASURED or verdict.measured is None:
        word = "at least" if metric.higher_is_better else "at most"
        return f"{label} was not measured, but {limit.source} expects {word} {bound}: {verdict.reason}"
    direction = "below" if metric.higher_is_better else "above"
    measured = show(verdict.measured, metric.unit)
    if limit.reference is None:
        off = _off(verdict.measured, limit.bound)
        shown = _with_interval(metric, reading, measured)
        return f"{label} {shown} is {direction} the {bound} expected by {limit.source}{off}"
    change = abs(verdict.measured - limit.reference) / limit.reference if limit.reference else 1.0
    return (
        f"{label} {measured} is {100 * change:.1f} % {direction} {limit.source} "
        f"{show(limit.reference, metric.unit)} (allowed: {bound}{_noise(limit)})"
    )


def _noise(limit: Limit) -> str:
    """Return the noise of the baseline's sessions, if known."""
    if limit.spread is None:
        return ""
    return f"; noise ±{100 * limit.spread.deviation:.1f} %, {limit.spread.count} sessions"


def _with_interval(metric: Metric, reading: Reading | None, measured: str) -> str:
    """Return the figure with its interval, because the cautious end of the interval is judged."""
    if reading is None or metric.name not in reading.intervals:
        return measured
    _, high = reading.intervals[metric.name]
    shown = show(reading.value(metric), metric.unit)
    return f"{shown} (proven: {measured}, 95 % interval to {show(high, metric.unit)})"


def metric_label(metric: Metric, reading: Reading | None) -> str:
    """Return a metric's label, with the device where the label alone would be misleading."""
    label = metric.label
    if metric.name == "utilization" and reading is not None:
        label = (
            f"{reading.device.split(':')[0].upper().replace('CUDA', 'GPU').replace('MODEL', 'GPU')} {label}"
        )
    return f"{reading.how} {label}" if reading is not None and reading.modelled else label


def _off(measured: float, bound: float) -> str:
    return f" (off by {100 * abs(measured - bound) / bound:.0f} %)" if bound else ""


def _context(verdict: Verdict, reading: Reading | None, result: Result) -> Iterable[str]:
    """Yield the details of a missed limit."""
    limit = verdict.limit
    if limit is None or reading is None or verdict.outcome is not Outcome.MISSED:
        return
    if verdict.reason:
        yield f"measured again: {verdict.reason}"
    if limit.metric.is_relative:
        yield "measured in turns with a reference workload, so a slow machine does not look like slow code"
    if limit.metric.is_timing or limit.metric.name in ("utilization", "step_time", "data_wait"):
        yield from (note for note in reading.notes if not _explains_absence(note))
    # A marker's limit says nothing about earlier counts.
    stored = result.expectation.baseline.of(reading.name) if limit.reference is not None else None
    yield from place_lines(limit.metric, reading, stored)


def _explains_absence(note: str) -> bool:
    return any(note.startswith(f"{metric.name}: ") for metric in METRICS.values())


def properties(result: Result) -> Iterable[tuple[str, object]]:
    """Yield the properties of a test for junitxml."""
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
            yield f"{prefix}{reading.how}", True
