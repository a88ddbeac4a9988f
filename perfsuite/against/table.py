"""What a comparison with a git ref found, as lines: a table, one sentence a test, and what was left out."""

import math
from collections.abc import Sequence

from perfsuite.against.against import Judged
from perfsuite.against.decide import Call
from perfsuite.against.pairs import Findings
from perfsuite.records import Verdict, short_name
from perfsuite.report.messages import verdict_line
from perfsuite.report.terminal import Line
from perfsuite.units import Unit, show

_COLOURS = {Call.REGRESSION: "red", Call.INCONCLUSIVE: "yellow", Call.OK: ""}
_TITLES = ("test", "then", "now", "slower by", "interval", "pairs", "verdict")


def table(judged: Sequence[Judged], findings: Findings, ref: str, width: int) -> list[Line]:
    """Return one row a reading, and a line for each test that was not compared."""
    rows = [(_cells(one), _colour(one)) for one in judged]
    lines: list[Line] = []
    if rows:
        every = [_TITLES, *(cells for cells, _ in rows)]
        widths = [max(len(cells[i]) for cells in every) for i in range(len(_TITLES))]
        widths[0] = min(widths[0], max(24, width - sum(widths[1:]) - 2 * len(widths)))
        lines.append((_row(_TITLES, widths), "bold"))
        lines += [(_row(cells, widths), colour) for cells, colour in rows]
    lines += [(f"not compared: {test}: {why}", "yellow") for test, why in findings.apart.items()]
    lines += [(f"only in {ref}, not compared: {test}", "yellow") for test in findings.only_old]
    return lines


def sentence(one: Judged, ref: str) -> str:
    """Return what is said of one reading, by its name where its test takes several."""
    said = _sentence(one, ref)
    return f"{one.reading}: {said}" if one.is_one_of_many else said


def _sentence(one: Judged, ref: str) -> str:
    if one.invalid:
        return f"invalid measurement: {'; '.join(one.invalid)}"
    if one.found is None:
        return f"counted on a modelled device, against {ref}: exact, one process each suffices"
    effect, low, high = (100 * math.expm1(x) for x in (one.found.effect, one.found.low, one.found.high))
    chance = f"p {one.adjusted_p:.2g} after all tests of the run" if one.adjusted_p < 1 else "p 1"
    told = f"{one.metric.label}: {effect:+.1f} % time against {ref} ({low:+.1f} to {high:+.1f} %"
    told += f", {one.found.pairs} pairs of processes, {chance})"
    match one.call:
        case Call.REGRESSION:
            return f"slower: {told}"
        case Call.INCONCLUSIVE:
            return f"inconclusive: {told}; measure longer with --against-time, or on a quieter machine"
        case Call.OK:
            return f"ok: {told}"


def failures(one: Judged, ref: str) -> list[str]:
    """Return the sentences that fail a test."""
    lines = [sentence(one, ref)] if one.call is Call.REGRESSION else []
    return lines + [
        verdict_line(verdict, None).replace("the baseline", ref)
        for verdict in one.verdicts
        if verdict.outcome.is_failure
    ]


def _cells(one: Judged) -> tuple[str, ...]:
    unit = Unit.RATIO if one.metric.name == "speedup" else Unit.SECONDS
    name = short_name(one.test) + (f" ({one.reading})" if one.is_one_of_many else "")
    if one.found is None:
        return (name, "–", "–", "–", "–", "–", _word(one))
    found = one.found
    effect, low, high = (100 * math.expm1(x) for x in (found.effect, found.low, found.high))
    return (
        name,
        show(one.old_cost, unit),
        show(one.new_cost, unit),
        f"{effect:+.1f} %",
        f"{low:+.1f} to {high:+.1f} %",
        str(found.pairs),
        _word(one),
    )


def _word(one: Judged) -> str:
    if one.invalid:
        return "invalid"
    if any(verdict.outcome.is_failure for verdict in one.verdicts):
        return "regression"
    return "ok (counted)" if one.found is None else one.call.value


def _colour(one: Judged) -> str:
    is_worse = any(_is_failed(verdict) for verdict in one.verdicts)
    return "red" if is_worse else "yellow" if one.invalid else _COLOURS[one.call]


def _is_failed(verdict: Verdict) -> bool:
    return verdict.outcome.is_failure


def _row(cells: Sequence[str], widths: Sequence[int]) -> str:
    first = cells[0] if len(cells[0]) <= widths[0] else "…" + cells[0][len(cells[0]) - widths[0] + 1 :]
    rest = [cell.rjust(width) for cell, width in zip(cells[1:], widths[1:], strict=True)]
    return "  ".join([first.ljust(widths[0]), *rest]).rstrip()
