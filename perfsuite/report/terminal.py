"""The header line, the table and the closing hints, as plain lines with a colour word each."""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from perfsuite.metrics import METRICS, Metric, primary_metric
from perfsuite.noise import LEAST_SESSIONS
from perfsuite.records import Match, Outcome, Reading, Result
from perfsuite.report.explanation import explanations
from perfsuite.report.ranks import rank_lines
from perfsuite.units import show

Line = tuple[str, str]  # text, colour ("" for none)

_LEAST_NAME = 24
_HOW = "figures are"


@dataclass(frozen=True)
class Column:
    """One column: its title and how a row fills it."""

    title: str
    metric: Metric | None = None

    def cell(self, reading: Reading) -> str:
        """Return a metric's figure of a reading, or how it was come by."""
        if self.title == _HOW:
            return "modelled" if reading.modelled else "measured"
        return show(reading.value(self.metric), self.metric.unit) if self.metric else ""


def table(results: Sequence[Result], width: int, *, stored: Collection[str] = ()) -> list[Line]:
    """Return the table of all readings, made to fit the terminal; `stored` are tests with a new baseline."""
    rows = [(result, reading) for result in results for reading in result.readings]
    if not rows:
        return []
    columns = _columns([reading for _, reading in rows])
    is_known = any(_can_see(result, reading) for result, reading in rows)
    seen = ["can see"] if is_known else []
    titles = ["test", *(column.title for column in columns), "speed vs baseline", *seen, "verdict"]
    heads = [_stacked(title) for title in titles]
    cells = [
        [
            _test_name(result, reading),
            *(column.cell(reading) for column in columns),
            against_baseline(result, reading),
            *([_can_see(result, reading) or "–"] if is_known else []),
            verdict_word(result, reading, saved=result.test in stored),
        ]
        for result, reading in rows
    ]
    upper, lower = ([head[i] for head in heads] for i in (0, 1))
    widths = [max(len(line[i]) for line in [upper, lower, *cells]) for i in range(len(titles))]
    room = width - sum(widths[1:]) - 2 * (len(widths) - 1)
    if room < min(widths[0], _LEAST_NAME):
        return _narrow_table((upper, lower), cells, widths, width)
    widths[0] = min(widths[0], room)
    return [
        *((_row(head, widths), "bold") for head in (upper, lower)),
        *((_row(line, widths), _COLOURS.get(line[-1], "")) for line in cells),
    ]


def _narrow_table(
    heads: tuple[list[str], list[str]], cells: list[list[str]], widths: list[int], width: int
) -> list[Line]:
    """Give the name a line of its own where it would not fit beside its figures."""
    widths = [2, *widths[1:]]
    lines = [(_row(["", *head[1:]], widths), "bold") for head in heads]
    for line in cells:
        colour = _COLOURS.get(line[-1], "")
        lines += [(_shortened(line[0], width), colour), (_row(["", *line[1:]], widths), colour)]
    return lines


def _stacked(title: str) -> tuple[str, str]:
    first, _, second = title.rpartition(" ")
    return first, second


_COLOURS = {"failed": "red", "improved": "green", "ok": "", "near": "yellow", "invalid": "yellow"}


def _columns(readings: Iterable[Reading]) -> list[Column]:
    shown = ["samples_per_s", "utilization", "peak_memory", "step_time"]
    readings = list(readings)
    kinds = {reading.kind for reading in readings}
    shown += [name for name in ("data_wait", "speedup", "scaling_efficiency") if METRICS[name].kinds & kinds]
    shown += ["rank_skew"] if any(reading.rank_skew is not None for reading in readings) else []
    counted = [
        name for name in ("kernels", "syncs") if any(r.value(METRICS[name]) is not None for r in readings)
    ]
    columns = [Column(METRICS[name].label, METRICS[name]) for name in shown]
    columns += [Column(METRICS[name].label.removesuffix(" per step"), METRICS[name]) for name in counted]
    return [*columns, Column(_HOW)] if any(reading.modelled for reading in readings) else columns


def _test_name(result: Result, reading: Reading) -> str:
    name = result.short_name
    return f"{name} ({reading.name})" if len(result.readings) > 1 else name


def _row(cells: Sequence[str], widths: Sequence[int]) -> str:
    first = _shortened(cells[0], widths[0]).ljust(widths[0])
    rest = [cell.rjust(width) for cell, width in zip(cells[1:], widths[1:], strict=True)]
    return "  ".join([first, *rest]).rstrip()


def _shortened(text: str, width: int) -> str:
    # The end tells tests apart (name, parameters), the beginning only the file.
    return text if len(text) <= width else "…" + text[len(text) - width + 1 :]


def against_baseline(result: Result, reading: Reading) -> str:
    """Return how far the speed moved from the baseline's: − is slower, whatever the metric."""
    stored = result.expectation.stored.get(reading.name, {})
    limits = result.expectation.by_reading.get(reading.name, ())
    # What a step is judged by is what is shown: in rounds of a reference where that is steadier.
    metric = next((one.metric for one in limits if one.metric.is_relative), primary_metric(reading.kind))
    before, now = stored.get(metric.name), reading.value(metric)
    if not before or not now:
        return "none"
    faster = now / before if metric.higher_is_better else before / now
    change = f"{round(100 * (faster - 1), 1) + 0.0:+.1f} %"  # + 0.0: there is no −0.0 %
    how = [*(["in ops"] if metric.is_relative else []), *(["near"] if _is_near(result) else [])]
    return f"{change} ({', '.join(how)})" if how else change


def _is_near(result: Result) -> bool:
    return result.expectation.match is Match.NEAR


def _can_see(result: Result, reading: Reading) -> str:
    """Return the smallest slowdown that the baseline's noise allows to find."""
    limits = result.expectation.by_reading.get(reading.name, ())
    visible = [m.visible for m in limits if m.visible is not None and reading.kind in m.metric.gated_kinds]
    return f"{100 * max(visible):.0f} %" if visible else ""


def verdict_word(result: Result, reading: Reading, *, saved: bool = False) -> str:
    """Return the one word for a reading in the table."""
    outcomes = {v.outcome for v in result.verdicts if v.reading in (reading.name, "")}
    if result.excused:
        return "xfailed"
    if result.error or any(outcome.is_failure for outcome in outcomes):
        return "failed"
    if Outcome.INVALID in outcomes:
        return "invalid"
    if saved:
        return "saved"
    if Outcome.IMPROVED in outcomes:
        return "improved"
    return "ok" if outcomes else "no limit"


def header(device: str, clock: str, baselines: str, key: str) -> str:
    """Return the line that says what is measured, with which clock, against what."""
    return f"perfsuite: {device}, clock: {clock}, baselines: {baselines}, key: {key}"


def closing(results: Sequence[Result], save_command: str, *, is_saved: bool = False) -> list[Line]:
    """Return what should be told after the table: baselines missing, near, improved, and notes."""
    lines: list[Line] = []
    missing = [r for r in results if r.readings and r.expectation.match is Match.NONE]
    near = [r for r in results if r.expectation.match is Match.NEAR]
    better = [r for r in results if any(v.outcome is Outcome.IMPROVED for v in r.verdicts)]
    if missing and not is_saved:
        lines.append((f"{_tests(missing)} no baseline for this machine; store one with: {save_command}", ""))
    reasons = sorted({r.expectation.match_reason for r in near})
    lines.extend((f"near baseline, shown but not gated: {reason}", "yellow") for reason in reasons)
    if better and not is_saved:
        told = ", ".join(_improvement(result) for result in better)
        lines.append((f"improved beyond the tolerance, baseline kept: {told}", "green"))
        lines.append((f"  take it as the new baseline with: {save_command}", ""))
    lines.extend(
        (f"invalid measurement: {r.short_name}: {'; '.join(r.invalid)}", "yellow")
        for r in results
        if r.invalid
    )
    lines.extend(_second_thoughts(results))
    few = [r for r in results if _has_few_sessions(r)]
    if few and not is_saved:
        told = (
            f"{_tests(few)} a baseline of fewer than {LEAST_SESSIONS} sessions, judged by a fixed tolerance"
        )
        lines.append((f"{told}; {save_command} measures {LEAST_SESSIONS}", ""))
    lines.extend((line, "") for line in rank_lines(results))
    for result in results:
        for reading in result.readings:
            lines.extend((f"note: {_test_name(result, reading)}: {note}", "") for note in reading.notes)
    return lines


def _second_thoughts(results: Sequence[Result]) -> list[Line]:
    """Tell suspicions that fresh processes did not confirm: nothing failed, but it was close."""
    return [
        (f"suspicious at first, not confirmed: {result.short_name}: {verdict.reason}", "yellow")
        for result in results
        for verdict in result.verdicts
        if verdict.outcome is Outcome.UNCONFIRMED
    ]


def _has_few_sessions(result: Result) -> bool:
    is_timed = any(not reading.modelled for reading in result.readings)
    expected = result.expectation
    return is_timed and expected.match is Match.EXACT and expected.sessions < LEAST_SESSIONS


def explained(results: Sequence[Result]) -> list[Line]:
    """Return every reading's explanation below its name."""
    lines: list[Line] = []
    for name, told in explanations(results):
        lines.append((name, "bold"))
        lines.extend((f"  {line}", "") for line in told or ["nothing is known of where its time went"])
    return lines


def vanished(results: Sequence[Result]) -> list[str]:
    """Return the stored readings that their tests, having run, no longer take."""
    return [
        f"{result.test} ({name})"
        for result in results
        if result.readings and not result.error
        for name in result.expectation.stored
        if name not in {reading.name for reading in result.readings}
    ]


def _tests(results: Sequence[Result]) -> str:
    return "1 test has" if len(results) == 1 else f"{len(results)} tests have"


def _improvement(result: Result) -> str:
    parts = [
        f"{v.limit.metric.label} {show(v.limit.reference, v.limit.metric.unit)} → "
        f"{show(v.measured, v.limit.metric.unit)}"
        for v in result.verdicts
        if v.outcome is Outcome.IMPROVED and v.limit is not None
    ]
    return f"{result.short_name} ({', '.join(parts)})"


def progress(phase: str, steps: int, seconds: float) -> str:
    """Return the line shown while a test is being measured."""
    unit = "pairs" if phase == "comparing" else "steps"
    return f"{phase}: {steps:,} {unit}, {seconds:.1f} s"
