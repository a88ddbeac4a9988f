"""Judge all readings of one test at once: what does not count, every limit, and a missing baseline."""

from collections.abc import Iterable

from perfsuite.judge.plausible import collapsed
from perfsuite.judge.validity import faults, invalid_verdict
from perfsuite.judge.verdicts import judge, judge_misplaced, judge_unmeasured
from perfsuite.records import Expectation, Limit, Match, Outcome, Reading, Verdict

Kept = Iterable[tuple[Reading, tuple[Limit, ...]]]  # a reading and the limits of its own call


def judge_test(kept: Kept, expectation: Expectation, save_command: str | None) -> tuple[Verdict, ...]:
    """Return all verdicts of a test; `save_command` is None where a missing baseline is no failure."""
    kept = list(kept)
    if not kept:
        why = "the test measured nothing: call perf(step), perf.loop or perf.compare in it"
        return (Verdict("", Outcome.UNMEASURED, None, reason=why),)
    verdicts: list[Verdict] = []
    for reading, asked in kept:
        if reasons := _reasons(reading, expectation):
            verdicts.append(invalid_verdict(reading, reasons))
            continue
        stored = expectation.by_reading.get(reading.name, ())
        verdicts += judge(reading, (*expectation.limits, *asked, *stored))
        verdicts += judge_misplaced(reading, asked)
    verdicts += judge_unmeasured([reading for reading, _ in kept], expectation.limits)
    if save_command is not None and expectation.match is not Match.EXACT:
        why = "no baseline for this machine, and --perf-strict asks for one"
        near = f" (the nearest differs: {expectation.match_reason})" if expectation.match_reason else ""
        why = f"{why}{near}; store one with: {save_command}"
        verdicts.append(Verdict("", Outcome.NO_BASELINE, None, reason=why))
    return tuple(verdicts)


def _reasons(reading: Reading, expectation: Expectation) -> tuple[str, ...]:
    """Return why a reading does not count; only an exact baseline can say that it is too good to be true."""
    figures = expectation.stored.get(reading.name, {}) if expectation.match is Match.EXACT else {}
    own = faults(reading, expectation.conditions.get(reading.name, {}))
    return (*own, *collapsed(reading, figures))
