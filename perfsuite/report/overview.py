"""The overview on the report page: one row for each reading, and only the columns that somebody fills."""

from collections.abc import Sequence
from html import escape as _e

from perfsuite.diagnose.diagnosis import diagnose
from perfsuite.metrics import METRICS
from perfsuite.records import Reading, Result
from perfsuite.report.terminal import against_baseline, verdict_word
from perfsuite.units import show

# In the order in which they matter; the first are there always, for a page of failures alone.
_SPEED = ("samples_per_s", "step_time")
_JUDGED = ("speedup", "scaling_efficiency", "rank_skew", "kernels", "syncs")
_FURTHER = ("utilization", "peak_memory", "data_wait")


class Overview:
    """The overview: which columns it has, its head and its rows."""

    def __init__(self, results: Sequence[Result]) -> None:
        self._results = results
        readings = [reading for result in results for reading in result.readings]

        def filled(names: Sequence[str]) -> list[str]:
            return [n for n in names if any(r.value(METRICS[n]) is not None for r in readings)]

        self._judged, self._further = filled(_JUDGED), filled(_FURTHER)

    def head(self) -> str:
        """Return the cells of the head, each a button that sorts."""

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
        """Return a row for each reading, and for a test without one."""
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
    """Return what must be known before a figure is believed."""
    if reading is None:
        return ""
    how = ' <span class="tag">modelled</span>' if reading.modelled else ""
    told = _e("\n".join(reading.notes))
    return f'{how} <span class="tag" title="{told}">noted</span>' if reading.notes else how


def chip(word: str, text: str = "") -> str:
    """Return a verdict as the page shows it."""
    return f'<span class="chip {word.replace(" ", "-")}">{text or word}</span>'


def _order(change: str) -> str:
    text = change.split(" ", maxsplit=1)[0].replace("+", "").replace("−", "-")
    return text if text.replace(".", "").lstrip("-").isdigit() else ""


def _cell(reading: Reading | None, column: str) -> str:
    metric = METRICS[column]
    value = reading.value(metric) if reading else None
    return f'<td data-value="{"" if value is None else repr(value)}">{_e(show(value, metric.unit))}</td>'


def _name(result: Result, reading: Reading | None) -> str:
    several = reading is not None and len(result.readings) > 1
    return f"{result.test} ({reading.name})" if several and reading is not None else result.test
