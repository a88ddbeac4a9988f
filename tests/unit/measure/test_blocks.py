"""Blocks: earlier work does not count, and the cost is the figure that the kind of reading is judged by."""

import pytest

from perfsuite.against.pairs import trimmed_mean
from perfsuite.devices.scripted import ScriptedDevice
from perfsuite.measure.blocks import loop_block, pair_block, step_block


def test_a_block_of_steps_is_timed_between_two_waits():
    """Run steps until the time is over; the cost is their mean."""
    device = ScriptedDevice()
    spent = step_block(lambda: device.spend(0.01), device)(0.025)
    assert (0.01, 0.03) == pytest.approx(spent)
    assert ["wait", "wait"] == device.events


def test_a_long_step_is_a_block_of_its_own():
    """One step at least, however short the block."""
    device = ScriptedDevice()
    assert (2.0, 2.0) == step_block(lambda: device.spend(2.0), device)(0.025)


def test_a_block_of_a_loop_costs_by_the_sample():
    """Four samples a batch of 8 ms: 2 ms each."""
    device = ScriptedDevice()
    block = loop_block([[1]] * 3, lambda _: device.spend(0.008), device, 4)
    assert 0.002 == pytest.approx(block(0.1).cost)


def test_batches_that_lie_ready_are_not_counted():
    """Batches prepared while the other version ran cost no waiting and are taken before the clock starts."""

    class Loader:
        num_workers, prefetch_factor = 2, 3

        def __iter__(self):
            return iter([[1]] * 1000)

    device, taken = ScriptedDevice(), []

    def step(batch):
        taken.append(batch)
        device.spend(0.001 if len(taken) <= 6 else 0.01)

    spent = loop_block(Loader(), step, device, 1)(0.0)
    assert 0.01 == pytest.approx(spent.cost)
    assert 6 + 5 * 6 == len(taken)


def test_a_block_of_a_pair_costs_by_the_ratio():
    """With over without: smaller is better, as for every cost."""
    device = ScriptedDevice()
    block = pair_block(lambda: device.spend(0.02), lambda: device.spend(0.005), device)
    assert 0.25 == pytest.approx(block(0.1).cost)


def test_a_hiccup_in_one_turn_does_not_move_the_pair():
    """One turn in twenty may be anything."""
    assert 0.05 == pytest.approx(trimmed_mean([0.05] * 19 + [3.0]))
