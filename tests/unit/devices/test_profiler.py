"""torch's profiler beside another one: it is noticed, and neither loses its events."""

import pytest
import torch
from torch.profiler import ProfilerActivity, profile, schedule

from perfsuite.devices import profiler
from perfsuite.devices.profiler import OtherProfiler, other_profiler

CPU = [ProfilerActivity.CPU]


def add():
    torch.ones(3).add(1)


def added(other):
    """Return how many additions another profiler recorded."""
    return sum(event.name == "aten::add" for event in other.events())


def profiled(step):
    found = profiler.profile(torch, step, [2], lambda: None, with_device=False)
    return sum(interval.name == "aten::add" for interval in found)


def test_a_step_without_a_profiler_is_profiled():
    """Two steps in a range, of which the warm-up is no part."""
    assert "" == other_profiler(torch, add)
    assert 2 == profiled(add)


def test_a_step_that_profiles_itself_is_noticed_and_left_to_it():
    """Its own profile is whole."""
    recorded = []

    def step():
        with profile(activities=CPU) as own:
            add()
        recorded.append(added(own))

    assert "the step uses a profiler itself" == other_profiler(torch, step)
    assert [1] == recorded


@pytest.mark.parametrize("before", [0, 3, 6], ids=["waiting", "warming up", "recording"])
def test_a_step_that_moves_a_profiler_on_is_noticed_whatever_that_is_doing(before):
    """Profilers with a schedule are made around the steps and moved on in each."""
    with profile(activities=CPU, schedule=schedule(wait=3, warmup=3, active=9)) as around:
        for _ in range(before):
            around.step()

        def step():
            add()
            around.step()

        assert other_profiler(torch, step)


@pytest.mark.parametrize("before", [0, 1], ids=["warming up", "recording"])
def test_a_profiler_around_the_test_is_noticed_and_keeps_its_events(before):
    """Also one that has not begun to record, of which torch says nothing."""
    with profile(activities=CPU, schedule=schedule(wait=0, warmup=1, active=9)) as around:
        for _ in range(before):
            around.step()
        assert "a profiler is active around the test" == other_profiler(torch, add)
        around.step()
        add()
    assert before + 1 == added(around)
    assert "" == other_profiler(torch, add)


def test_a_profiler_that_is_not_at_work_is_not_noticed():
    """One that was never entered, and one that was left while it warmed up: both still exist."""
    waiting = profile(activities=CPU, schedule=schedule(wait=0, warmup=1, active=1))
    with profile(activities=CPU, schedule=schedule(wait=0, warmup=2, active=1)) as left:
        pass
    assert waiting.current_action == left.current_action
    assert "" == other_profiler(torch, add)


def test_a_profiler_that_a_later_step_starts_is_refused():
    """Not in the step that was watched, but under ours: the step stops, and the next profile is whole."""
    steps = []

    def step():
        steps.append(None)
        if len(steps) == 3:
            with profile(activities=CPU):
                add()
        add()

    assert "" == other_profiler(torch, step)
    with pytest.raises(OtherProfiler, match="the step uses a profiler itself"):
        profiled(step)
    assert 3 == len(steps)
    assert 2 == profiled(add)
    with profile(activities=CPU) as own:
        add()
    assert 1 == added(own)
