"""Hold readings against limits; pure, and knows nothing but limits."""

import math
from collections.abc import Iterable, Mapping

from perfsuite.metrics import Kind
from perfsuite.records import Limit, Outcome, Reading, Verdict

_CALLS: Mapping[Kind, str] = {
    "step": "perf(step)",
    "loop": "perf.loop",
    "comparison": "perf.compare",
    "scaling": "perf.scaling",
    "benchmark": "benchmark",
}


def judge(reading: Reading, limits: Iterable[Limit]) -> tuple[Verdict, ...]:
    """Return one verdict per limit that applies to this kind of reading."""
    return tuple(_verdict(reading, limit) for limit in limits if _applies(limit, reading))


def _applies(limit: Limit, reading: Reading) -> bool:
    is_from_baseline = limit.reference is not None
    return reading.kind in (limit.metric.gated_kinds if is_from_baseline else limit.metric.kinds)


def is_suspicion(verdict: Verdict) -> bool:
    """Tell whether a miss is a measured time behind a baseline: noise can do that, a fresh look can tell."""
    limit = verdict.limit
    is_timing = limit is not None and limit.reference is not None and limit.metric.is_timing
    return verdict.outcome is Outcome.MISSED and is_timing and not verdict.is_exact


def judge_unmeasured(readings: Iterable[Reading], limits: Iterable[Limit]) -> tuple[Verdict, ...]:
    """Return a failure for every limit on something none of a test's readings can carry.

    A limit that nothing was held against must not look like one that was kept.
    """
    kinds = {reading.kind for reading in readings}
    return tuple(
        Verdict("", Outcome.UNMEASURED, limit, reason=f"the test did not call {_able(limit)}")
        for limit in limits
        if not kinds & limit.metric.kinds
    )


def judge_misplaced(reading: Reading, asked: Iterable[Limit]) -> tuple[Verdict, ...]:
    """Return a failure for every limit of a call on something this kind of call cannot carry."""
    return tuple(
        Verdict(reading.name, Outcome.UNMEASURED, limit, reason=f"only {_able(limit)} measures it")
        for limit in asked
        if reading.kind not in limit.metric.kinds
    )


def _verdict(reading: Reading, limit: Limit) -> Verdict:
    metric = limit.metric
    # A claim must be proven, so its cautious end counts; a loss against the baseline must be seen.
    measured = reading.judged(metric) if limit.reference is None else reading.value(metric)
    if measured is None:
        return Verdict(
            reading.name,
            Outcome.UNMEASURED,
            limit,
            reason=_why_absent(reading, metric.via or metric.field),
        )
    if not math.isfinite(measured) or measured < 0:
        return Verdict(reading.name, Outcome.UNMEASURED, limit, reason=f"{measured} is not a {metric.label}")
    if metric.is_better(limit.bound, measured):
        return Verdict(reading.name, Outcome.MISSED, limit, measured, is_exact=reading.modelled)
    return Verdict(reading.name, _passed_how(limit, measured), limit, measured)


def _passed_how(limit: Limit, measured: float) -> Outcome:
    if limit.reference is None:
        return Outcome.PASSED
    # The same distance on the good side as the tolerance allows on the bad one.
    mirrored = 2 * limit.reference - limit.bound
    return Outcome.IMPROVED if limit.metric.is_better(measured, mirrored) else Outcome.PASSED


def _why_absent(reading: Reading, field: str) -> str:
    for note in reading.notes:
        if note.startswith(f"{field}: "):
            return note.removeprefix(f"{field}: ")
    return f"{reading.device} does not measure it"


def _able(limit: Limit) -> str:
    """Name the calls that measure what a limit is about."""
    return " or ".join(call for kind, call in _CALLS.items() if kind in limit.metric.kinds)
