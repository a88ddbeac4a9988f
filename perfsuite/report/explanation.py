"""Where a step's time went beside the baseline's, the likely cause and what to try, as lines."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from perfsuite.diagnose.diagnosis import Diagnosis, diagnose
from perfsuite.diagnose.facts import Cause
from perfsuite.insight import SHARES
from perfsuite.records import Reading, Result
from perfsuite.units import Unit, show

_WORTH_TELLING = 0.005
_HAS_GROWN = 0.02  # of the step
MORE = "python -m perfsuite explain"
# Which causes a count speaks of, and which share of the step a cause takes.
_CAUSES_OF: Mapping[str, tuple[str, ...]] = {
    "syncs": ("sync-bound",),
    "kernels": ("launch-bound", "under-filled"),
    "blocking_copies": ("transfer-bound",),
    "h2d_bytes": ("transfer-bound",),
    "d2h_bytes": ("sync-bound", "transfer-bound"),
    "data_wait": ("data-bound", "periodic-starvation", "oversubscribed-workers", "shared-cores"),
}
_SHARE_OF: Mapping[str, str] = {
    **dict.fromkeys(
        ("data-bound", "periodic-starvation", "oversubscribed-workers", "shared-cores"), "data_wait"
    ),
    **dict.fromkeys(("launch-bound", "under-filled"), "launch_gaps"),
    "transfer-bound": "transfer",
    "sync-bound": "sync_waits",
    "communication-bound": "collectives",
    "allocator-bound": "allocator",
    "host-bound": "other",
    "compute-bound": "kernels",
}


def explain(
    reading: Reading, before: Mapping[str, Any] | None = None, missed: Collection[str] = ()
) -> Iterable[str]:
    """Yield the shares, the likely cause with its evidence, the advice, and what else was found.

    `missed` are metrics that fell behind: their cause comes first, and one that was there before says so.
    """
    found = diagnose(reading)
    was = stored_shares(before)
    if found.shares:
        how = "would go (predicted)" if reading.modelled else "went"
        yield f"where the step's time {how}: {shares_text(found.shares, was)}"
    if found.likely is None:
        return
    first = _behind(found, missed) or (_grown(found, was) if missed else None)
    is_old = bool(missed) and bool(was) and first is None
    likely = first or found.likely
    yield f"{'as before the change' if is_old else 'likely cause'}: {likely.title} ({likely.evidence})"
    yield f"{likely.advice}; more: {MORE} {likely.name}"
    yield from (f"also: {cause.title} ({cause.evidence})" for cause in found.causes if cause is not likely)


def _behind(found: Diagnosis, missed: Collection[str]) -> Cause | None:
    """Return the heaviest cause that a missed count speaks of."""
    wanted = {name for metric in missed for name in _CAUSES_OF.get(metric, ())}
    return next((cause for cause in found.causes if cause.name in wanted), None)


def _grown(found: Diagnosis, before: Mapping[str, float]) -> Cause | None:
    """Return the cause whose share of the step has grown most since the baseline, if one has."""
    growth = {
        cause.name: found.shares.get(share, 0.0) - before.get(share, 0.0)
        for cause in found.causes
        if (share := _SHARE_OF.get(cause.name)) is not None and before
    }
    most = max(growth, key=lambda name: growth[name], default=None)
    if most is None or growth[most] < _HAS_GROWN:
        return None
    return next(cause for cause in found.causes if cause.name == most)


def shares_text(shares: Mapping[str, float], before: Mapping[str, float]) -> str:
    """Return the shares in their order, each beside the baseline's."""
    told = []
    for name, label in SHARES.items():
        now, was = shares.get(name, 0.0), before.get(name)
        if now < _WORTH_TELLING and (was or 0.0) < _WORTH_TELLING:
            continue
        beside = "" if was is None else f" (baseline {show(was, Unit.FRACTION)})"
        told.append(f"{label} {show(now, Unit.FRACTION)}{beside}")
    return ", ".join(told)


def stored_shares(before: Mapping[str, Any] | None) -> Mapping[str, float]:
    """Return the shares a baseline kept, none where it is older than they are."""
    return dict((before or {}).get("shares", {}))


def explanations(results: Sequence[Result]) -> list[tuple[str, list[str]]]:
    """Return every reading's name and explanation, for --perf-explain."""
    return [
        (
            f"{result.test} ({reading.name})" if len(result.readings) > 1 else result.test,
            list(explain(reading, result.expectation.before.get(reading.name))),
        )
        for result in results
        if not result.is_failed or result.error  # what missed a limit was explained where it is told
        for reading in result.readings
    ]
