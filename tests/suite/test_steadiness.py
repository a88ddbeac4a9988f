"""Swing and period of a modelled series, as a driver's samples would show them."""

import pytest

from tests.perf.steadiness import period, swing
from tests.readings import make_reading


def reading(series, seconds=30.0, **figures):
    return make_reading("loop", "loop", "model:a10", 10, 1, 100, seconds, (), series=tuple(series), **figures)


def test_a_start_at_the_beginning_is_no_swing():
    """Workers that start once leave the rest steady."""
    assert 0 == pytest.approx(swing(reading([0.0] * 50 + [0.9] * 150)))


def test_a_start_at_every_epoch_swings_with_the_epoch_s_period():
    """Two idle seconds in ten are a swing of the whole share, every ten seconds."""
    wave = ([0.1] * 2 + [0.9] * 8) * 6  # a point a second, the first third is the start
    found = reading(wave, seconds=60.0)
    assert (0.8, 10.0) == (pytest.approx(swing(found)), pytest.approx(period(found), abs=0.2))


def test_what_is_faster_than_a_sample_is_not_seen():
    """A driver's sample is the mean of its period: gaps between kernels are no swing."""
    found = reading([0.0, 1.0] * 1500, seconds=30.0)  # a point every 10 ms
    assert 0 == pytest.approx(swing(found), abs=0.07)


def test_too_short_a_window_has_no_swing_and_a_measured_one_its_own():
    """Fewer than ten samples tell nothing; a card's own figure is taken as it is."""
    assert swing(reading([0.5] * 200, seconds=1.0)) is None
    assert period(reading([0.5] * 200, seconds=1.0)) is None
    assert 0.4 == swing(reading([], utilization_swing=0.4))
