"""Time is credited to the innermost stage, and all of it to some stage."""

import pytest

from tests.perf.stages import Stages


class Clock:
    """A clock that moves when it is told to."""

    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now

    def spend(self, seconds):
        self.now += seconds


def test_a_step_is_split_into_its_stages_without_rest():
    """What happens inside another stage is taken from it; the time before the first batch is none's."""
    clock = Clock()
    stages = Stages(clock)
    clock.spend(50)  # building the model

    def batches():
        for _ in range(2):
            clock.spend(1)
            yield "batch"

    def step(_):
        clock.spend(0.5)
        stages.timed("transfer", clock.spend)(2)
        stages.timed("forward", clock.spend)(4)
        stages.timed("backward", clock.spend)(8)
        stages.timed("optimizer", clock.spend)(3)

    for batch in stages.wrap_loader(batches()):
        stages.wrap_step(step)(batch)
        clock.spend(0.25)  # the log
    expected = {
        "loader": 2, "transfer": 4, "forward": 8, "backward": 16, "optimizer": 6, "logging": 0.5, "other": 1,
    }  # fmt: skip
    assert expected == dict(stages.seconds)
    assert 1 == pytest.approx(sum(stages.shares.values()))
    assert list(stages.shares) == list(expected)


def test_an_error_in_a_stage_is_credited_and_ends_it():
    """A failing step leaves no stage open."""
    clock = Clock()
    stages = Stages(clock)

    def fails():
        clock.spend(1)
        raise ZeroDivisionError

    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            stages.timed("forward", fails)()
        clock.spend(3)
    assert {"forward": 2, "logging": 3} == dict(stages.seconds)
