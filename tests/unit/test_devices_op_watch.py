"""Operators of a CPU's step: counted, named by their line, and the optimizer's left to it."""

from pathlib import Path

import pytest
import torch

from perfsuite.devices.op_watch import OpWatch, look_into
from perfsuite.devices.optimizer_marks import around_optimizers

HERE = Path(__file__).parent


def test_operators_are_counted_by_the_line_that_calls_them():
    """Views launch nothing and do not count."""
    ones = torch.ones(4, 4)
    with OpWatch(HERE) as watch:
        for _ in range(5):
            (ones + 1).view(16)
    assert 5 == watch.count
    ((_, place),) = watch.calls
    assert place.told.endswith(
        "in test_operators_are_counted_by_the_line_that_calls_them: (ones + 1).view(16)"
    )


def test_a_gradients_operators_belong_to_the_forward_line():
    """Backward runs elsewhere; what it does was written here."""
    weight = torch.ones(4, requires_grad=True)
    with OpWatch(HERE) as watch:
        product = weight * 2.0
        product.sum().backward()
    lines = {place.told.rpartition(": ")[2] for _, place in watch.calls}
    assert {"product = weight * 2.0", "product.sum().backward()"} == lines


def test_the_optimizers_operators_are_its_own():
    """And its marks come in pairs."""
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
    """Two more steps of a minute are not worth what they tell."""
    matrix = torch.ones(64, 64)
    calls = []

    def step():
        calls.append(1)
        return matrix @ matrix

    seen = look_into(step, 0.001, HERE)
    assert pytest.approx(1) == sum(seen.shares.values())
    assert 5 == len(calls)
    assert {} == look_into(step, 60.0, HERE).shares
    assert 5 == len(calls)


def test_a_step_without_operators_is_other():
    """Python alone."""
    assert {"other": 1.0} == {
        name: share for name, share in look_into(lambda: None, 1e-6, HERE).shares.items() if share
    }


def test_syncs_are_named_though_they_cost_a_cpu_nothing():
    """For whoever moves the training to a GPU."""
    value = torch.ones(1)
    seen = look_into(lambda: value.item(), 1e-6, HERE)
    assert 1.0 == seen.clues["syncs"]
    assert "value.item()" in seen.clues["sync_place"]


def test_memory_fetched_from_the_system_in_every_step_is_the_allocators():
    """Counted page by page, so that it is not taken for slow Python or for work."""

    def step():
        return torch.empty(2**24).fill_(1.0)  # 64 MiB: given back to the system each time

    kept = step()
    shares = look_into(step, 0.01, HERE).shares
    assert shares["allocator"] > 0.2
    assert look_into(lambda: kept.fill_(1.0), 0.01, HERE).shares["allocator"] < shares["allocator"] / 4


def test_a_compiled_step_is_looked_at_as_written():
    """Dynamo must not compile the watch itself: it says so by a warning, which is an error here."""
    import torch._dynamo

    torch.compiler.reset()
    compiled = torch.compile(lambda x: torch.relu(x) + 1.0, backend="eager")
    ones = torch.ones(8)
    compiled(ones)
    graphs = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    seen = look_into(lambda: compiled(ones), 1e-3, HERE)
    assert 2.0 == seen.clues["kernels_per_step"]
    assert graphs == torch._dynamo.utils.counters["stats"]["unique_graphs"]
