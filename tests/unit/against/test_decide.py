"""The paired test: exact flips, scipy's t, and a decision that only slower code can make worse."""

import itertools
import math
import random

import pytest
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st

from perfsuite.against.decide import MOST_PAIRS, Call, decide, difference, sign_flip
from perfsuite.statistics import deviation, holm

LOGS = st.lists(st.floats(-0.2, 0.2), min_size=2, max_size=10)
RULE = {"level": 0.01, "least": 0.01, "missed": 0.05}


def call(logs, adjusted=None):
    found = difference(logs, RULE["level"])
    return decide(found, found.p if adjusted is None else adjusted, **RULE)


@given(LOGS)
def test_sign_flips_are_counted_one_by_one(logs):
    """The quick way gives what trying all patterns gives."""
    observed = math.fsum(logs)
    slack = 2e-12 * max(map(abs, logs))
    patterns = itertools.product((1, -1), repeat=len(logs))
    means = [math.fsum(s * v for s, v in zip(signs, logs, strict=True)) for signs in patterns]
    assert sign_flip(logs) == sum(mean >= observed - slack for mean in means) / 2 ** len(logs)


@pytest.mark.parametrize(("count", "least"), [(5, 0.03125), (7, 0.0078125), (10, 0.0009765625)])
def test_the_smallest_probability_is_one_pattern(count, least):
    """All pairs slower: only the observed pattern is as extreme."""
    assert least == sign_flip([0.05 + 0.001 * i for i in range(count)])


def test_too_many_pairs_are_refused():
    """The test stays exact or is not made."""
    with pytest.raises(ValueError, match="at most"):
        sign_flip([0.1] * (MOST_PAIRS + 1))


@given(LOGS)
def test_the_probability_is_scipys(logs):
    """Above the floor of the deviation it is the one-sample t-test."""
    if deviation(logs) <= 0.002:
        return
    found = difference(logs, 0.01)
    expected = scipy.stats.ttest_1samp(logs, 0.0, alternative="greater").pvalue
    interval = scipy.stats.ttest_1samp(logs, 0.0).confidence_interval(0.98)
    assert found.p == pytest.approx(float(expected), rel=1e-6, abs=1e-12)
    assert (found.low, found.high) == pytest.approx((interval.low, interval.high), abs=1e-9)


@pytest.mark.parametrize(
    ("logs", "expected"),
    [
        ([0.05, 0.052, 0.049, 0.051, 0.048, 0.05, 0.052, 0.047], Call.REGRESSION),
        ([0.001, -0.002, 0.0, 0.002, -0.001, 0.001, 0.0, -0.001], Call.OK),
        ([0.2, -0.15, 0.1, -0.05, 0.2, -0.1, 0.12, -0.2], Call.INCONCLUSIVE),
        ([0.006, 0.0061, 0.0059, 0.006, 0.006, 0.0062, 0.0058, 0.006], Call.OK),  # certain, too small
        ([-0.05] * 8, Call.OK),  # faster
    ],
)
def test_the_three_answers(logs, expected):
    """Large and certain, small and certain, and neither."""
    assert expected is call(logs)


def test_other_comparisons_raise_the_bar():
    """What is certain alone need not be among many."""
    logs = [0.03, 0.05, 0.02, 0.06, 0.03, 0.04, 0.01, 0.05]
    alone = difference(logs, 0.01).p
    many = holm({"this": alone, **{str(i): 0.5 for i in range(200)}})
    assert [Call.REGRESSION, Call.INCONCLUSIVE] == [call(logs), call(logs, many["this"])]


@given(LOGS, st.floats(0.0, 0.3))
def test_slower_never_passes_where_faster_failed(logs, shift):
    """Adding the same slowdown to every pair never turns a regression into anything else."""
    if call(logs) is Call.REGRESSION:
        assert Call.REGRESSION is call([value + shift for value in logs])


@given(LOGS, st.randoms())
def test_the_order_of_pairs_does_not_matter(logs, chance):
    """Which pair came first says nothing."""
    mixed = list(logs)
    chance.shuffle(mixed)
    one, other = difference(logs, 0.01), difference(mixed, 0.01)
    assert (one.effect, one.low, one.p) == pytest.approx((other.effect, other.low, other.p), abs=1e-12)


def test_identical_versions_are_rarely_called_slower():
    """On known noise of 2 %: at most 1 % alarms, and 5 % slower code is found."""
    chance, trials = random.Random(3), 1500
    alarms = sum(call([chance.gauss(0, 0.02) for _ in range(8)]) is Call.REGRESSION for _ in range(trials))
    found = sum(call([chance.gauss(0.05, 0.02) for _ in range(8)]) is Call.REGRESSION for _ in range(trials))
    assert alarms <= 0.015 * trials
    assert found >= 0.95 * trials


def test_holm_by_hand():
    """The smallest is multiplied by all, the next by one less, and none overtakes another."""
    assert {"a": 0.03, "b": 0.06, "c": 0.06} == pytest.approx(holm({"a": 0.01, "b": 0.03, "c": 0.04}))
    assert {} == holm({})
    assert {"x": 1.0} == holm({"x": 1.0})


@given(st.dictionaries(st.text(max_size=3), st.floats(0, 1), min_size=1, max_size=12))
def test_holm_never_lowers_and_keeps_the_order(probabilities):
    """Adjusted values are no smaller, at most 1, and as ordered as before."""
    adjusted = holm(probabilities)
    assert all(probabilities[n] <= adjusted[n] <= 1 for n in probabilities)
    ordered = sorted(probabilities, key=lambda n: probabilities[n])
    assert sorted(adjusted[n] for n in ordered) == [adjusted[n] for n in ordered]
