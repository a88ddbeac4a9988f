"""The closing table of a run: every optimization with its figure and verdict, or why there is none."""

from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest

from tests.perf.catalogue import CATALOGUE
from tests.perf.contract import Case

_WORDS = {"passed": "holds", "failed": "BROKEN", "skipped": "not run"}


@dataclass
class Rows:
    """What became of every contract of this run."""

    cases: dict[str, Case] = field(default_factory=dict)  # by test
    outcomes: dict[str, str] = field(default_factory=dict)
    skipped: dict[str, tuple[str, str]] = field(default_factory=dict)  # test → number, reason

    def note(self, item: pytest.Item, report: pytest.TestReport) -> None:
        """Keep a contract's outcome, or why it was skipped."""
        mark = item.get_closest_marker("contract")
        if mark is None:
            return
        if report.skipped:
            reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
            self.skipped[item.nodeid] = (mark.args[0], reason.removeprefix("Skipped: "))
        elif report.when == "call" or report.failed:
            self.outcomes[item.nodeid] = report.outcome


ROWS = pytest.StashKey[Rows]()
TOLD = pytest.StashKey[list[str]]()  # what routine checks and scenarios have to say at the end
SECTIONS = pytest.StashKey[dict[str, list[str]]]()  # of docs/claims.md, by document
DEVICE_NAMES = pytest.StashKey[list[str]]()  # what the documents were run on


def render(rows: Rows, sabotage: str | None) -> Iterator[tuple[str, str]]:
    """Yield the table's lines with a colour each, in the order of the catalogue."""
    if not rows.outcomes:
        return
    if sabotage:
        yield f"sabotaged: {sabotage}; every contract of it must be broken", "yellow"
    lines = [line for number in CATALOGUE for line in _lines(number, rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(4)]
    for number, title, where, word, figures in lines:
        cells = zip((number, title, where, word), widths, strict=True)
        text = "  ".join([*(cell.ljust(width) for cell, width in cells), figures])
        yield text.rstrip(), {"BROKEN": "red", "not run": "yellow"}.get(word, "")


def _lines(number: str, rows: Rows) -> Iterator[tuple[str, str, str, str, str]]:
    title, needs_card = CATALOGUE[number]
    for test, outcome in rows.outcomes.items():
        case = rows.cases.get(test)
        if case is None or case.number != number:
            continue
        reading = case.perf.readings[-1] if case.perf.readings else None
        is_modelled = reading is not None and reading.modelled
        how = f"{case.perf.device_name}, {'measured' if reading is None else reading.how}"
        figures = ", ".join(case.figures)
        if is_modelled and needs_card:
            figures = f"{figures}; needs a real card for {needs_card}"
        yield number, title, how, _WORDS[outcome], figures
    for skipped, reason in rows.skipped.values():
        if skipped == number:
            yield number, title, "–", _WORDS["skipped"], reason
