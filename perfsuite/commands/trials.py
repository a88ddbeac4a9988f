"""Play a gate many times on recorded readings of identical code: how often would it cry wolf, how often find?

Pure. A slowdown is injected by making every recorded time that much longer; its noise stays the recorded one.
"""

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from perfsuite.against.against import LEAST, MISSED
from perfsuite.against.decide import Call, decide, difference
from perfsuite.collect.limits import SecondStage, timing_limits
from perfsuite.metrics import METRICS
from perfsuite.noise import NOISIEST, confirm
from perfsuite.records import Settings

Figures = Mapping[str, float]  # metric → figure of one session


@dataclass(frozen=True)
class Rates:
    """Shares of trials: failed, undecided (inconclusive or refused), and how many there were."""

    failed: float
    undecided: float
    trials: int


@dataclass(frozen=True)
class Gate:
    """The numbers a gate is run with."""

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
    """Save a baseline from some sessions and judge others, again and again.

    `new` are sessions of the code under test where they were recorded under other conditions.
    """
    chance = random.Random(seed)
    later = gate.confirm + 1
    least = gate.sessions + (later if new is None else 0)
    if len(sessions) < least or (new is not None and len(new) < later):
        raise ValueError(f"{least} sessions are needed, there are {len(sessions)}")
    calls = []
    for _ in range(trials):
        drawn = chance.sample(sessions, least)
        tested = drawn[gate.sessions :] if new is None else chance.sample(new, later)
        slower = [_slowed(one, slowdown) for one in tested]
        calls.append(stored_call(drawn[: gate.sessions], slower[0], slower[1:], gate))
    return _rates(calls)


def stored_call(base: Sequence[Figures], first: Figures, fresh: Sequence[Figures], gate: Gate) -> Call:
    """Judge one step's first reading against a baseline, and its fresh readings if that is suspicious."""
    columns = {name: [one[name] for one in base] for name in base[0] if all(name in one for one in base)}
    second = SecondStage(gate.confirm, gate.family_error)
    limits = timing_limits(columns, Settings(), second)
    limit = next(one for one in limits if "step" in one.metric.gated_kinds)
    metric, spread = limit.metric, limit.spread
    if spread is None or limit.visible is None or limit.visible > NOISIEST:
        return Call.INCONCLUSIVE  # refused as too noisy
    if not metric.is_better(limit.bound, first[metric.name]):
        return Call.OK
    found = confirm(spread, [metric.cost(one[metric.name]) for one in fresh], gate.family_error)
    is_real = found.p <= gate.family_error and found.effect > math.log1p(limit.tolerance or 0.0)
    return Call.REGRESSION if is_real else Call.OK


def against_rates(
    differences: Sequence[float],
    slowdown: float,
    trials: int,
    gate: Gate = Gate(),  # noqa: B008  frozen
    *,
    seed: int = 0,
) -> Rates:
    """Compare two versions again and again, each time in pairs drawn from the recorded ones.

    Which of two identical sides is called new is arbitrary, so every difference counts with both signs.
    """
    chance = random.Random(seed)
    both = [*differences, *(-one for one in differences)]
    calls = []
    for _ in range(trials):
        logs = [one + math.log1p(slowdown) for one in chance.choices(both, k=gate.pairs)]
        found = difference(logs, gate.family_error)
        calls.append(decide(found, found.p, level=gate.family_error, least=LEAST, missed=MISSED))
    return _rates(calls)


def _slowed(figures: Figures, slowdown: float) -> dict[str, float]:
    """Return a session's figures as slower code would have given them."""
    return {
        name: METRICS[name].cost(METRICS[name].cost(value) * (1 + slowdown))
        for name, value in figures.items()
        if METRICS[name].is_timing
    }


def _rates(calls: Sequence[Call]) -> Rates:
    count = len(calls)
    return Rates(calls.count(Call.REGRESSION) / count, calls.count(Call.INCONCLUSIVE) / count, count)
