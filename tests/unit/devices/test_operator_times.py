"""Operators of a step on the CPU: counted by their line, without those of the optimizer."""

import itertools
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from perfsuite import host
from perfsuite.devices import operator_times
from perfsuite.devices.operator_times import OpWatch, inspect_step, operator_lines
from perfsuite.devices.torch_access import around_optimizers
from tests.unit.engine_thread import in_engine_thread
from tests.unit.scripted_clock import Clock

HERE = Path(__file__).parent


def test_operators_are_counted_by_the_line_that_calls_them():
    """Views launch nothing and do not count."""
    ones = torch.ones(4, 4)
    with OpWatch(HERE) as watch:
        for _ in range(5):
            (ones + 1).view(16)
    assert 5 == watch.count
    ((_, place),) = watch.calls
    assert place.label.endswith(
        "in test_operators_are_counted_by_the_line_that_calls_them: (ones + 1).view(16)"
    )


def test_a_gradients_operators_belong_to_the_forward_line():
    """The backward pass runs elsewhere, but its operators come from the forward line."""
    weight = torch.ones(4, requires_grad=True)
    with OpWatch(HERE) as watch:
        product = weight * 2.0
        product.sum().backward()
    lines = {place.label.rpartition(": ")[2] for _, place in watch.calls}
    assert {"product = weight * 2.0", "product.sum().backward()"} == lines


def test_a_loop_is_counted_by_the_calls_it_has():
    """Accumulated gradients occur more often than any call in the code."""
    weight = torch.ones(4, requires_grad=True)

    def step():
        sum((weight * 2.0).t() * weight.t() for _ in range(20)).sum().backward()

    _, clues = operator_lines(step, HERE)
    assert 40.0 == clues["repeated_kernel_count"]
    assert "sum((weight * 2.0)" in clues["repeated_kernel_place"]


def test_gradients_without_a_line_of_python_below_them_do_no_harm():
    """A GPU's gradients run in a thread of autograd: no Python frame, and for some not even a line."""
    weight = torch.ones(4, 4, requires_grad=True)
    weight.grad = torch.zeros(4, 4)

    def step():
        first, second = (weight * 2.0).chunk(2)
        in_engine_thread((first * second).sum().backward)  # a view's gradient, and one added to another

    with OpWatch(HERE) as watch:
        step()
    lines = {place.label.rpartition(": ")[2] for _, place in watch.calls}
    assert "first, second = (weight * 2.0).chunk(2)" in lines
    assert "(no line of the project)" in {place.label for _, place in watch.calls}
    assert operator_lines(step, HERE)[1]["launch_place_count"] > 0


def test_the_optimizers_operators_are_not_counted():
    """Begin and end are reported in pairs."""
    weight = torch.ones(4, requires_grad=True)
    weight.grad = torch.ones(4)
    events = []
    with around_optimizers(lambda: events.append("begin"), lambda: events.append("end")):
        torch.optim.SGD([weight]).step()
    assert ["begin", "end"] == events
    watch = OpWatch(HERE)
    with around_optimizers(watch.begin_optimizer, watch.end_optimizer), watch:
        torch.optim.SGD([weight]).step()
    assert 0 == watch.count


def test_shares_add_up_and_a_step_that_takes_too_long_is_left_alone():
    """Two more steps of a minute each are not worth the time."""
    matrix = torch.ones(64, 64)
    calls = []

    def step():
        calls.append(1)
        return matrix @ matrix

    insight = inspect_step(step, 0.001, HERE)
    assert pytest.approx(1) == sum(insight.shares.values())
    assert 5 == len(calls)
    assert {} == inspect_step(step, 60.0, HERE).shares
    assert 5 == len(calls)


def test_a_step_without_operators_is_other():
    """Python alone."""
    assert {"other": 1.0} == {
        name: share for name, share in inspect_step(lambda: None, 1e-6, HERE).shares.items() if share
    }


def test_syncs_are_named_though_they_cost_a_cpu_nothing():
    """They matter once the training moves to a GPU."""
    value = torch.ones(1)
    insight = inspect_step(lambda: value.item(), 1e-6, HERE)
    assert 1.0 == insight.clues["syncs"]
    assert "value.item()" in insight.clues["sync_place"]


def test_memory_fetched_from_the_system_in_every_step_is_the_allocators():
    """Counted by page, so that it is not mistaken for slow Python or for work."""

    def step():
        # 256 MiB: more than any hole that other tests may leave, so returned to the system each time
        return torch.empty(2**26).fill_(1.0)

    kept = step()
    shares = inspect_step(step, 0.01, HERE).shares
    assert shares["allocator"] > 0.2
    assert inspect_step(lambda: kept.fill_(1.0), 0.01, HERE).shares["allocator"] < shares["allocator"] / 4


@pytest.fixture
def crowded(monkeypatch, tmp_path):
    """A scripted clock on which other processes have the cores for three quarters of the time."""
    clock = Clock()
    monkeypatch.setattr(host, "time", clock)
    monkeypatch.setattr(host, "queued_seconds", lambda: 0.75 * clock.wall)
    monkeypatch.setattr(operator_times, "time", clock)
    return clock


def test_time_of_other_processes_is_not_the_steps(crowded):
    """Time the system counts as waiting for a core is left out, also from the optimizer's time."""

    class Slow(torch.optim.SGD):
        def step(self, closure=None):
            crowded.wall += 4.0

    optimizer = Slow([torch.ones(1, requires_grad=True)])

    def step():
        optimizer.step()
        crowded.wall += 4.0

    bare = operator_times.bare_step(step, steps=1)
    assert (2.0, 1.0) == (bare.seconds, bare.optimizer)


class SlowProducts(TorchDispatchMode):
    """Every product takes four seconds of the clock."""

    def __init__(self, clock):
        super().__init__()
        self._clock = clock

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func is torch.ops.aten.mul.Tensor:
            self._clock.wall += 4.0
        return func(*args, **(kwargs or {}))


def test_time_of_other_processes_is_not_the_operators(crowded):
    """Otherwise half a step of Python would look like a step of operators only."""
    ones = torch.ones(1)

    def step():
        ones * ones
        crowded.wall += 4.0

    with SlowProducts(crowded):
        shares = inspect_step(step, 0.01, HERE).shares
    assert (0.5, 0.5) == (shares["kernels"], shares["other"])


def test_time_of_other_processes_is_not_a_cost_of_a_page(monkeypatch):
    """Touched in one second and released in another, three quarters of which went to other processes."""
    wall, queued = itertools.cycle([0.0, 1.0]), itertools.cycle([0.0, 0.75])
    clock = SimpleNamespace(perf_counter=lambda: next(wall), thread_time=lambda: 0.0)
    monkeypatch.setattr(host, "time", clock)
    monkeypatch.setattr(host, "queued_seconds", lambda: next(queued))
    assert (0.25 / 1024, 0.25 / 1024) == operator_times.page_costs()


def test_a_compiled_step_is_profiled_as_written():
    """Dynamo must not compile the watch itself: it would warn, which is an error here."""
    import torch._dynamo

    torch.compiler.reset()
    compiled = torch.compile(lambda x: torch.relu(x) + 1.0, backend="eager")
    ones = torch.ones(8)
    compiled(ones)
    graphs = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    insight = inspect_step(lambda: compiled(ones), 1e-3, HERE)
    assert 2.0 == insight.clues["kernels_per_step"]
    assert graphs == torch._dynamo.utils.counters["stats"]["unique_graphs"]
