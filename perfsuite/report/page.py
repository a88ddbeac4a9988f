"""The report page: one HTML file that needs no network; figures as text, charts drawn when it opens."""

import html
import json
from collections.abc import Mapping, Sequence
from importlib import resources
from typing import Any

from perfsuite.environment import Environment
from perfsuite.insight import SHARES
from perfsuite.records import Match, Reading, Result
from perfsuite.report.explanation import explain, stored_shares
from perfsuite.report.messages import failure_text, invalid_text
from perfsuite.report.overview import Overview, chip
from perfsuite.report.ranks import plain, summary
from perfsuite.report.terminal import verdict_word
from perfsuite.units import Unit, show

_MOST_POINTS = 400
_TOLD_ONLY = ("commit", "dirty")


def render(results: Sequence[Result], environments: Mapping[str, Environment], when: str) -> str:
    """Return the whole page."""
    tests = [_test(number, result, environments) for number, result in enumerate(results)]
    table = Overview(results)
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
        "HEAD": table.head(),
        "ROWS": table.rows(),
        "DETAILS": "\n".join(_details(n, result) for n, result in enumerate(results)),
    }
    for name, text in parts.items():
        before, _, after = page.partition(f"<!--{name}-->")
        page = f"{before}{text}{after}"
    return page


def _summary(results: Sequence[Result], environments: Mapping[str, Environment], when: str) -> str:
    words = [_word(result) for result in results]
    counts = " ".join(chip(word, f"{words.count(word)} {word}") for word in dict.fromkeys(words))
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
        f"{chip(word)} {_e(result.test)}</summary>"
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
    kept = [(verdict, verdict.limit) for verdict in result.verdicts if verdict.limit is not None]
    if result.excused:
        return f"It failed, as expected: {result.excused}\n{failure_text(result)}"
    if not kept:
        return "No limit was asked for and no baseline is there: nothing was judged."
    told = [
        f"{limit.metric.label} {show(verdict.measured, limit.metric.unit)}, "
        f"{'at least' if limit.metric.higher_is_better else 'at most'} "
        f"{show(limit.bound, limit.metric.unit)} ({limit.source})"
        for verdict, limit in kept
    ]
    return "\n".join(["Every limit was kept:", *told])


def _word(result: Result) -> str:
    words = {verdict_word(result, reading) for reading in result.readings} or {"failed"}
    order = ("failed", "invalid", "xfailed", "improved", "ok", "no limit")
    return next((word for word in order if word in words), "ok")


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
        "memoryOf": "memory of the process" if reading.device == "cpu" else "memory of the card",
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
        [_label(name), _told(name, here.get(name)), _told(name, there.get(name)) if there else ""]
        for name in here
        if here.get(name) is not None or there.get(name) is not None
        if name not in _TOLD_ONLY or here.get(name) is not None
    ]


def _label(name: str) -> str:
    return name.removesuffix("_bytes").replace("_", " ")


def _told(name: str, value: object) -> str:
    if value is None:
        return "–"
    is_size = name.endswith("_bytes") and isinstance(value, int)
    return show(float(str(value)), Unit.BYTES) if is_size else str(value)


def _e(text: str) -> str:
    return html.escape(text)
