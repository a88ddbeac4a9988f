"""Measure the further sessions of a new baseline in fresh processes, and refuse what is too noisy."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from perfsuite.collect.limits import SecondStage, timing_limits
from perfsuite.judge.validity import crowded
from perfsuite.noise import NOISIEST, Spread
from perfsuite.processes.fresh import Command, Session, Taken, take_session
from perfsuite.records import Limit, Result
from perfsuite.remember.documents import Sessions, sessions_of


@dataclass(frozen=True)
class Gathered:
    """What the further sessions brought: figures to store, and why some tests cannot be stored."""

    more: Sessions = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)  # test → why
    told: tuple[str, ...] = ()  # how steady each stored figure is


def gather(
    results: Sequence[Result], command: Command, count: int, second: SecondStage, say: Callable[[str], None]
) -> Gathered:
    """Measure every test that has a clock in `count` sessions, this run being the first of them."""
    timed = [result for result in results if any(not reading.modelled for reading in result.readings)]
    refused = {result.test: why for result in timed if (why := _crowd(result))}
    timed = [result for result in timed if result.test not in refused]
    if count < 2 or not timed:
        return Gathered(refused=refused)
    sessions = []
    for number in range(2, count + 1):
        say(f"session {number} of {count}, in a fresh process")
        sessions.append(take_session(command, [result.test for result in timed]))
    more: dict[str, dict[str, list[dict[str, float]]]] = {}
    told: list[str] = []
    for result in timed:
        problem = _problem(result, sessions)
        if problem:
            refused[result.test] = problem
            continue
        more[result.test] = {
            reading.name: [dict(session.readings[result.test][reading.name].values) for session in sessions]
            for reading in result.readings
        }
        for limit in _limits(result, more[result.test], second):
            if limit.visible is not None and limit.visible > max(NOISIEST, 3 * (limit.tolerance or 0.0)):
                refused[result.test] = noise_told(limit)
                continue
            told.append(f"{result.short_name}: {steadiness_told(limit)}")
    return Gathered(more, refused, tuple(told))


def _crowd(result: Result) -> str:
    reasons = [reason for reading in result.readings for reason in crowded(reading)]
    return f"this session does not count: {reasons[0]}" if reasons else ""


def _problem(result: Result, sessions: Sequence[Session]) -> str:
    """Say why a test's sessions cannot be put side by side."""
    for number, session in enumerate(sessions, start=2):
        if error := session.errors.get(result.test):
            return f"it failed in session {number}: {error}"
        taken = session.readings.get(result.test, {})
        if set(taken) != {reading.name for reading in result.readings}:
            return f"session {number} took other readings: {', '.join(sorted(taken)) or 'none'}"
        if invalid := _invalid(taken.values()):
            return f"session {number} does not count: {invalid}"
    return ""


def _invalid(taken: Iterable[Taken]) -> str:
    return "; ".join(reason for one in taken for reason in one.invalid)


def _limits(
    result: Result, more: Mapping[str, Sequence[Mapping[str, float]]], second: SecondStage
) -> list[Limit]:
    """Return the limits that the sessions make for each reading."""
    return [
        limit
        for reading in result.readings
        for limit in timing_limits(
            sessions_of(reading, more[reading.name]), result.expectation.settings, second
        )
        if reading.kind in limit.metric.gated_kinds
    ]


def steadiness_told(limit: Limit) -> str:
    """Say how steady a figure is and which slowdowns its baseline can see."""
    spread, visible = limit.spread or Spread(0.0, 0.0, 0), limit.visible or 0.0
    return (
        f"{limit.metric.label} ±{100 * math.expm1(spread.deviation):.1f} % in {spread.count} sessions; "
        f"can see slowdowns from {100 * visible:.0f} % on"
    )


def noise_told(limit: Limit) -> str:
    """Say how noisy a figure's sessions are and what they could find."""
    spread, visible = limit.spread or Spread(0.0, 0.0, 0), limit.visible or 0.0
    return (
        f"{limit.metric.label} varies by ±{100 * math.expm1(spread.deviation):.1f} % from session to session "
        f"({spread.count} sessions); only slowdowns from {100 * visible:.0f} % on would be found. "
        "Quieten the machine, measure longer (--perf-min-time), or compare with --against"
    )
