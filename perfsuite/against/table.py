"""Show a comparison with a git ref: as a table, as a sentence per reading, as results for other outputs."""

import math
from collections.abc import Sequence

from perfsuite.against.decide import Call, JudgedReading, Rule
from perfsuite.against.pairs import Findings
from perfsuite.metrics import Metric
from perfsuite.records import (
    Baseline,
    Expectation,
    Limit,
    Match,
    Outcome,
    Reading,
    Result,
    StoredReading,
    Verdict,
    short_name,
)
from perfsuite.report.messages import verdict_line
from perfsuite.report.terminal import Line
from perfsuite.units import Unit, show

_COLOURS = {Call.REGRESSION: "red", Call.INCONCLUSIVE: "yellow", Call.OK: ""}
_TITLES = ("test", "then", "now", "slower by", "interval", "pairs", "verdict")


def table(readings: Sequence[JudgedReading], findings: Findings, ref: str, width: int) -> list[Line]:
    """Return one row per reading, and a line for each test that was not compared."""
    rows = [(_cells(judged), _colour(judged)) for judged in readings]
    lines: list[Line] = []
    if rows:
        all_cells = [_TITLES, *(cells for cells, _ in rows)]
        widths = [max(len(cells[i]) for cells in all_cells) for i in range(len(_TITLES))]
        widths[0] = min(widths[0], max(24, width - sum(widths[1:]) - 2 * len(widths)))
        lines.append((_row(_TITLES, widths), "bold"))
        lines += [(_row(cells, widths), colour) for cells, colour in rows]
    lines += [(f"not compared: {test}: {why}", "yellow") for test, why in findings.not_compared.items()]
    lines += [(f"only in {ref}, not compared: {test}", "yellow") for test in findings.only_old]
    return lines


def sentence(judged: JudgedReading, ref: str) -> str:
    """Return one reading's conclusion as a sentence, with its name if its test takes several."""
    text = _sentence(judged, ref)
    return f"{judged.reading}: {text}" if judged.needs_name else text


def _sentence(judged: JudgedReading, ref: str) -> str:
    difference = judged.difference
    if judged.invalid:
        return f"invalid measurement: {'; '.join(judged.invalid)}"
    if difference is None:
        return f"counted on a modelled device, against {ref}: exact, one process each suffices"
    effect, low, high = (100 * math.expm1(x) for x in (difference.effect, difference.low, difference.high))
    chance = f"p {judged.adjusted_p:.2g} after all tests of the run" if judged.adjusted_p < 1 else "p 1"
    text = f"{judged.metric.label}: {effect:+.1f} % time against {ref} ({low:+.1f} to {high:+.1f} %"
    text += f", {difference.pairs} pairs of processes, {chance})"
    match judged.call:
        case Call.REGRESSION:
            return f"slower: {text}"
        case Call.INCONCLUSIVE:
            return f"inconclusive: {text}; measure longer with --against-time, or on a quieter machine"
        case Call.OK:
            return f"ok: {text}"


def failures(judged: JudgedReading, ref: str) -> list[str]:
    """Return the sentences that make a test fail."""
    lines = [sentence(judged, ref)] if judged.call is Call.REGRESSION else []
    return lines + [verdict_line(verdict, None) for verdict in judged.verdicts if verdict.outcome.is_failure]


def as_results(readings: Sequence[JudgedReading], rule: Rule) -> list[Result]:
    """Return the new version's readings as results, with the old version as their baseline."""
    by_test: dict[str, list[JudgedReading]] = {}
    for judged in readings:
        by_test.setdefault(judged.test, []).append(judged)
    return [_result(test, of_test, rule) for test, of_test in by_test.items()]


def _result(test: str, judged_readings: Sequence[JudgedReading], rule: Rule) -> Result:
    readings, stored, verdicts = [], {}, []
    for judged in judged_readings:
        old, new = (
            _with_cost(reading, judged.metric, cost)
            for reading, cost in (
                (judged.compared.old, judged.old_cost),
                (judged.compared.new, judged.new_cost),
            )
        )
        readings.append(new)
        stored[new.name] = StoredReading(old.figures, shares=old.shares, rounds=old.rounds)
        verdicts += [*judged.verdicts, *_timing_verdict(judged, old, new, rule)]
    baseline = Baseline(Match.EXACT, rule.ref, stored)
    baseline = baseline if rule.compares_times else baseline.without_times()
    return Result(test, Expectation(baseline=baseline), tuple(readings), tuple(verdicts))


def _with_cost(reading: Reading, metric: Metric, cost: float | None) -> Reading:
    """Return a reading with the figure from its turns, which measured for longer than the reading itself."""
    return reading if not cost else reading.with_figures(**{metric.name: metric.cost(cost)})


def _timing_verdict(judged: JudgedReading, old: Reading, new: Reading, rule: Rule) -> list[Verdict]:
    metric = judged.metric
    if judged.invalid:
        return [Verdict(new.name, Outcome.INVALID, None, reason="; ".join(judged.invalid))]
    if judged.difference is None or not judged.old_cost:
        return []
    if judged.call is Call.INCONCLUSIVE:
        return [Verdict(new.name, Outcome.INCONCLUSIVE, None, reason=_sentence(judged, rule.ref))]
    allowed = metric.cost(judged.old_cost * (1 + rule.least))
    limit = Limit(metric, allowed, rule.ref, reference=old.value(metric), tolerance=rule.least)
    outcome = Outcome.MISSED if judged.call is Call.REGRESSION else Outcome.PASSED
    return [Verdict(new.name, outcome, limit, new.value(metric))]


def _cells(judged: JudgedReading) -> tuple[str, ...]:
    unit = Unit.RATIO if judged.metric.name == "speedup" else Unit.SECONDS
    name = short_name(judged.test) + (f" ({judged.reading})" if judged.needs_name else "")
    difference = judged.difference
    if difference is None:
        return (name, "–", "–", "–", "–", "–", _word(judged))
    effect, low, high = (100 * math.expm1(x) for x in (difference.effect, difference.low, difference.high))
    return (
        name,
        show(judged.old_cost, unit),
        show(judged.new_cost, unit),
        f"{effect:+.1f} %",
        f"{low:+.1f} to {high:+.1f} %",
        str(difference.pairs),
        _word(judged),
    )


def _word(judged: JudgedReading) -> str:
    if judged.invalid:
        return "invalid"
    if any(verdict.outcome.is_failure for verdict in judged.verdicts):
        return "regression"
    return "ok (counted)" if judged.difference is None else judged.call.value


def _colour(judged: JudgedReading) -> str:
    is_worse = any(_is_failed(verdict) for verdict in judged.verdicts)
    return "red" if is_worse else "yellow" if judged.invalid else _COLOURS[judged.call]


def _is_failed(verdict: Verdict) -> bool:
    return verdict.outcome.is_failure


def _row(cells: Sequence[str], widths: Sequence[int]) -> str:
    first = cells[0] if len(cells[0]) <= widths[0] else "…" + cells[0][len(cells[0]) - widths[0] + 1 :]
    rest = [cell.rjust(width) for cell, width in zip(cells[1:], widths[1:], strict=True)]
    return "  ".join([first.ljust(widths[0]), *rest]).rstrip()
