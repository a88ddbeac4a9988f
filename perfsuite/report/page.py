"""The report page: one HTML file that needs no network; figures are text, charts are drawn on opening."""

import json
from collections.abc import Mapping, Sequence
from html import escape as _e
from importlib import resources
from typing import Any

from perfsuite.diagnose.diagnosis import diagnose
from perfsuite.environment import Environment
from perfsuite.metrics import METRICS
from perfsuite.records import SHARES, Match, Reading, Result
from perfsuite.report.explanation import explain
from perfsuite.report.kernels import kernel_rows
from perfsuite.report.messages import failure_text, invalid_text, undecided_text
from perfsuite.report.ranks import plain, summary
from perfsuite.report.terminal import against_baseline, verdict_word
from perfsuite.units import Unit, show

# In order of importance; the first are always shown, even on a page with failures only.
_SPEED = ("samples_per_s", "step_time")
_JUDGED = ("speedup", "scaling_efficiency", "rank_skew", "kernels", "syncs")
_FURTHER = ("utilization", "peak_memory", "data_wait")
_MAX_POINTS = 400
_MAX_KERNELS = 60
_NEEDS_CURRENT = ("commit", "dirty")  # not shown if only the baseline has them


class Overview:
    """The overview table: its columns, head and rows."""

    def __init__(self, results: Sequence[Result]) -> None:
        self._results = results
        readings = [reading for result in results for reading in result.readings]

        def filled(names: Sequence[str]) -> list[str]:
            return [n for n in names if any(r.value(METRICS[n]) is not None for r in readings)]

        self._judged, self._further = filled(_JUDGED), filled(_FURTHER)

    def head(self) -> str:
        """Return the cells of the head; each is a button that sorts."""

        def metrics(names: Sequence[str]) -> list[tuple[str, str]]:
            return [(METRICS[name].label.removesuffix(" per step"), "number") for name in names]

        labels = [("verdict", "text"), ("test", "text"), *metrics(_SPEED)]
        labels += [
            ("speed against baseline", "number"),
            *metrics(self._judged),
            ("likely cause", "text"),
            *metrics(self._further),
        ]
        return "".join(
            f"<th scope=col aria-sort=none data-kind={kind}><button type=button>{_e(label)}</button></th>"
            for label, kind in labels
        )

    def rows(self) -> str:
        """Return a row for each reading, and for each test without a reading."""
        rows = [
            self._row(number, result, reading)
            for number, result in enumerate(self._results)
            for reading in result.readings or (None,)
        ]
        return "\n".join(rows)

    def _row(self, number: int, result: Result, reading: Reading | None) -> str:
        word = verdict_word(result, reading) if reading else "failed"
        change = against_baseline(result, reading) if reading else "–"
        cause = diagnose(reading).likely if reading else None
        cells = [
            f"<td class=word>{chip(word)}{_tags(reading)}</td>",
            f'<th scope=row><a href="#test-{number}">{_e(_name(result, reading))}</a></th>',
            *(_cell(reading, name) for name in _SPEED),
            f'<td data-value="{_order(change)}">{_e(change)}</td>',
            *(_cell(reading, name) for name in self._judged),
            f"<td class=cause>{_e(cause.name if cause else '–')}</td>",
            *(_cell(reading, name) for name in self._further),
        ]
        return f'<tr data-verdict="{word}">{"".join(cells)}</tr>'


def _tags(reading: Reading | None) -> str:
    """Return the marks that qualify a reading's figures: modelled, and notes."""
    if reading is None:
        return ""
    how = f' <span class="tag">{reading.how}</span>' if reading.modelled else ""
    notes = _e("\n".join(reading.notes))
    return f'{how} <span class="tag" title="{notes}">noted</span>' if reading.notes else how


def chip(word: str, text: str = "") -> str:
    """Return the badge of a verdict."""
    return f'<span class="chip {word.replace(" ", "-")}">{text or word}</span>'


def _order(change: str) -> str:
    text = change.split(" ", maxsplit=1)[0].replace("+", "").replace("−", "-")
    return text if text.replace(".", "").lstrip("-").isdigit() else ""


def _cell(reading: Reading | None, column: str) -> str:
    metric = METRICS[column]
    value = reading.value(metric) if reading else None
    text = reading.shown(metric) if reading else show(None, metric.unit)
    return f'<td data-value="{"" if value is None else repr(value)}">{_e(text)}</td>'


def _name(result: Result, reading: Reading | None) -> str:
    several = reading is not None and len(result.readings) > 1
    return f"{result.test} ({reading.name})" if several and reading is not None else result.test


def render(
    results: Sequence[Result], environments: Mapping[str, Environment], when: str, against: str = ""
) -> str:
    """Return the whole page; `against` is the version that replaces the baseline in a comparison."""
    tests = [_test(number, result, environments) for number, result in enumerate(results)]
    table = Overview(results)
    document = {"shares": dict(SHARES), "tests": tests}
    assets = resources.files("perfsuite.report") / "page_assets"
    page = (assets / "page.html").read_text("utf-8")
    parts = {
        "STYLE": (assets / "page.css").read_text("utf-8"),
        "CHART": (assets / "chart.umd.js").read_text("utf-8"),
        "SCRIPT": (assets / "page.js").read_text("utf-8"),
        # Users choose the names: none may close the script element it is in.
        "DATA": json.dumps(document, allow_nan=False).replace("<", "\\u003c"),
        "SUMMARY": _summary(results, environments, when, against),
        "HEAD": table.head(),
        "ROWS": table.rows(),
        "DETAILS": "\n".join(_details(n, result) for n, result in enumerate(results)),
    }
    for name, text in parts.items():
        before, _, after = page.partition(f"<!--{name}-->")
        page = f"{before}{text}{after}"
    return page


def _summary(
    results: Sequence[Result], environments: Mapping[str, Environment], when: str, against: str
) -> str:
    words = [_word(result) for result in results]
    counts = " ".join(chip(word, f"{words.count(word)} {word}") for word in dict.fromkeys(words))
    where = "; ".join(
        f"{name}: {environment.device_name}, torch {environment.torch}, Python {environment.python}"
        for name, environment in environments.items()
    )
    commit = next((e.commit for e in environments.values() if e.commit), None)
    at = f" · commit {commit[:12]}" if commit else ""
    unmeasured = {reading.how for result in results for reading in result.readings if reading.modelled}
    hints = "".join(
        f'<p class="modelled">Figures marked «{word}» were counted exactly and timed by prediction; '
        "nothing was measured on a GPU for them.</p>"
        for word in sorted(unmeasured)
    )
    if against:
        hints = f"<p>Compared with {_e(against)}: its figures are shown in place of a baseline's.</p>{hints}"
    return f"<p>{counts}</p><p class=meta>{_e(where)}{_e(at)} · {_e(when)}</p>{hints}"


def _details(number: int, result: Result) -> str:
    word = _word(result)
    failed = failure_text(result) or result.error
    text = failed if result.is_failed else invalid_text(result) if result.invalid else undecided_text(result)
    text = text or _passed(result)
    parts = [f"<pre class=verdict>{_e(text)}</pre>"]
    for at, reading in enumerate(result.readings):
        before = result.expectation.baseline.of(reading.name).shares
        is_explained = result.is_failed and not result.error  # the failure message ends with it
        lines = [] if is_explained else explain(reading, before)
        explanation = "".join(f"<li>{_e(line)}</li>" for line in lines)
        notes = "".join(f"<li>note: {_e(note)}</li>" for note in reading.notes)
        title = f"<h3>{_e(reading.name)}</h3>" if len(result.readings) > 1 else ""
        parts.append(f"{title}<ul>{explanation}{notes}</ul>{_ranks(reading)}{_kernels(reading)}")
        parts.append(f"<div class=charts data-test={number} data-reading={at}></div>")
    parts.append(f"<details class=environment data-test={number}></details>")
    is_open = " open" if word in ("failed", "invalid") else ""
    return (
        f'<details id="test-{number}" data-verdict="{word}"{is_open}><summary>'
        f"{chip(word)} {_e(result.test)}</summary>"
        f"{''.join(parts)}</details>"
    )


def _ranks(reading: Reading) -> str:
    """Return every rank's figures as a table, empty if one process measured."""
    if not reading.ranks:
        return ""
    titles = list(dict.fromkeys(title for figures in reading.ranks for title in plain(figures)))
    head = "".join(f"<th scope=col>{_e(title)}</th>" for title in titles)
    rows = "".join(
        f"<tr><th scope=row>rank {rank}</th>"
        + "".join(f"<td>{_e(plain(figures).get(title, '–'))}</td>" for title in titles)
        + "</tr>"
        for rank, figures in enumerate(reading.ranks)
    )
    return f"<p>{_e(summary(reading))}</p><table class=ranks><tr><td></td>{head}</tr>{rows}</table>"


def _kernels(reading: Reading) -> str:
    """Return the kernels by name with their lines as a folded table, empty if they were not counted."""
    if not reading.launched:
        return ""
    rows = "".join(
        f"<tr><th scope=row>{_e(name)}</th><td>{count}</td><td>{_e(lines)}</td></tr>"
        for name, count, lines in kernel_rows(reading, _MAX_KERNELS)
    )
    head = "<tr><th scope=col>kernel</th><th scope=col>per step</th><th scope=col>lines</th></tr>"
    return (
        "<details class=kernels><summary>kernels by name, the most frequent first</summary>"
        f"<table class=kernels>{head}{rows}</table></details>"
    )


def _passed(result: Result) -> str:
    met = [(verdict, verdict.limit) for verdict in result.verdicts if verdict.limit is not None]
    if result.excused:
        return f"It failed, as expected: {result.excused}\n{failure_text(result)}"
    if not met:
        return "No limit is set and there is no baseline: nothing was judged."
    lines = [
        f"{limit.metric.label} {show(verdict.measured, limit.metric.unit)}, "
        f"{'at least' if limit.metric.higher_is_better else 'at most'} "
        f"{show(limit.bound, limit.metric.unit)} ({limit.source})"
        for verdict, limit in met
    ]
    return "\n".join(["Every limit was met:", *lines])


def _word(result: Result) -> str:
    words = {verdict_word(result, reading) for reading in result.readings} or {"failed"}
    order = ("failed", "invalid", "inconclusive", "xfailed", "improved", "ok", "no limit")
    return next((word for word in order if word in words), "ok")


def _test(number: int, result: Result, environments: Mapping[str, Environment]) -> dict[str, Any]:
    return {
        "id": number,
        "name": result.test,
        "readings": [_charts(result, reading) for reading in result.readings],
        "environment": _environment(result, environments),
    }


def _charts(result: Result, reading: Reading) -> dict[str, Any]:
    before = result.expectation.baseline.of(reading.name)
    without = reading.without
    return {
        "modelled": reading.modelled,
        "steps": _thinned(reading.rounds),
        "stepsBefore": _thinned(before.rounds),
        "seconds": reading.wall_seconds,
        "utilization": _thinned(reading.series),
        "memory": _thinned(reading.memory_series),
        "memoryOf": "memory of the card" if reading.is_accelerator else "memory of the process",
        "shares": dict(reading.shares),
        "sharesBefore": dict(before.shares),
        "pair": None
        if without is None
        else {
            "with": reading.step_seconds,
            "without": without.step_seconds,
            "speedup": show(reading.speedup, Unit.RATIO),
            "memory": [reading.peak_memory_bytes, without.peak_memory_bytes],
        },
    }


def _thinned(values: Sequence[float]) -> list[float]:
    """Return at most a few hundred evenly chosen values with five digits: a chart cannot show more."""
    step = max(len(values) / _MAX_POINTS, 1.0)
    chosen = (values[int(i * step)] for i in range(min(len(values), _MAX_POINTS)))
    return [float(f"{value:.5g}") for value in chosen]


def _environment(result: Result, environments: Mapping[str, Environment]) -> list[list[str]]:
    """Return rows of name, current value and the baseline's value, for all that is known."""
    device = result.readings[0].device if result.readings else ""
    here = environments[device].to_stored() if device in environments else {}
    baseline = result.expectation.baseline
    there = baseline.environment if baseline.match is not Match.NONE else {}
    return [
        [_label(name), _value_text(name, here.get(name)), _value_text(name, there.get(name)) if there else ""]
        for name in here
        if here.get(name) is not None or there.get(name) is not None
        if name not in _NEEDS_CURRENT or here.get(name) is not None
    ]


def _label(name: str) -> str:
    return name.removesuffix("_bytes").replace("_", " ")


def _value_text(name: str, value: object) -> str:
    if value is None:
        return "–"
    is_size = name.endswith("_bytes") and isinstance(value, int)
    return show(float(str(value)), Unit.BYTES) if is_size else str(value)
