"""Run a gate many times on recorded readings of identical code, to find its rate of false alarms and misses.

Pure. A slowdown is simulated by making every recorded time that much longer; the recorded noise is kept.
"""

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from perfsuite.against.decide import LEAST, MISSED, Call, decide, difference
from perfsuite.collect.limits import SecondStage, expect, is_too_noisy
from perfsuite.judge.second_stage import settle
from perfsuite.judge.verdicts import judge
from perfsuite.metrics import METRICS, Kind
from perfsuite.records import (
    Baseline,
    Match,
    Reading,
    Result,
    Session,
    SessionReading,
    Settings,
    StoredReading,
)

Figures = Mapping[str, float]  # metric → figure of one session
_TEST = "recorded"
_STEP: Kind = "step"


@dataclass(frozen=True)
class Rates:
    """The shares of trials that failed or were undecided (inconclusive or refused), and their number."""

    failed: float
    undecided: float
    trials: int


@dataclass(frozen=True)
class Gate:
    """The parameters of a gate."""

    sessions: int = 5
    confirm: int = 5
    family_error: float = 0.01
    pairs: int = 8


def stored_rates(
    sessions: Sequence[Figures],
    slowdown: float,
    trials: int,
    gate: Gate = Gate(),  # noqa: B008  frozen
    *,
    new: Sequence[Figures] | None = None,
    seed: int = 0,
) -> Rates:
    """Repeatedly make a baseline from some sessions and judge others.

    `new` are sessions of the code under test, if they were recorded under other conditions.
    """
    chance = random.Random(seed)
    judged = gate.confirm + 1
    needed = gate.sessions + (judged if new is None else 0)
    if len(sessions) < needed or (new is not None and len(new) < judged):
        raise ValueError(f"{needed} sessions are needed, there are {len(sessions)}")
    calls = []
    for _ in range(trials):
        drawn = chance.sample(sessions, needed)
        tested = drawn[gate.sessions :] if new is None else chance.sample(new, judged)
        slower = [_slowed(figures, slowdown) for figures in tested]
        calls.append(stored_call(drawn[: gate.sessions], slower[0], slower[1:], gate))
    return _rates(calls)


def stored_call(base: Sequence[Figures], first: Figures, fresh: Sequence[Figures], gate: Gate) -> Call:
    """Let the real gate judge a step's first reading, and its fresh readings if that one is suspicious."""
    names = [name for name in base[0] if all(name in figures for figures in base)]
    columns = {name: [figures[name] for figures in base] for name in names}
    baseline = Baseline(Match.EXACT, readings={_STEP: StoredReading(sessions=columns)})
    second = SecondStage(gate.confirm, gate.family_error)
    expectation = expect((), Settings(), baseline, {}, second)
    limits = [limit for limit in expectation.by_reading[_STEP] if _STEP in limit.metric.gated_kinds]
    if any(map(is_too_noisy, limits)):
        return Call.INCONCLUSIVE  # --save-baseline would not have stored it
    reading = Reading(_STEP, _STEP, "recorded", 1, 0, 1, 0.0, (), figures=first)
    result = Result(_TEST, expectation, (reading,), judge(reading, limits))
    sessions = [Session({_TEST: {_STEP: SessionReading(figures)}}) for figures in fresh]
    (settled,) = settle([result], sessions, gated=1, family_error=gate.family_error)
    return Call.REGRESSION if settled.is_failed else Call.OK


def against_rates(
    differences: Sequence[float],
    slowdown: float,
    trials: int,
    gate: Gate = Gate(),  # noqa: B008  frozen
    *,
    seed: int = 0,
) -> Rates:
    """Repeatedly compare two versions, each time in pairs drawn from the recorded ones.

    Which of two identical sides is called new is arbitrary, so every difference counts with both signs.
    """
    chance = random.Random(seed)
    both_signs = [*differences, *(-log for log in differences)]
    calls = []
    for _ in range(trials):
        logs = [log + math.log1p(slowdown) for log in chance.choices(both_signs, k=gate.pairs)]
        drawn = difference(logs, gate.family_error)
        calls.append(decide(drawn, drawn.p, level=gate.family_error, least=LEAST, missed=MISSED))
    return _rates(calls)


def _slowed(figures: Figures, slowdown: float) -> dict[str, float]:
    """Return a session's figures as slower code would have produced them."""
    return {
        name: METRICS[name].cost(METRICS[name].cost(value) * (1 + slowdown))
        for name, value in figures.items()
        if METRICS[name].is_timing
    }


def _rates(calls: Sequence[Call]) -> Rates:
    count = len(calls)
    return Rates(calls.count(Call.REGRESSION) / count, calls.count(Call.INCONCLUSIVE) / count, count)
