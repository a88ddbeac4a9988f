"""Loops of a contract are measured in turns, the middle turn is judged, and what differs is told."""

from types import SimpleNamespace

import pytest

from tests.perf.contract import Broken, Case
from tests.perf.table import Row
from tests.readings import make_reading


class ScriptedPerf(SimpleNamespace):
    """Answers every loop with the next share of its time spent waiting."""

    def loop(self, loader, step, *, name="", **limits):
        self.asked.append((loader, name, limits))
        return make_reading(name, "loop", "cpu", 10, 1, 40, 1.0, (0.1,) * 10, data_wait=self.waits.pop(0))


def case(*waits):
    perf = ScriptedPerf(waits=list(waits), asked=[], device="cpu", device_name="cpu")
    limits = Row("test_x", "cpu", {"max_data_wait": "40 %", "less": {"data_wait": 1.8}})
    return Case("O9", perf, limits)


def test_arms_alternate_and_only_the_optimized_one_is_limited():
    """Without, with, and again: what slows a machine down for a while reaches both."""
    made = case(0.4, 0.1, 0.4, 0.1, 0.4, 0.1)
    made.loops(without="slow", with_="fast", step=print)
    assert ["slow", "fast"] * 3 == [loader for loader, _, _ in made.perf.asked]
    assert [{}, {"max_data_wait": "40 %"}] * 3 == [limits for _, _, limits in made.perf.asked]
    assert 6 == len({name for _, name, _ in made.perf.asked})


def test_one_disturbed_turn_does_not_decide():
    """In either direction."""
    made = case(0.4, 0.1, 0.3, 0.3, 0.4, 0.2)
    made.loops(without="slow", with_="fast", step=print)
    assert ["data wait 40.0 % → 20.0 %"] == made.figures
    with pytest.raises(Broken, match=r"data_wait 40.0 % → 40.0 % is 1 times less, below the 1.8"):
        case(0.4, 0.4, 0.4, 0.01, 0.4, 0.41).loops(without="slow", with_="fast", step=print)


def test_a_loop_that_never_waits_is_the_best_one():
    """So that the turn in the middle is the one between it and the worst."""
    made = case(0.4, 0.0, 0.4, 0.4, 0.4, 0.2)
    made.loops(without="slow", with_="fast", step=print)
    assert ["data wait 40.0 % → 20.0 %"] == made.figures


def counted(number, syncs, kernels):
    return make_reading(
        number, "step", "model:a10", 1, 1, 1, 1.0, (1.0,), counts={"syncs": syncs, "kernels": kernels}
    )


def test_counts_with_a_limit_are_told_where_the_arms_differ():
    """That is what the optimization is for; what neither arm has is not worth a word."""
    limits = Row("test_x", "model:a10", {"max_syncs": 0, "max_kernels": 9})
    perf = SimpleNamespace(device="cpu", device_name="model:a10")
    made = Case("O18", perf, limits)
    made.ratios(counted("without", syncs=1.0, kernels=7.0), counted("with", syncs=0.0, kernels=7.0))
    assert ["host syncs 1 → 0"] == made.figures
