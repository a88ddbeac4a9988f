"""The commands that produce the modelled GPU's documented figures, in sizes a test can afford."""

import dataclasses
import json
import subprocess
import sys

import pytest
import torch

from benchmarks import cpu_as_card
from benchmarks.modelled_full_size import count
from benchmarks.trainings import Size, social_xlstm
from perfsuite.devices.model import calibrate, workloads
from perfsuite.devices.model.cards import Card
from perfsuite.statistics import ratio_interval

SIZE = Size(detectors=5, width=16, blocks=4, windows=2)


@pytest.mark.slow
def test_the_loop_launches_and_syncs_once_for_every_detector():
    """Kernels and syncs of the encoder grow with the detectors, the work does not; so the card goes idle."""
    loop, shared = count("per_vd", SIZE), count("shared", SIZE)
    assert (12 * 2 * SIZE.detectors, 12 * 2) == (loop.counts["syncs"], shared.counts["syncs"])
    assert 4 < loop.counts["kernels"] / shared.counts["kernels"] < 5.5
    assert loop.counts["flops"] == shared.counts["flops"]
    assert loop.step_seconds > 4 * shared.step_seconds
    assert loop.modelled
    assert shared.modelled


@pytest.mark.slow
def test_the_command_prints_what_each_variant_took():
    """Both variants, each from a separate process, with CPU time and memory next to the goal."""
    sizes = [f"--{name}={value}" for name, value in dataclasses.asdict(SIZE).items()]
    command = [sys.executable, "-m", "benchmarks.modelled_full_size", *sizes]
    ran = subprocess.run(command, capture_output=True, text=True, check=True)
    loop, shared, goal = ran.stdout.splitlines()[-3:]
    assert loop.startswith("| one encoder per detector, in a loop |")
    assert f" | {12 * 2 * SIZE.detectors} | " in loop
    assert shared.startswith("| one shared encoder |")
    assert " s of CPU time (goal 120), " in goal
    assert json.dumps(dataclasses.asdict(SIZE)).replace('"', "'") in ran.stdout


class Clock:
    """A clock that only advances when a step says so."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now

    def step(self, *seconds):
        """Return a step that takes these seconds in turn, then always the last."""
        left = list(seconds)

        def run():
            self.now += left.pop(0) if len(left) > 1 else left[0]

        return run


def test_steps_take_turns_and_short_ones_are_run_several_times():
    """The first step of a turn is not timed; the second decides how many steps a turn has."""
    clock = Clock()
    long = clock.step(9.0, 1.0, 9.0, 1.0, 9.0, 2.0, 9.0, 3.0)
    short = clock.step(9.0, 0.05, 9.0, 0.01, 0.03, 9.0, 0.05, 0.05, 9.0, 0.01, 0.01)
    times = cpu_as_card.measure({"long": long, "short": short}, 3, clock)
    assert [1.0, 2.0, 3.0] == times["long"]
    assert [0.02, 0.05, 0.01] == pytest.approx(times["short"])


def test_a_prediction_is_compared_with_the_median_and_orders_are_reported():
    """The error is a share of the measured time; a pair in the wrong order is named."""
    card = Card("cpu", "CPU", 1e9, 1e9, 1, 1e9, "", is_host=True, curves={"add": ((1.0, 2.0),)})
    card = dataclasses.replace(card, dispatch_seconds=0.0)
    x = torch.ones(())

    def adds(count):
        return lambda: [x + x for _ in range(count)]

    (slow, fast), *_ = cpu_as_card.ORDERS
    assert 6 * cpu_as_card.predict(adds(1), card) == pytest.approx(cpu_as_card.predict(adds(6), card))
    steps = {slow: adds(1), fast: adds(2)}
    one = cpu_as_card.predict(adds(1), card)
    found = cpu_as_card.compare(steps, {slow: [one, 2 * one, 9 * one], fast: [one] * 3}, card)
    assert [-0.5, 1.0] == pytest.approx([entry.error for entry in found])
    others = [cpu_as_card.Found(title, 1.0, 2.0 - i) for pair in cpu_as_card.ORDERS[1:]
              for i, title in enumerate(pair)]  # fmt: skip
    assert [f"{slow} / {fast}"] == cpu_as_card.wrong_orders([*found, *others])


@pytest.fixture
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.slow
def test_this_processor_as_a_card_puts_variants_in_their_order(one_thread, monkeypatch):
    """Calibrated briefly, it still predicts which is faster, as pairs of measured steps show."""
    monkeypatch.setattr(calibrate, "_PASSES", 1)
    monkeypatch.setattr(calibrate, "_BATCHES", 3)
    monkeypatch.setattr(calibrate, "_BATCH_SECONDS", 1e-3)
    monkeypatch.setattr(workloads, "SIZES", workloads.SIZES[:3])
    card = calibrate.calibrate_cpu("here")
    size = Size(detectors=6, width=64, blocks=4, windows=4)
    steps = {encoder: social_xlstm(encoder, size, "cpu") for encoder in ("per_vd", "shared")}
    times = cpu_as_card.measure(steps, 9)
    _, low, _ = ratio_interval(list(zip(times["per_vd"], times["shared"], strict=True)))
    found = cpu_as_card.compare(steps, times, card)
    loop, shared = (entry.predicted for entry in found)
    assert low > 1, "the loop is the slower one in every pair, or this machine measures nothing"
    assert loop > 1.2 * shared
