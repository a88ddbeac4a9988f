"""Decide from pairs measured in turns whether the new version is a regression, ok, or inconclusive.

One pair of fresh processes is one data point: the logarithm of new over old. Student's interval estimates
the size of the slowdown; the exact sign-flip test, which assumes no normal distribution, must agree.
"""

import bisect
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum

from perfsuite.against.pairs import ComparedReading, Findings
from perfsuite.collect.limits import expect
from perfsuite.judge.verdicts import judge
from perfsuite.metrics import METRICS, Metric, Tolerance, primary_metric
from perfsuite.records import Baseline, Match, Settings, StoredReading, Verdict
from perfsuite.statistics import deviation, holm, mean, student_quantile, student_tail

_LEAST_DEVIATION = 0.002
_FLIP_LEVEL = 0.05
MOST_PAIRS = 40  # up to here the sign-flip test is exact and instant
LEAST = 0.01  # a slowdown below one percent is no regression, however certain
MISSED = 0.05  # «ok» rules out a slowdown of this size; --perf-tolerance sets another


class Call(Enum):
    """The conclusion of a comparison."""

    REGRESSION = "regression"
    OK = "ok"
    INCONCLUSIVE = "inconclusive"


@dataclass(frozen=True)
class Difference:
    """The slowdown of new against old, in logarithms: estimate, interval, and the p-values of both tests."""

    effect: float
    low: float
    high: float
    p: float
    flip_p: float
    pairs: int


def difference(logs: Sequence[float], level: float) -> Difference:
    """Summarize the pairs' differences; `level` is the one-sided error of each end of the interval."""
    count = len(logs)
    if count < 2:
        raise ValueError(f"a comparison needs at least 2 pairs, got {count}")
    centre = mean(logs)
    standard_error = max(deviation(logs), _LEAST_DEVIATION) / math.sqrt(count)
    margin = student_quantile(1 - level, count - 1) * standard_error
    return Difference(
        centre,
        centre - margin,
        centre + margin,
        student_tail(centre / standard_error, count - 1),
        sign_flip(logs),
        count,
    )


def decide(difference: Difference, adjusted_p: float, *, level: float, least: float, missed: float) -> Call:
    """Return the conclusion from a difference.

    `least` is the smallest slowdown that is a regression, `missed` the smallest that must not go unnoticed;
    `adjusted_p` is the difference's p-value, adjusted for all comparisons of the run.
    """
    is_real = adjusted_p <= level and difference.flip_p <= max(_FLIP_LEVEL, 2.0**-difference.pairs)
    if is_real and difference.effect >= math.log1p(least):
        return Call.REGRESSION
    return Call.OK if difference.high < math.log1p(missed) else Call.INCONCLUSIVE


def sign_flip(logs: Sequence[float]) -> float:
    """Return the exact share of sign patterns whose mean is at least the observed mean.

    A pattern flips some values; its mean is at least the observed one exactly if their sum is not positive.
    """
    if len(logs) > MOST_PAIRS:
        raise ValueError(f"the exact sign-flip test takes at most {MOST_PAIRS} pairs, got {len(logs)}")
    middle = len(logs) // 2
    left, right = _subset_sums(logs[:middle]), sorted(_subset_sums(logs[middle:]))
    # Rounding must not lose the pattern that flips nothing.
    slack = 1e-12 * max((abs(value) for value in logs), default=0.0)
    at_most = sum(bisect.bisect_right(right, slack - left_sum) for left_sum in left)
    return at_most / 2.0 ** len(logs)


def _subset_sums(values: Sequence[float]) -> list[float]:
    sums = [0.0]
    for value in values:
        sums += [subset_sum + value for subset_sum in sums]
    return sums


@dataclass(frozen=True)
class JudgedReading:
    """One reading of one test, compared and judged."""

    test: str
    compared: ComparedReading
    metric: Metric
    call: Call
    difference: Difference | None  # None on a modelled device: nothing was timed
    adjusted_p: float
    old_cost: float | None
    new_cost: float | None
    verdicts: tuple[Verdict, ...] = ()  # on counts and memory
    invalid: tuple[str, ...] = ()
    needs_name: bool = False  # its test takes several readings, so messages must name this one

    @property
    def reading(self) -> str:
        """Return the reading's name."""
        return self.compared.new.name


@dataclass(frozen=True)
class Rule:
    """How certain a regression must be, and which slowdowns matter."""

    ref: str = ""  # the name of the old version
    family_error: float = 0.01
    tolerance: float | None = None  # set by the user; without it, 1 % is a regression and «ok» rules out 5 %
    device_tolerances: Mapping[str, Tolerance] = field(default_factory=dict)
    compares_times: bool = True  # of the device

    @property
    def least(self) -> float:
        """Return the smallest slowdown that is a regression."""
        return LEAST if self.tolerance is None else self.tolerance

    @property
    def missed(self) -> float:
        """Return the smallest slowdown that must not go unnoticed."""
        return MISSED if self.tolerance is None else self.tolerance


def judge_findings(findings: Findings, rule: Rule) -> list[JudgedReading]:
    """Judge every reading; Holm's method distributes the family error over them."""
    readings = {
        (test, name): compared
        for test, by_name in findings.readings.items()
        for name, compared in by_name.items()
    }
    differences = {
        key: difference(compared.differences, rule.family_error)
        for key, compared in readings.items()
        if len(compared.differences) >= 2 and not compared.invalid
    }
    adjusted = holm({"\n".join(key): value.p for key, value in differences.items()})
    judged = [
        _judge(key, compared, differences.get(key), adjusted.get("\n".join(key), 1.0), rule)
        for key, compared in readings.items()
    ]
    return [replace(reading, needs_name=len(findings.readings[reading.test]) > 1) for reading in judged]


def _judge(
    key: tuple[str, str],
    compared: ComparedReading,
    difference: Difference | None,
    adjusted_p: float,
    rule: Rule,
) -> JudgedReading:
    call = Call.OK if compared.new.modelled else Call.INCONCLUSIVE
    if difference is not None:
        call = decide(difference, adjusted_p, level=rule.family_error, least=rule.least, missed=rule.missed)
    return JudgedReading(
        key[0],
        compared,
        primary_metric(compared.new.kind),
        call,
        difference,
        adjusted_p,
        old_cost=mean([old for old, _ in compared.costs]) if compared.costs else None,
        new_cost=mean([new for _, new in compared.costs]) if compared.costs else None,
        verdicts=_exact_verdicts(compared, rule),
        invalid=tuple(dict.fromkeys(compared.invalid)),
    )


def _exact_verdicts(compared: ComparedReading, rule: Rule) -> tuple[Verdict, ...]:
    """Compare counts and memory of the new version with limits made from the old version's."""
    old, new = compared.old, compared.new
    figures = {name: v for name, v in old.figures.items() if new.modelled or not METRICS[name].is_timing}
    baseline = Baseline(Match.EXACT, readings={new.name: StoredReading(figures)})
    expectation = expect(
        *((), Settings(tolerance=rule.tolerance), baseline, rule.device_tolerances),
        compares_times=rule.compares_times,
    )
    # The limits are made as for a baseline; only the name of their source differs.
    limits = [replace(limit, source=rule.ref) for limit in expectation.by_reading[new.name]]
    return judge(new, limits)
