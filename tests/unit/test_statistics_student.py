"""Student's t against scipy and by its symmetries."""

import pytest
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st

from perfsuite import statistics

DEGREES = st.integers(1, 500)


@given(st.floats(-60, 60), DEGREES)
def test_tails_are_scipys(value, degrees):
    """The tail beyond a value agrees to ten digits, far out as well."""
    expected = float(scipy.stats.t.sf(value, degrees))
    assert statistics.student_tail(value, degrees) == pytest.approx(expected, rel=1e-8, abs=1e-14)


@given(st.floats(0.0005, 0.9995), DEGREES)
def test_quantiles_are_scipys(share, degrees):
    """The value before a tail agrees as well."""
    expected = float(scipy.stats.t.ppf(share, degrees))
    assert statistics.student_quantile(share, degrees) == pytest.approx(expected, rel=1e-7, abs=1e-9)


def test_the_ends_are_certain():
    """Nothing lies beyond infinity, everything before it."""
    assert [0.0, 1.0] == [statistics.student_tail(float("inf"), 3), statistics.student_tail(float("-inf"), 3)]


@pytest.mark.parametrize("share", [0.0, 1.0, -1.0, float("nan")])
def test_a_share_that_is_none_is_refused(share):
    """There is no value before all of the distribution."""
    with pytest.raises(ValueError, match="between 0 and 1"):
        statistics.student_quantile(share, 4)
