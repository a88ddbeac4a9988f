"""Warm-up ends when steps are steady, not after a number of them."""

import pytest

from perfsuite.devices.scripted import ScriptedDevice
from perfsuite.measure.step import is_steady, warm_up


def warm(seconds, states=(), budget=1e9):
    device = ScriptedDevice(states=states)
    durations = iter(seconds)
    return warm_up(lambda: device.spend(next(durations)), device, budget)


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        ([0.1] * 9, False),
        ([0.1] * 10, True),
        ([1.0] * 5 + [0.1] * 5, False),
        ([1.0] * 5 + [0.1] * 10, True),
        ([0.1] * 5 + [0.12] * 5, True),
        ([2.0] * 3, False),
        ([2.0] * 4, True),
        ([9.0, 2.0, 2.0, 2.0, 2.0], True),
        ([], False),
    ],
)
def test_steady_is_no_longer_getting_faster(seconds, expected):
    """Five steps as fast as the five before are steady; two of two where steps are slow."""
    assert expected is is_steady(seconds)


def test_slow_first_steps_prolong_the_warm_up():
    """A compile in the first step and caches filling after it are waited out."""
    quick = warm([0.01] * 100)
    slow = warm([30.0, 0.4, 0.3, 0.2, 0.1, 0.05, 0.02] + [0.01] * 100)
    assert 10 == quick.steps
    assert 15 == slow.steps
    assert () == slow.notes


def test_a_state_that_changes_starts_the_count_anew():
    """A recompile or a new allocation in the seventh step ends the warm-up ten steps later."""
    states = [0] * 7 + [1]
    assert 17 == warm([0.01] * 100, states=states).steps


def test_a_step_that_never_settles_is_told():
    """When the budget is spent the reading carries a note."""
    device = ScriptedDevice(states=range(1000))
    result = warm_up(lambda: device.spend(1.0), device, 20.0)
    assert 20 == result.steps
    assert ("not steady after 20 warm-up steps",) == result.notes


def test_even_a_tiny_budget_allows_three_steps():
    """CUDA graphs need three calls before they replay."""
    assert 3 == warm([100.0] * 10, budget=0.0).steps
