"""What GitHub shows of a run: the job's summary in Markdown and an annotation for each failed test."""

from collections.abc import Mapping, Sequence

from perfsuite.metrics import primary_metric
from perfsuite.records import Match, Outcome, Reading, Result
from perfsuite.report.explanation import explain
from perfsuite.report.messages import failure_text, invalid_text
from perfsuite.report.terminal import against_baseline
from perfsuite.units import show

_MOST_LINES = 15  # of an annotation
_MOST_ROWS = 200  # GitHub cuts a summary at 1 MiB
_SIGNS = {"failed": "❌", "invalid": "⚠️", "improved": "🟢", "xfailed": "⚪", "ok": "✅", "no limit": "⚪"}


def summary(results: Sequence[Result]) -> str:
    """Return the summary: what failed with its cause first, then the table of all readings."""
    measured = [result for result in results if result.readings or result.is_failed]
    failed = [result for result in measured if result.is_failed]
    lines = ["## Performance", "", _headline(measured, failed), ""]
    for result in failed:
        text = result.error or failure_text(result)
        lines += [f"### ❌ {_code(result.test)}", "", *_block(text), ""]
    for result in (r for r in measured if r.invalid and not r.is_failed):
        lines += [f"### ⚠️ {_code(result.test)}", "", *_block(invalid_text(result)), ""]
    rows = [(result, reading) for result in measured for reading in result.readings]
    if rows:
        lines += ["| | test | figure | speed against baseline | likely cause |", "|---|---|---:|---:|---|"]
        lines += [_row(result, reading) for result, reading in rows[:_MOST_ROWS]]
    if len(rows) > _MOST_ROWS:
        lines += ["", f"… and {len(rows) - _MOST_ROWS} further readings: see the artifacts"]
    if any(reading.modelled for _, reading in rows):
        lines += ["", "_modelled_: counted exactly, times predicted; nothing was measured on a GPU."]
    return "\n".join(lines) + "\n"


def _headline(results: Sequence[Result], failed: Sequence[Result]) -> str:
    bare = sum(r.expectation.match is Match.NONE for r in results if r.readings)
    without = f", {bare} without a baseline for this machine" if bare else ""
    noun = "test" if len(results) == 1 else "tests"
    return f"{len(results)} {noun}, {len(failed)} failed{without}."


def _row(result: Result, reading: Reading) -> str:
    metric = primary_metric(reading.kind)
    name = f"{result.test} ({reading.name})" if len(result.readings) > 1 else result.test
    how = " _modelled_" if reading.modelled else ""
    cause = next((line for line in explain(reading) if line.startswith("likely cause: ")), "")
    title = cause.removeprefix("likely cause: ").split(" (")[0]
    figure = f"{metric.label} {show(reading.value(metric), metric.unit)}{how}"
    change = against_baseline(result, reading)
    cells = [_SIGNS[_word(result)], _code(name), _cell(figure), _cell(change), _cell(title)]
    return f"| {' | '.join(cells)} |"


def _word(result: Result) -> str:
    if result.is_failed:
        return "failed"
    if result.excused:
        return "xfailed"
    if result.invalid:
        return "invalid"
    if any(verdict.outcome is Outcome.IMPROVED for verdict in result.verdicts):
        return "improved"
    return "ok" if result.verdicts else "no limit"


def _cell(text: str) -> str:
    return text.replace("\n", " ").replace("|", "\\|").replace("<", "&lt;")


def _code(text: str) -> str:
    # A name is somebody's: it must end neither the cell nor the code it stands in.
    return f"`{_cell(text).replace('`', 'ˋ')}`"


def _block(text: str) -> list[str]:
    fence = "```"
    while fence in text:
        fence += "`"
    return [fence, *text.splitlines(), fence]


def annotations(results: Sequence[Result], lines: Mapping[str, int]) -> list[str]:
    """Return a workflow command for each failed or invalid test, at the line it begins on."""
    commands = []
    for result in results:
        if result.error or not (result.is_failed or result.invalid):
            continue  # pytest and its annotators tell a test's own error
        level, text = (
            ("error", failure_text(result)) if result.is_failed else ("warning", invalid_text(result))
        )
        file, _, name = result.test.partition("::")
        where = f"file={_property(file)},line={lines.get(result.test, 1)},title={_property(f'perf: {name}')}"
        commands.append(f"::{level} {where}::{_data(_cut(text))}")
    return commands


def _cut(text: str) -> str:
    """Keep an annotation to what stands beside a line of code; the log has all of it."""
    lines = text.splitlines()
    return (
        text if len(lines) <= _MOST_LINES else "\n".join([*lines[:_MOST_LINES], "… (the rest is in the log)"])
    )


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
