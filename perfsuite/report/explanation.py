"""Where a step's time went beside the baseline's, the likely cause and what to try, as lines."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from perfsuite.diagnose import diagnose
from perfsuite.insight import SHARES
from perfsuite.records import Reading, Result
from perfsuite.units import Unit, show

_WORTH_TELLING = 0.005
DOCS = "docs/diagnosis.md"


def explain(reading: Reading, before: Mapping[str, Any] | None = None) -> Iterable[str]:
    """Yield the shares, the likely cause with its evidence, the advice, and what else was found."""
    found = diagnose(reading)
    if found.shares:
        how = "would go (predicted)" if reading.modelled else "went"
        yield f"where the step's time {how}: {shares_text(found.shares, stored_shares(before))}"
    likely = found.likely
    if likely is None:
        return
    yield f"likely cause: {likely.title} ({likely.evidence})"
    yield f"{likely.advice}; see {DOCS}#{likely.name}"
    yield from (f"also: {cause.title} ({cause.evidence})" for cause in found.causes[1:])


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
        for reading in result.readings
    ]
