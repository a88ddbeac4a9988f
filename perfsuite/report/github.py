"""Output for GitHub: the job's summary in Markdown and an annotation for each failed test."""

from collections.abc import Mapping, Sequence

from perfsuite.metrics import primary_metric
from perfsuite.records import Match, Outcome, Reading, Result
from perfsuite.report.explanation import explain
from perfsuite.report.messages import failure_text, invalid_text, undecided_text
from perfsuite.report.terminal import against_baseline

_MAX_LINES = 15  # of an annotation
_MAX_ROWS = 200  # GitHub cuts a summary at 1 MiB
_SIGNS = {
    "failed": "❌",
    "invalid": "⚠️",
    "inconclusive": "⚠️",
    "improved": "🟢",
    "xfailed": "⚪",
    "ok": "✅",
    "no limit": "⚪",
}


def summary(results: Sequence[Result], against: str = "") -> str:
    """Return the summary: failures with their causes first, then the table of all readings."""
    measured = [result for result in results if result.readings or result.is_failed]
    failed = [result for result in measured if result.is_failed]
    title = f"## Performance against {against}" if against else "## Performance"
    lines = [title, "", _headline(measured, failed), ""]
    for result in failed:
        text = result.error or failure_text(result)
        lines += [f"### ❌ {_code(result.test)}", "", *_block(text), ""]
    for result in (r for r in measured if r.invalid and not r.is_failed):
        lines += [f"### ⚠️ {_code(result.test)}", "", *_block(invalid_text(result)), ""]
    for result in measured:
        if not result.is_failed and (text := undecided_text(result)):
            lines += [f"### ⚠️ {_code(result.test)}", "", *_block(text), ""]
    rows = [(result, reading) for result in measured for reading in result.readings]
    if rows:
        lines += [
            f"| | test | figure | speed against {against or 'baseline'} | likely cause |",
            "|---|---|---:|---:|---|",
        ]
        lines += [_row(result, reading) for result, reading in rows[:_MAX_ROWS]]
    if len(rows) > _MAX_ROWS:
        lines += ["", f"… and {len(rows) - _MAX_ROWS} further readings: see the artifacts"]
    for how in sorted({reading.how for _, reading in rows if reading.modelled}):
        lines += ["", f"_{how}_: counted exactly, times predicted; nothing was measured on a GPU."]
    return "\n".join(lines) + "\n"


def _headline(results: Sequence[Result], failed: Sequence[Result]) -> str:
    without_baseline = sum(r.expectation.baseline.match is Match.NONE for r in results if r.readings)
    missing = f", {without_baseline} without a baseline for this machine" if without_baseline else ""
    noun = "test" if len(results) == 1 else "tests"
    return f"{len(results)} {noun}, {len(failed)} failed{missing}."


def _row(result: Result, reading: Reading) -> str:
    metric = primary_metric(reading.kind)
    name = f"{result.test} ({reading.name})" if len(result.readings) > 1 else result.test
    how = f" _{reading.how}_" if reading.modelled else ""
    cause = next((line for line in explain(reading) if line.startswith("likely cause: ")), "")
    title = cause.removeprefix("likely cause: ").split(" (")[0]
    figure = f"{metric.label} {reading.shown(metric)}{how}"
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
    if undecided_text(result):
        return "inconclusive"
    if any(verdict.outcome is Outcome.IMPROVED for verdict in result.verdicts):
        return "improved"
    return "ok" if result.verdicts else "no limit"


def _cell(text: str) -> str:
    return text.replace("\n", " ").replace("|", "\\|").replace("<", "&lt;")


def _code(text: str) -> str:
    # Users choose the names: one must close neither the table cell nor the code span it is in.
    return f"`{_cell(text).replace('`', 'ˋ')}`"


def _block(text: str) -> list[str]:
    fence = "```"
    while fence in text:
        fence += "`"
    return [fence, *text.splitlines(), fence]


def annotations(results: Sequence[Result], lines: Mapping[str, int]) -> list[str]:
    """Return a workflow command for each failed or invalid test, at its first line."""
    commands = []
    for result in results:
        if result.error or not (result.is_failed or result.invalid):
            continue  # pytest and its annotators report errors of the test itself
        level, text = (
            ("error", failure_text(result)) if result.is_failed else ("warning", invalid_text(result))
        )
        file, _, name = result.test.partition("::")
        where = f"file={_property(file)},line={lines.get(result.test, 1)},title={_property(f'perf: {name}')}"
        commands.append(f"::{level} {where}::{_data(_cut(text))}")
    return commands


def _cut(text: str) -> str:
    """Shorten an annotation so that it fits next to a line of code; the log has all of it."""
    lines = text.splitlines()
    return (
        text if len(lines) <= _MAX_LINES else "\n".join([*lines[:_MAX_LINES], "… (the rest is in the log)"])
    )


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
