"""A share over time: mean, swing, period and idle stretch of given series."""

import itertools
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfsuite.devices.cuda.series import Piece, Series, dominant_period, join


def even(shares, seconds=0.2):
    """Return a series of equal pieces."""
    pieces = [Piece(i * seconds, (i + 1) * seconds, share) for i, share in enumerate(shares)]
    return Series(tuple(pieces), seconds, len(pieces))


def test_the_mean_is_weighted_by_time():
    """One long idle piece weighs more than many short busy ones."""
    series = Series((Piece(0, 9, 0.0), Piece(9, 10, 1.0)), 0.5, 2)
    assert 0.1 == pytest.approx(series.mean)


def test_the_swing_leaves_single_spikes_out():
    """One percent of outliers does not make a steady series swing."""
    assert 0 == pytest.approx(even([0.5] * 99 + [1.0]).swing)
    assert 0.8 == pytest.approx(even([0.1, 0.9] * 50).swing)


@pytest.mark.parametrize("period", [4, 7.5, 31])
def test_the_dominant_period_is_found_between_two_places(period):
    """A sine of any period, and never one of its multiples."""
    values = [math.sin(2 * math.pi * i / period) for i in range(200)]
    assert period == pytest.approx(dominant_period(values), rel=0.01)


@pytest.mark.parametrize("values", [[0.5] * 50, list(range(50)), [0.0] * 25 + [1.0] * 25])
def test_what_does_not_repeat_has_no_period(values):
    """Constants, ramps and a single step: the series must contain two whole periods."""
    assert dominant_period([float(value) for value in values]) is None


def test_small_ripples_have_no_period():
    """NVML's whole percents flicker; that is not worth reporting."""
    assert even([0.50, 0.51] * 50).period_s is None


def test_the_longest_idle_stretch_joins_neighbouring_pieces():
    """Three idle pieces in a row are one stretch; one percent is still idle."""
    assert 0.6 == pytest.approx(even([0.5, 0.0, 0.01, 0.0, 0.9] + [0.5] * 10).idle_stretch_s)


@pytest.mark.parametrize(("pieces", "is_enough"), [(9, False), (10, True), (11, True)])
def test_ten_sample_periods_are_enough(pieces, is_enough):
    """One fewer is too short to judge, and every figure is absent with the advice."""
    series = even([0.5] * pieces, 1.0)
    figures = (series.mean, series.swing, series.idle_stretch_s)
    assert is_enough is all(figure is not None for figure in figures)
    assert is_enough is (series.why == "")
    assert is_enough or "it takes at least 10 s" in series.why


def test_an_absent_series_says_why():
    """No pieces and a reason: no figure, no advice to measure longer."""
    series = Series(absent="no driver")
    assert (None, None, None, None, "no driver") == (
        series.mean,
        series.swing,
        series.period_s,
        series.idle_stretch_s,
        series.why,
    )


def test_samples_are_joined_and_gaps_between_them_are_idle():
    """Samples a second apart, then four seconds without: three of those are idle."""
    series = join([(1, 0.8), (2, 0.8), (3, 0.8), (7, 0.8)], [], 0, 8, 0.5)
    assert [(0, 1, 0.8), (1, 2, 0.8), (2, 3, 0.8), (3, 6, 0.0), (6, 8, 0.8)] == list(series.pieces)


def test_polls_fill_gaps_and_nothing_else():
    """Between samples the samples count; where there are none, the polls do."""
    polls = [Piece(0, 2, 0.1), Piece(4, 6, 0.3)]
    series = join([(1, 0.8), (2, 0.8), (3, 0.8)], polls, 0, 7, 1.0)
    assert [(0, 1, 0.8), (1, 2, 0.8), (2, 3, 0.8), (3, 4, 0), (4, 6, 0.3), (6, 7, 0)] == list(series.pieces)


def test_samples_from_before_and_after_the_window_are_cut():
    """Only the part inside counts."""
    series = join([(-1, 0.1), (0, 0.1), (1, 0.5), (2, 0.5), (3, 0.9)], [], 0.5, 2.5, 1.0)
    assert [(0.5, 1, 0.5), (1, 2, 0.5), (2, 2.5, 0.9)] == list(series.pieces)


@settings(deadline=None)  # a busy machine is no failure
@given(
    st.lists(st.tuples(st.floats(0, 100), st.floats(0, 1)), max_size=30),
    st.lists(st.tuples(st.floats(0, 100), st.floats(0, 1)), max_size=10),
)
def test_a_joined_series_has_no_gaps_and_no_overlaps(samples, polls):
    """Whatever was sampled: the pieces cover the window exactly once and the mean is a share."""
    ends = sorted(polls)
    pieces = [Piece(start, end, share) for (start, _), (end, share) in itertools.pairwise(ends)]
    series = join(sorted(samples), pieces, 10, 90, 0.5)
    edges = [(piece.start, piece.end) for piece in series.pieces]
    assert 10 == edges[0][0]
    assert 90 == edges[-1][1]
    assert all(before[1] == after[0] for before, after in itertools.pairwise(edges))
    assert series.why or -1e-9 <= series.mean <= 1 + 1e-9
