"""The header line, the table and the closing hints, as lines of text with a colour."""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from perfsuite.metrics import METRICS, Metric, primary_metric
from perfsuite.noise import MIN_SESSIONS
from perfsuite.records import Match, Outcome, Reading, Result
from perfsuite.report.explanation import explanations
from perfsuite.report.ranks import rank_lines
from perfsuite.units import show

Line = tuple[str, str]  # text, colour ("" for none)

_MIN_NAME_WIDTH = 24
_HOW = "figures are"


@dataclass(frozen=True)
class Column:
    """One column: its title and the metric it shows."""

    title: str
    metric: Metric | None = None

    def cell(self, reading: Reading) -> str:
        """Return the figure of a reading, or whether it was measured or modelled."""
        if self.title == _HOW:
            return reading.how
        return reading.shown(self.metric) if self.metric else ""


def table(results: Sequence[Result], width: int, *, stored: Collection[str] = ()) -> list[Line]:
    """Return the table of all readings, fitted to the terminal; `stored` are tests with a new baseline."""
    rows = [(result, reading) for result in results for reading in result.readings]
    if not rows:
        return []
    columns = _columns([reading for _, reading in rows])
    has_noise = any(_can_see(result, reading) for result, reading in rows)
    can_see = ["can see"] if has_noise else []
    titles = ["test", *(column.title for column in columns), "speed vs baseline", *can_see, "verdict"]
    heads = [_stacked(title) for title in titles]
    cells = [
        [
            _test_name(result, reading),
            *(column.cell(reading) for column in columns),
            against_baseline(result, reading),
            *([_can_see(result, reading) or "–"] if has_noise else []),
            verdict_word(result, reading, saved=result.test in stored),
        ]
        for result, reading in rows
    ]
    upper, lower = ([head[i] for head in heads] for i in (0, 1))
    widths = [max(len(line[i]) for line in [upper, lower, *cells]) for i in range(len(titles))]
    room = width - sum(widths[1:]) - 2 * (len(widths) - 1)
    if room < min(widths[0], _MIN_NAME_WIDTH):
        return _narrow_table((upper, lower), cells, widths, width)
    widths[0] = min(widths[0], room)
    return [
        *((_row(head, widths), "bold") for head in (upper, lower)),
        *((_row(line, widths), _COLOURS.get(line[-1], "")) for line in cells),
    ]


def _narrow_table(
    heads: tuple[list[str], list[str]], cells: list[list[str]], widths: list[int], width: int
) -> list[Line]:
    """Return the table with each name on a separate line, for terminals too narrow for name and figures."""
    widths = [2, *widths[1:]]
    lines = [(_row(["", *head[1:]], widths), "bold") for head in heads]
    for line in cells:
        colour = _COLOURS.get(line[-1], "")
        lines += [(_shortened(line[0], width), colour), (_row(["", *line[1:]], widths), colour)]
    return lines


def _stacked(title: str) -> tuple[str, str]:
    first, _, second = title.rpartition(" ")
    return first, second


_COLOURS = {
    "failed": "red",
    "improved": "green",
    "ok": "",
    "near": "yellow",
    "invalid": "yellow",
    "inconclusive": "yellow",
}


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
    # The end identifies a test (name, parameters), the beginning only its file.
    return text if len(text) <= width else "…" + text[len(text) - width + 1 :]


def against_baseline(result: Result, reading: Reading) -> str:
    """Return the change of speed against the baseline: − is slower, whatever the metric.

    «none» without a baseline, «–» where its times are not compared.
    """
    stored = result.expectation.baseline.of(reading.name).values
    limits = result.expectation.by_reading.get(reading.name, ())
    # Show the figure that is judged: rounds of a reference where they are steadier than seconds.
    metric = next(
        (limit.metric for limit in limits if limit.metric.is_relative), primary_metric(reading.kind)
    )
    before, now = stored.get(metric.name), reading.value(metric)
    if not before or not now:
        return "–" if reading.name in result.expectation.baseline.readings else "none"
    faster = now / before if metric.higher_is_better else before / now
    change = f"{round(100 * (faster - 1), 1) + 0.0:+.1f} %"  # + 0.0: there is no −0.0 %
    how = [*(["in ops"] if metric.is_relative else []), *(["near"] if _is_near(result) else [])]
    return f"{change} ({', '.join(how)})" if how else change


def _is_near(result: Result) -> bool:
    return result.expectation.baseline.match is Match.NEAR


def _can_see(result: Result, reading: Reading) -> str:
    """Return the smallest slowdown that can be detected despite the baseline's noise."""
    limits = result.expectation.by_reading.get(reading.name, ())
    visible = [m.visible for m in limits if m.visible is not None and reading.kind in m.metric.gated_kinds]
    return f"{100 * max(visible):.0f} %" if visible else ""


def verdict_word(result: Result, reading: Reading, *, saved: bool = False) -> str:
    """Return the verdict of a reading in one word, for the table."""
    outcomes = {v.outcome for v in result.verdicts if v.reading in (reading.name, "")}
    words = {
        "xfailed": bool(result.excused),
        "failed": bool(result.error) or any(outcome.is_failure for outcome in outcomes),
        "invalid": Outcome.INVALID in outcomes,
        "inconclusive": Outcome.INCONCLUSIVE in outcomes,
        "saved": saved,
        "improved": Outcome.IMPROVED in outcomes,
        "ok": bool(outcomes),
    }
    return next((word for word, is_so in words.items() if is_so), "no limit")


def header(device: str, clock: str, baselines: str, key: str) -> str:
    """Return the header line: device, clock, baselines and machine key."""
    return f"perfsuite: {device}, clock: {clock}, baselines: {baselines}, key: {key}"


def closing(results: Sequence[Result], save_command: str, *, is_saved: bool = False) -> list[Line]:
    """Return the lines below the table: baselines missing, near or improved, invalid readings, notes."""
    lines: list[Line] = []
    missing = [r for r in results if r.readings and r.expectation.baseline.match is Match.NONE]
    near = [r for r in results if r.expectation.baseline.match is Match.NEAR]
    better = [r for r in results if any(v.outcome is Outcome.IMPROVED for v in r.verdicts)]
    if missing and not is_saved:
        lines.append((f"{_tests(missing)} no baseline for this machine; store one with: {save_command}", ""))
    reasons = sorted({r.expectation.baseline.reason for r in near})
    lines.extend((f"near baseline, shown but not gated: {reason}", "yellow") for reason in reasons)
    if better and not is_saved:
        improvements = ", ".join(_improvement(result) for result in better)
        lines.append((f"improved beyond the tolerance, baseline kept: {improvements}", "green"))
        lines.append((f"  take it as the new baseline with: {save_command}", ""))
    lines.extend(
        (f"invalid measurement: {r.short_name}: {'; '.join(r.invalid)}", "yellow")
        for r in results
        if r.invalid
    )
    lines.extend(_unconfirmed(results))
    few = [r for r in results if _has_few_sessions(r)]
    if few and not is_saved:
        text = f"{_tests(few)} a baseline of fewer than {MIN_SESSIONS} sessions, judged by a fixed tolerance"
        lines.append((f"{text}; {save_command} measures {MIN_SESSIONS}", ""))
    if any(reading.ranks for result in results for reading in result.readings):
        lines.extend((line, "") for line in rank_lines(results))
    for result in results:
        for reading in result.readings:
            lines.extend((f"note: {_test_name(result, reading)}: {note}", "") for note in reading.notes)
    return lines


def _unconfirmed(results: Sequence[Result]) -> list[Line]:
    """Return the suspicions that fresh processes did not confirm: nothing failed, but it was close."""
    return [
        (f"suspicious at first, not confirmed: {result.short_name}: {verdict.reason}", "yellow")
        for result in results
        for verdict in result.verdicts
        if verdict.outcome is Outcome.UNCONFIRMED
    ]


def _has_few_sessions(result: Result) -> bool:
    is_timed = any(not reading.modelled for reading in result.readings)
    baseline = result.expectation.baseline
    return is_timed and baseline.is_gating and baseline.sessions < MIN_SESSIONS


def explained(results: Sequence[Result]) -> list[Line]:
    """Return the explanation of every reading below its name."""
    lines: list[Line] = []
    for name, explanation in explanations(results):
        lines.append((name, "bold"))
        lines.extend((f"  {line}", "") for line in explanation or ["it is not known where its time went"])
    return lines


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
    """Return the progress line shown while a test is measured."""
    unit = "pairs" if phase == "comparing" else "steps"
    return f"{phase}: {steps:,} {unit}, {seconds:.1f} s"
