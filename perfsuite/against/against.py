"""Judge what a comparison with a git ref found: one timing by statistics, counts and memory by limits."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from perfsuite.against.decide import Call, Difference, decide, difference
from perfsuite.against.pairs import Compared, Findings
from perfsuite.collect.limits import expect
from perfsuite.judge.verdicts import judge
from perfsuite.metrics import METRICS, Metric, Tolerance, primary_metric
from perfsuite.records import Match, Reading, Settings, Verdict
from perfsuite.statistics import holm, mean

LEAST = 0.01  # a slowdown below one percent is no alarm, however certain
MISSED = (
    0.05  # «ok» promises that a slowdown of this size would not have passed; --perf-tolerance says another
)


@dataclass(frozen=True)
class Judged:
    """One reading of one test, judged."""

    test: str
    reading: str
    metric: Metric
    call: Call
    found: Difference | None  # None on a modelled device: nothing was timed
    adjusted_p: float
    old_cost: float | None
    new_cost: float | None
    verdicts: tuple[Verdict, ...] = ()  # of counts and memory
    invalid: tuple[str, ...] = ()
    modelled: bool = False
    is_one_of_many: bool = False  # its test takes further readings, so its name must be said


@dataclass(frozen=True)
class Rule:
    """How sure an alarm must be, and which slowdowns matter."""

    family_error: float = 0.01
    tolerance: float | None = None  # what the user lets pass; without it, 1 % is an alarm and 5 % ruled out
    device_tolerances: Mapping[str, Tolerance] = field(default_factory=dict)

    @property
    def missed(self) -> float:
        """Return the smallest slowdown that must not pass unseen."""
        return MISSED if self.tolerance is None else self.tolerance


def judge_findings(findings: Findings, rule: Rule) -> list[Judged]:
    """Return every reading's judgement; the family error is shared by Holm's method."""
    compared = {(test, name): one for test, found in findings.readings.items() for name, one in found.items()}
    found = {
        key: difference(one.differences, rule.family_error)
        for key, one in compared.items()
        if len(one.differences) >= 2 and not one.invalid
    }
    adjusted = holm({"\n".join(key): one.p for key, one in found.items()})
    judged = [
        _judged(key, one, found.get(key), adjusted.get("\n".join(key), 1.0), rule)
        for key, one in compared.items()
    ]
    return [replace(one, is_one_of_many=len(findings.readings[one.test]) > 1) for one in judged]


def _judged(
    key: tuple[str, str], one: Compared, found: Difference | None, adjusted: float, rule: Rule
) -> Judged:
    call = Call.OK if one.modelled else Call.INCONCLUSIVE
    if found is not None:
        least = LEAST if rule.tolerance is None else rule.tolerance
        call = decide(found, adjusted, level=rule.family_error, least=least, missed=rule.missed)
    return Judged(
        *key,
        primary_metric(one.kind),
        call,
        found,
        adjusted,
        old_cost=mean([old for old, _ in one.costs]) if one.costs else None,
        new_cost=mean([new for _, new in one.costs]) if one.costs else None,
        verdicts=_exact(key[1], one, rule),
        invalid=tuple(dict.fromkeys(one.invalid)),
        modelled=one.modelled,
    )


def _exact(name: str, one: Compared, rule: Rule) -> tuple[Verdict, ...]:
    """Hold counts and memory of the new side against limits made of the old side's."""
    expectation = expect(
        (),
        Settings(tolerance=rule.tolerance),
        stored={name: {k: v for k, v in one.old.items() if one.modelled or not METRICS[k].is_timing}},
        match=Match.EXACT,
        match_reason="",
        device_tolerances=rule.device_tolerances,
    )
    return judge(reading_of(name, one), expectation.by_reading[name])


def reading_of(name: str, one: Compared) -> Reading:
    """Make a Reading of the figures the new side told."""
    plain = {METRICS[k].field: v for k, v in one.new.items() if not _is_mapped(METRICS[k])}
    return Reading(
        name,
        one.kind,
        one.device,
        steps=0,
        warmup_steps=0,
        samples=0,
        wall_seconds=0.0,
        rounds=(),
        counts={k: v for k, v in one.new.items() if METRICS[k].is_count},
        relative={k: v for k, v in one.new.items() if METRICS[k].is_relative},
        modelled=one.modelled,
        **plain,  # type: ignore[arg-type]
    )


def _is_mapped(metric: Metric) -> bool:
    return metric.is_count or metric.is_relative
