"""The report page: one HTML file that needs no network; figures as text, charts drawn when it opens."""

import html
import json
from collections.abc import Mapping, Sequence
from importlib import resources
from typing import Any

from perfsuite.diagnose import diagnose
from perfsuite.environment import Environment
from perfsuite.insight import SHARES
from perfsuite.metrics import METRICS
from perfsuite.records import Match, Reading, Result
from perfsuite.report.explanation import explain, stored_shares
from perfsuite.report.messages import failure_text, invalid_text
from perfsuite.report.ranks import plain, summary
from perfsuite.report.terminal import against_baseline, verdict_word
from perfsuite.units import Unit, show

_COLUMNS = ("samples_per_s", "step_time", "utilization", "peak_memory", "data_wait", "speedup")
_MOST_POINTS = 400
_TOLD_ONLY = ("commit", "dirty")


def render(results: Sequence[Result], environments: Mapping[str, Environment], when: str) -> str:
    """Return the whole page."""
    tests = [_test(number, result, environments) for number, result in enumerate(results)]
    document = {"shares": dict(SHARES), "tests": tests}
    assets = resources.files("perfsuite.report") / "page_assets"
    page = (assets / "page.html").read_text("utf-8")
    parts = {
        "STYLE": (assets / "page.css").read_text("utf-8"),
        "CHART": (assets / "chart.umd.js").read_text("utf-8"),
        "SCRIPT": (assets / "page.js").read_text("utf-8"),
        # A name is somebody's: no text of it may end the script it stands in.
        "DATA": json.dumps(document, allow_nan=False).replace("<", "\\u003c"),
        "SUMMARY": _summary(results, environments, when),
        "HEAD": _head(),
        "ROWS": "\n".join(_rows(results)),
        "DETAILS": "\n".join(_details(n, result) for n, result in enumerate(results)),
    }
    for name, text in parts.items():
        before, _, after = page.partition(f"<!--{name}-->")
        page = f"{before}{text}{after}"
    return page


def _summary(results: Sequence[Result], environments: Mapping[str, Environment], when: str) -> str:
    words = [_word(result) for result in results]
    counts = " ".join(_chip(word, f"{words.count(word)} {word}") for word in dict.fromkeys(words))
    where = "; ".join(
        f"{name}: {environment.device_name}, torch {environment.torch}, Python {environment.python}"
        for name, environment in environments.items()
    )
    commit = next((e.commit for e in environments.values() if e.commit), None)
    at = f" · commit {commit[:12]}" if commit else ""
    modelled = any(reading.modelled for result in results for reading in result.readings)
    told = (
        '<p class="modelled">Figures marked «modelled» were counted exactly and timed by prediction; '
        "nothing was measured on a GPU for them.</p>"
        if modelled
        else ""
    )
    return f"<p>{counts}</p><p class=meta>{_e(where)}{_e(at)} · {_e(when)}</p>{told}"


def _head() -> str:
    metrics = {name: (METRICS[name].label, "number") for name in _COLUMNS}
    labels = [("verdict", "text"), ("test", "text"), *(metrics[name] for name in _COLUMNS[:2])]
    labels += [("against baseline", "number"), ("likely cause", "text")]
    labels += [metrics[name] for name in _COLUMNS[2:]]
    return "".join(
        f"<th scope=col aria-sort=none data-kind={kind}><button type=button>{_e(label)}</button></th>"
        for label, kind in labels
    )


def _rows(results: Sequence[Result]) -> list[str]:
    rows = []
    for number, result in enumerate(results):
        for reading in result.readings or (None,):
            word = verdict_word(result, reading, saved=False) if reading else "failed"
            how = ' <span class="tag">modelled</span>' if reading and reading.modelled else ""
            figures = [_cell(reading, column) for column in _COLUMNS]
            change = against_baseline(result, reading) if reading else "–"
            cause = diagnose(reading).likely if reading else None
            cells = [
                f"<td class=word>{_chip(word)}{how}</td>",
                f'<th scope=row><a href="#test-{number}">{_e(_name(result, reading))}</a></th>',
                *figures[:2],
                f'<td data-value="{_order(change)}">{_e(change)}</td>',
                f"<td class=cause>{_e(cause.name if cause else '–')}</td>",
                *figures[2:],
            ]
            rows.append(f'<tr data-verdict="{word}">{"".join(cells)}</tr>')
    return rows


def _chip(word: str, text: str = "") -> str:
    return f'<span class="chip {word.replace(" ", "-")}">{text or word}</span>'


def _order(change: str) -> str:
    text = change.split(" ", maxsplit=1)[0].replace("+", "").replace("−", "-")
    return text if text.replace(".", "").lstrip("-").isdigit() else ""


def _cell(reading: Reading | None, column: str) -> str:
    metric = METRICS[column]
    value = reading.value(metric) if reading else None
    return f'<td data-value="{"" if value is None else repr(value)}">{_e(show(value, metric.unit))}</td>'


def _details(number: int, result: Result) -> str:
    word = _word(result)
    failed = failure_text(result) or result.error
    text = failed if result.is_failed else invalid_text(result) if result.invalid else _passed(result)
    parts = [f"<pre class=verdict>{_e(text)}</pre>"]
    for at, reading in enumerate(result.readings):
        before = result.expectation.before.get(reading.name)
        is_told = result.is_failed and not result.error  # then the verdict ends with it
        lines = [] if is_told else explain(reading, before)
        told = "".join(f"<li>{_e(line)}</li>" for line in lines)
        notes = "".join(f"<li>note: {_e(note)}</li>" for note in reading.notes)
        title = f"<h3>{_e(reading.name)}</h3>" if len(result.readings) > 1 else ""
        parts.append(f"{title}<ul>{told}{notes}</ul>{_ranks(reading)}")
        parts.append(f"<div class=charts data-test={number} data-reading={at}></div>")
    parts.append(f"<details class=environment data-test={number}></details>")
    is_open = " open" if word in ("failed", "invalid") else ""
    return (
        f'<details id="test-{number}" data-verdict="{word}"{is_open}><summary>'
        f"{_chip(word)} {_e(result.test)}</summary>"
        f"{''.join(parts)}</details>"
    )


def _ranks(reading: Reading) -> str:
    """Return every rank's figures as a table, nothing where one process measured."""
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


def _passed(result: Result) -> str:
    kept = [verdict.limit for verdict in result.verdicts if verdict.limit is not None]
    if not kept:
        return "No limit was asked for and no baseline is there: nothing was judged."
    told = [
        f"{limit.metric.label} within {show(limit.bound, limit.metric.unit)} ({limit.source})"
        for limit in kept
    ]
    return "\n".join(["Every limit was kept:", *told])


def _word(result: Result) -> str:
    words = {verdict_word(result, reading, saved=False) for reading in result.readings} or {"failed"}
    order = ("failed", "invalid", "improved", "ok", "no limit")
    return next((word for word in order if word in words), "ok")


def _name(result: Result, reading: Reading | None) -> str:
    several = reading is not None and len(result.readings) > 1
    return f"{result.test} ({reading.name})" if several and reading is not None else result.test


def _test(number: int, result: Result, environments: Mapping[str, Environment]) -> dict[str, Any]:
    return {
        "id": number,
        "name": result.test,
        "readings": [_drawn(result, reading) for reading in result.readings],
        "environment": _environment(result, environments),
    }


def _drawn(result: Result, reading: Reading) -> dict[str, Any]:
    before = result.expectation.before.get(reading.name) or {}
    without = reading.without
    return {
        "modelled": reading.modelled,
        "steps": _thinned(reading.rounds),
        "stepsBefore": _thinned(before.get("rounds", ())),
        "seconds": reading.wall_seconds,
        "utilization": _thinned(reading.series),
        "memory": _thinned(reading.memory_series),
        "shares": dict(reading.shares),
        "sharesBefore": dict(stored_shares(before)),
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
    """Return at most a few hundred values, evenly chosen, to five digits: what a chart can show."""
    step = max(len(values) / _MOST_POINTS, 1.0)
    chosen = (values[int(i * step)] for i in range(min(len(values), _MOST_POINTS)))
    return [float(f"{value:.5g}") for value in chosen]


def _environment(result: Result, environments: Mapping[str, Environment]) -> list[list[str]]:
    """Return name, value now and value of the baseline, for what is known."""
    device = result.readings[0].device if result.readings else ""
    here = environments[device].to_stored() if device in environments else {}
    there = result.expectation.environment if result.expectation.match is not Match.NONE else {}
    return [
        [name.replace("_", " "), _told(here.get(name)), _told(there.get(name)) if there else ""]
        for name in here
        if here.get(name) is not None or there.get(name) is not None
        if name not in _TOLD_ONLY or here.get(name) is not None
    ]


def _told(value: object) -> str:
    return "–" if value is None else str(value)


def _e(text: str) -> str:
    return html.escape(text)
