"""Statistics against known answers and by properties."""

import math

import numpy
import pytest
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st

from perfsuite import statistics

TIMES = st.lists(st.floats(min_value=1e-6, max_value=1e3), min_size=1, max_size=60)


@given(TIMES)
def test_median_mean_and_deviation_agree_with_numpy(values):
    """The plain statistics are numpy's."""
    assert statistics.median(values) == pytest.approx(float(numpy.median(values)))
    assert statistics.mean(values) == pytest.approx(float(numpy.mean(values)))
    expected = float(numpy.std(values, ddof=1)) if len(values) > 1 else 0.0
    assert statistics.deviation(values) == pytest.approx(expected, abs=1e-9, rel=1e-6)


@given(TIMES, st.floats(0, 1))
def test_quantile_agrees_with_numpy(values, share):
    """Quantiles are interpolated as numpy does."""
    assert statistics.quantile(values, share) == pytest.approx(float(numpy.quantile(values, share)))


def test_the_errors_factors_are_students_t():
    """The table holds the 97.5 % quantiles of Student's t."""
    for batches, factor in statistics._T_975.items():
        assert factor == pytest.approx(scipy.stats.t.ppf(0.975, batches - 1), abs=1e-3)


def test_too_few_values_have_no_error():
    """Seven steps cannot say how well their mean is known."""
    assert statistics.relative_error([1.0] * 7) is None
    assert statistics.relative_error([1.0] * 8) == 0.0


@given(st.lists(st.floats(min_value=0.1, max_value=10), min_size=8, max_size=80), st.floats(0.01, 100))
def test_the_error_does_not_depend_on_the_unit(values, factor):
    """Scaling all times changes nothing."""
    scaled = statistics.relative_error([factor * value for value in values])
    assert scaled == pytest.approx(statistics.relative_error(values), rel=1e-6, abs=1e-9)


def test_the_error_covers_the_true_mean():
    """Of many series of independent steps about 95 % hold the true mean inside their error."""
    random = numpy.random.default_rng(1)
    series = random.normal(1.0, 0.1, size=(500, 100))
    inside = sum(
        abs(statistics.mean(list(row)) - 1.0)
        <= statistics.relative_error(list(row)) * statistics.mean(list(row))
        for row in series
    )
    assert 0.92 <= inside / 500 <= 0.98


def test_the_ratios_interval_covers_the_true_ratio():
    """Of many noisy comparisons at least 93 % hold the true speed-up inside their interval."""
    random = numpy.random.default_rng(2)
    inside = 0
    for _ in range(500):
        noise = random.lognormal(0.0, 0.2, size=(41, 2))
        _, low, high = statistics.ratio_interval([(2.0 * a, b) for a, b in noise])
        inside += low <= 2.0 <= high
    assert inside / 500 >= 0.93


@given(st.lists(st.tuples(st.floats(0.1, 10), st.floats(0.1, 10)), min_size=1, max_size=50))
def test_swapping_the_arms_inverts_the_ratio(pairs):
    """Neither variant is favoured."""
    ratio, low, high = statistics.ratio_interval(pairs)
    swapped, swapped_low, swapped_high = statistics.ratio_interval([(b, a) for a, b in pairs])
    assert low <= ratio <= high
    assert (swapped, swapped_low, swapped_high) == pytest.approx((1 / ratio, 1 / high, 1 / low))


def test_one_disturbed_step_does_not_move_the_ratio():
    """A pair hit by another process leaves the median where it is."""
    pairs = [(2.0, 1.0)] * 20 + [(2.0, 50.0)]
    assert statistics.ratio_interval(pairs)[0] == pytest.approx(2.0)
    assert math.isclose(statistics.ratio_interval(pairs)[1], 2.0)
