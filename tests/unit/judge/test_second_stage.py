"""Settling suspicions: on fresh data, for all tests of a run at once."""

import math

import pytest

from perfsuite.judge.second_stage import settle
from perfsuite.metrics import METRICS
from perfsuite.noise import Spread
from perfsuite.records import Expectation, Limit, Outcome, Result, Session, SessionReading, Verdict
from tests.readings import make_reading

BASE = Spread.from_costs([0.0100, 0.0101, 0.0099, 0.01005, 0.00995])
STEP = METRICS["step_time"]
READING = make_reading("step", "step", "cpu", 1, 1, 1, 1.0, (0.1,))


def suspect(test="t", spread=BASE, metric=STEP):
    reference = metric.cost(0.01)
    bound = metric.cost(0.011)
    limit = Limit(metric, bound, "the baseline", reference=reference, tolerance=0.05, spread=spread)
    return Result(
        test, Expectation(), (READING,), (Verdict("step", Outcome.MISSED, limit, metric.cost(0.013)),)
    )


def sessions(costs, test="t", metric=STEP, invalid=()):
    return [Session({test: {"step": SessionReading({metric.name: metric.cost(c)}, invalid)}}) for c in costs]


def outcome(costs, gated=1, **changes):
    (result,) = settle([suspect(**changes)], sessions(costs), gated=gated, family_error=0.01)
    return result.verdicts[0].outcome


@pytest.mark.parametrize(
    ("costs", "expected"),
    [
        ([0.0115] * 5, Outcome.MISSED),
        ([0.0100] * 5, Outcome.UNCONFIRMED),
        ([0.0104] * 5, Outcome.UNCONFIRMED),  # certain, but within the tolerance
        ([0.0100, 0.0100, 0.0100, 0.0300, 0.0300], Outcome.UNCONFIRMED),  # disturbed twice
        ([0.0090] * 5, Outcome.UNCONFIRMED),
    ],
)
def test_fresh_sessions_decide(costs, expected):
    """Beyond the tolerance and certain: both are needed."""
    assert expected is outcome(costs)


def test_too_few_stored_sessions_leave_it_to_the_tolerance():
    """The typical fresh reading must miss the bound as well."""
    assert Outcome.MISSED is outcome([0.0112, 0.0113, 0.0099], spread=None)
    assert Outcome.UNCONFIRMED is outcome([0.0109, 0.0113, 0.0099], spread=None)


def test_a_rate_is_settled_in_its_own_direction():
    """Samples/s fall where costs rise."""
    rate = METRICS["samples_per_s"]
    for costs, expected in (([0.012] * 5, Outcome.MISSED), ([0.0099] * 5, Outcome.UNCONFIRMED)):
        fresh = sessions(costs, metric=rate)
        (result,) = settle([suspect(metric=rate)], fresh, gated=1, family_error=0.01)
        assert expected is result.verdicts[0].outcome


def test_what_does_not_count_is_left_out():
    """No fresh session that counts: the suspicion is no verdict either, and says why."""
    (result,) = settle([suspect()], sessions([0.01] * 5, invalid=("hot",)), gated=1, family_error=0.01)
    assert Outcome.INVALID is result.verdicts[0].outcome
    assert "suspicious, and none of 5 fresh processes counts: hot" == result.verdicts[0].reason


def test_fresh_processes_that_took_no_reading_leave_the_suspicion_as_it_is():
    """The test fails there, or takes another reading: a failure, with the reason."""
    (result,) = settle([suspect()], [Session({}), Session({})], gated=1, family_error=0.01)
    assert Outcome.MISSED is result.verdicts[0].outcome
    assert "no fresh process could measure it" in result.verdicts[0].reason


def test_the_more_tests_the_surer_an_alarm_must_be():
    """The same fresh readings: an alarm alone, none among ten thousand."""
    costs = [0.0107, 0.0112, 0.0104, 0.0110, 0.0106]
    assert [Outcome.MISSED, Outcome.UNCONFIRMED] == [outcome(costs, gated=n) for n in (1, 10_000)]


def test_what_was_found_is_told():
    """Effect, number of processes, and the end that is certain."""
    (result,) = settle([suspect()], sessions([0.012] * 5), gated=1, family_error=0.01)
    assert result.verdicts[0].reason.startswith("+20.0 % in 5 fresh processes, at least +1")
    assert math.isclose(BASE.centre, math.log(0.01), abs_tol=1e-3)
