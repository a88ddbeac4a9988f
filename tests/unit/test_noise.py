"""Limits and tests from sessions: known answers, properties, and the promised rates on known noise."""

import math
import random

import pytest
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st

from perfsuite import noise
from perfsuite.noise import Spread

COSTS = st.lists(st.floats(0.5, 2.0), min_size=5, max_size=12)
FRESH = st.lists(st.floats(0.5, 2.0), min_size=2, max_size=8)


@pytest.mark.parametrize(("count", "factor"), [(5, 4.105), (8, 3.180), (10, 2.959), (20, 2.602), (40, 2.456)])
def test_the_factors_are_those_of_a_prediction_interval(count, factor):
    """One new session beyond t(.99)·√(1+1/k) deviations is the 1 % case."""
    assert noise.allowed(Spread(0.0, 1.0, count), 0.0, level=0.01) == pytest.approx(factor, abs=1e-3)


@given(COSTS, FRESH)
def test_the_second_stage_is_the_pooled_t_test(stored, fresh):
    """Its probability is scipy's for equal variances, one-sided, where the deviations are above the floor."""
    logs = [[math.log(value) for value in part] for part in (stored, fresh)]
    if min(noise.deviation(part) for part in logs) <= 0.002:
        return
    expected = scipy.stats.ttest_ind(logs[1], logs[0], alternative="greater").pvalue
    found = noise.confirm(Spread.from_costs(stored), fresh, 0.01)
    assert found.p == pytest.approx(float(expected), rel=1e-6, abs=1e-12)


@given(COSTS, st.permutations(range(5)))
def test_the_order_of_sessions_does_not_matter(costs, order):
    """The order of a baseline's sessions does not matter."""
    costs = costs[:5]
    one, other = Spread.from_costs(costs), Spread.from_costs([costs[i] for i in order])
    assert one.centre == pytest.approx(other.centre)
    assert one.deviation == pytest.approx(other.deviation)


@given(COSTS, FRESH, st.floats(1e-6, 1e6))
def test_scaling_all_times_changes_nothing(stored, fresh, factor):
    """Microseconds or minutes: the same verdict."""
    one = noise.confirm(Spread.from_costs(stored), fresh, 0.01)
    scaled = noise.confirm(Spread.from_costs([factor * c for c in stored]), [factor * c for c in fresh], 0.01)
    assert one.p == pytest.approx(scaled.p, rel=1e-5, abs=1e-9)
    assert one.effect == pytest.approx(scaled.effect, abs=1e-9)


@given(COSTS, FRESH, st.floats(1.0, 3.0))
def test_slower_never_passes_where_faster_failed(stored, fresh, factor):
    """Making every fresh session slower only strengthens the case."""
    spread = Spread.from_costs(stored)
    fast, slow = (noise.confirm(spread, [f * c for c in fresh], 0.01) for f in (1.0, factor))
    assert slow.p <= fast.p + 1e-12
    assert slow.effect >= fast.effect - 1e-12


@given(COSTS, st.floats(0.0, 0.3), st.floats(0.0, 0.3))
def test_a_wider_tolerance_never_narrows_the_limit(costs, one, other):
    """The tolerance is a floor under what the spread says."""
    spread = Spread.from_costs(costs)
    low, high = sorted((one, other))
    assert noise.allowed(spread, low) <= noise.allowed(spread, high)
    assert noise.allowed(spread, high) >= math.log1p(high)


def test_more_noise_sees_less():
    """The smallest visible slowdown grows with the deviation and shrinks with the sessions."""
    seen = [noise.smallest_visible(Spread(0.0, d, 5), 0.05, 5, 0.01) for d in (0.005, 0.02, 0.05)]
    assert sorted(seen) == seen
    many = noise.smallest_visible(Spread(0.0, 0.05, 20), 0.05, 5, 0.01)
    assert many < seen[-1]
    assert noise.smallest_visible(Spread(0.0, 0.005, 5), 0.05, 5, 0.01) == pytest.approx(0.057, abs=0.001)


def test_both_stages_keep_their_promise_on_normal_noise():
    """On known noise: under 1 % false alarms, and the smallest visible slowdown found nine times of ten."""
    chance, deviation, trials = random.Random(7), 0.02, 1500
    visible = noise.smallest_visible(Spread(0.0, deviation, 5), 0.05, 5, 0.01)

    def session(slowdown):
        return math.exp(chance.gauss(0, deviation)) * (1 + slowdown)

    def fails(slowdown):
        spread = Spread.from_costs([session(0) for _ in range(5)])
        if math.log(session(slowdown)) - spread.centre <= noise.allowed(spread, 0.05):
            return False
        found = noise.confirm(spread, [session(slowdown) for _ in range(5)], 0.01)
        return found.p <= 0.01 and found.effect > math.log(1.05)

    assert sum(fails(0.0) for _ in range(trials)) <= 0.01 * trials
    assert sum(fails(visible) for _ in range(trials)) >= 0.85 * trials
