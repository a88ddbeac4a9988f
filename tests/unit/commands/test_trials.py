"""Trials on recorded readings: rates that follow from noise that is known."""

import math
import random

import pytest

from perfsuite.commands.selftest import Span, render, self_test
from perfsuite.commands.trials import Gate, against_rates, stored_rates
from perfsuite.errors import SessionFailed
from perfsuite.judge.verdicts import is_suspicion
from perfsuite.metrics import METRICS
from perfsuite.records import Limit, Outcome, Verdict


def sessions(deviation, count=40, machine=0.0):
    """Record sessions of a step whose machine wanders by `machine`; tiny operations wander with it."""
    chance = random.Random(5)
    found = []
    for _ in range(count):
        speed = math.exp(chance.gauss(0, machine))
        own = math.exp(chance.gauss(0, deviation))
        found.append({"step_time": 0.01 * speed * own, "step_in_tiny_ops": 20 * own})
    return found


def test_a_quiet_machine_finds_ten_percent_and_cries_no_wolf():
    """1 % of noise: no alarm, and every slowdown of 10 %."""
    recorded = sessions(0.01)
    assert stored_rates(recorded, 0.0, 300).failed <= 0.01
    assert stored_rates(recorded, 0.10, 300).failed >= 0.98


def test_the_reference_finds_what_a_wandering_machine_hides():
    """15 % of drift: seconds alone are refused or find nothing, rounds of the reference find it."""
    recorded = sessions(0.01, machine=0.15)
    plain = [{"step_time": one["step_time"]} for one in recorded]
    assert stored_rates(recorded, 0.10, 200).failed >= 0.95
    assert stored_rates(plain, 0.10, 200).failed <= 0.2


def test_too_noisy_counts_as_undecided():
    """A baseline that is refused is no pass."""
    assert stored_rates(sessions(0.4), 0.0, 100).undecided >= 0.9


def test_a_baseline_from_one_condition_is_held_against_another():
    """Sessions of the loaded machine may come from elsewhere; a shift of all of them is found."""
    base = sessions(0.005)
    slower = [{name: 1.2 * value for name, value in one.items()} for one in base]
    assert 1.0 == stored_rates(base, 0.0, 50, new=slower).failed


def test_too_few_sessions_are_refused():
    """Eleven are drawn for a trial."""
    with pytest.raises(ValueError, match="11 sessions are needed, there are 10"):
        stored_rates(sessions(0.01, count=10), 0.0, 1)


def test_pairs_of_identical_code_are_drawn_with_both_signs():
    """A bias of the recording does not count as a slowdown."""
    assert against_rates([0.02] * 20, 0.0, 300).failed <= 0.05
    chance = random.Random(1)
    recorded = [chance.gauss(0.0, 0.015) for _ in range(30)]
    assert against_rates(recorded, 0.0, 500).failed <= 0.02
    assert against_rates(recorded, 0.05, 500).failed >= 0.95
    assert against_rates(recorded, 0.02, 500, Gate(pairs=16)).failed >= 0.8


def test_the_self_tests_table_promises_no_more_than_it_found():
    """Rates, what they were drawn from, the real slowdown, and the promise in one sentence."""
    slow = [{name: 1.05 * value for name, value in one.items()} for one in sessions(0.001, 3)]
    text = render(sessions(0.01), slow, [0.01, -0.012, 0.005, -0.004, 0.002, 0.011], [math.log(1.05)] * 3)
    assert "drawn from 40 sessions and 6 pairs" in text
    assert "+5.0 % in 3 pairs" in text
    assert "with a stored baseline 10 %, with --against 2 %" in text


def test_a_budget_too_short_for_an_answer_is_refused():
    """Five minutes are the least."""
    with pytest.raises(SessionFailed, match="at least 5 minutes"):
        self_test(10, "cpu", print)


def test_only_a_time_behind_a_baseline_is_a_suspicion():
    """Counts, marker limits and modelled times fail at once."""
    baseline = Limit(METRICS["step_time"], 1.1, "the baseline", reference=1.0)
    marker = Limit(METRICS["step_time"], 1.1, "the perf marker")
    count = Limit(METRICS["kernels"], 3, "the baseline", reference=3)
    verdicts = [Verdict("", Outcome.MISSED, limit, 2.0) for limit in (baseline, marker, count)]
    exact = Verdict("", Outcome.MISSED, baseline, 2.0, is_exact=True)
    passed = Verdict("", Outcome.PASSED, baseline, 1.0)
    assert [True, False, False, False, False] == [is_suspicion(v) for v in (*verdicts, exact, passed)]


def test_a_span_begins_nothing_that_would_not_end_in_it():
    """Ten seconds, three a piece: three pieces, since a fourth would end after twelve."""
    clock = iter([0.0, 0.0, 3.0, 6.0, 9.0])
    span = Span(10, lambda: next(clock))
    assert [True, True, True, False] == [span.has_room() for _ in range(4)]


def test_the_first_piece_is_always_begun():
    """Even a span of nothing gives one."""
    clock = iter([0.0, 0.0, 5.0])
    span = Span(0, lambda: next(clock))
    assert [True, False] == [span.has_room(), span.has_room()]
