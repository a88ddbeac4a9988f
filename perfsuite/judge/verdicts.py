"""Compare readings with their limits; pure."""

import math
from collections.abc import Iterable, Mapping

from perfsuite.judge.validity import collapsed, faults, invalid_verdict
from perfsuite.metrics import METRICS, Kind, Metric
from perfsuite.records import Baseline, Expectation, Limit, Outcome, Reading, Verdict

_CALLS: Mapping[Kind, str] = {
    "step": "perf(step)",
    "loop": "perf.loop",
    "comparison": "perf.compare",
    "scaling": "perf.scaling",
    "benchmark": "benchmark",
}
Measured = Iterable[tuple[Reading, tuple[Limit, ...]]]  # readings, each with the limits of its call


def judge(reading: Reading, limits: Iterable[Limit]) -> tuple[Verdict, ...]:
    """Return one verdict per limit that applies to this kind of reading."""
    return tuple(_verdict(reading, limit) for limit in limits if _applies(limit, reading))


def _applies(limit: Limit, reading: Reading) -> bool:
    is_from_baseline = limit.reference is not None
    return reading.kind in (limit.metric.gated_kinds if is_from_baseline else limit.metric.kinds)


def is_suspicion(verdict: Verdict) -> bool:
    """Return whether a miss is a timing behind its baseline: possibly noise, which fresh processes settle."""
    limit = verdict.limit
    is_timing = limit is not None and limit.reference is not None and limit.metric.is_timing
    return verdict.outcome is Outcome.MISSED and is_timing and not verdict.is_exact


def judge_unmeasured(readings: Iterable[Reading], limits: Iterable[Limit]) -> tuple[Verdict, ...]:
    """Return a failure for every limit whose metric none of the test's calls measures.

    A limit that was compared with nothing must not look like one that was met.
    """
    kinds = {reading.kind for reading in readings}
    return tuple(
        Verdict("", Outcome.UNMEASURED, limit, reason=f"the test did not call {_calls_for(limit)}")
        for limit in limits
        if not kinds & limit.metric.kinds
    )


def judge_misplaced(reading: Reading, call_limits: Iterable[Limit]) -> tuple[Verdict, ...]:
    """Return a failure for every limit of a call whose metric this kind of call does not measure."""
    return tuple(
        Verdict(reading.name, Outcome.UNMEASURED, limit, reason=f"only {_calls_for(limit)} measures it")
        for limit in call_limits
        if reading.kind not in limit.metric.kinds
    )


def _verdict(reading: Reading, limit: Limit) -> Verdict:
    metric = limit.metric
    # A claim must be proven, so the cautious end of its interval counts; a loss against the baseline is
    # judged by the figure itself.
    measured = reading.judged(metric) if limit.reference is None else reading.value(metric)
    if measured is None:
        return Verdict(
            reading.name,
            Outcome.UNMEASURED,
            limit,
            reason=_why_absent(reading, metric),
        )
    if not math.isfinite(measured) or measured < 0:
        return Verdict(reading.name, Outcome.UNMEASURED, limit, reason=f"{measured} is not a {metric.label}")
    if metric.is_better(limit.bound, measured):
        return Verdict(reading.name, Outcome.MISSED, limit, measured, is_exact=reading.modelled)
    return Verdict(reading.name, _passed_how(limit, measured), limit, measured)


def _passed_how(limit: Limit, measured: float) -> Outcome:
    if limit.reference is None:
        return Outcome.PASSED
    # An improvement must be as large as the loss that the tolerance allows.
    mirrored = 2 * limit.reference - limit.bound
    return Outcome.IMPROVED if limit.metric.is_better(measured, mirrored) else Outcome.PASSED


def _why_absent(reading: Reading, metric: Metric) -> str:
    name = metric.name
    while name in METRICS and METRICS[name].via:  # what it is derived from may be derived itself
        name = METRICS[name].via
    for note in reading.notes:
        if note.startswith(f"{name}: "):
            return note.removeprefix(f"{name}: ")
    return f"{reading.device} does not measure it"


def _calls_for(limit: Limit) -> str:
    """Return the names of the calls that measure a limit's metric."""
    return " or ".join(call for kind, call in _CALLS.items() if kind in limit.metric.kinds)


def judge_test(measured: Measured, expectation: Expectation, save_command: str | None) -> tuple[Verdict, ...]:
    """Return all verdicts of a test; `save_command` is None if a missing baseline is no failure."""
    measured = list(measured)
    if not measured:
        why = "the test measured nothing: call perf(step), perf.loop or perf.compare in it"
        return (Verdict("", Outcome.UNMEASURED, None, reason=why),)
    verdicts: list[Verdict] = []
    for reading, call_limits in measured:
        if reasons := _reasons(reading, expectation.baseline):
            verdicts.append(invalid_verdict(reading, reasons))
            continue
        stored = expectation.by_reading.get(reading.name, ())
        verdicts += judge(reading, (*expectation.limits, *call_limits, *stored))
        verdicts += judge_misplaced(reading, call_limits)
    verdicts += judge_unmeasured([reading for reading, _ in measured], expectation.limits)
    baseline = expectation.baseline
    if save_command is not None and not baseline.is_gating:
        why = "no baseline for this machine, and --perf-strict requires one"
        nearest = f" (the nearest differs: {baseline.reason})" if baseline.reason else ""
        why = f"{why}{nearest}; store one with: {save_command}"
        verdicts.append(Verdict("", Outcome.NO_BASELINE, None, reason=why))
    return tuple(verdicts)


def _reasons(reading: Reading, baseline: Baseline) -> tuple[str, ...]:
    """Return why a reading does not count; only a gating baseline shows that one is too good to be true."""
    figures = baseline.of(reading.name).values if baseline.is_gating else {}
    return (*faults(reading, baseline), *collapsed(reading, figures))
