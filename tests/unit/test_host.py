"""Counters of the system for a process, and the clock that leaves out waiting for a core."""

import pytest

from perfsuite import host
from perfsuite.devices.model import measurer
from tests.unit.scripted_clock import Clock


@pytest.fixture
def schedstat(monkeypatch, tmp_path):
    """A file in the kernel's format: nanoseconds on a core, nanoseconds waiting for one, time slices."""
    path = tmp_path / "schedstat"
    path.write_text("41434011 2500000000 54\n")
    monkeypatch.setattr(host, "_SCHEDSTAT", path)
    return path


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(host, "time", clock)
    return clock


def test_time_spent_waiting_for_a_core_is_left_out(schedstat, clock):
    """The file's second figure is subtracted from the wall time."""
    with host.Stopwatch() as block:
        clock.wall, clock.cpu = 10.0, 6.0
        schedstat.write_text("41434011 5500000000 54\n")
    assert (10.0, 6.0, 7.0) == (block.wall_seconds, block.cpu_seconds, block.unqueued_seconds)
    assert 0.7 == block.unqueued_share


def test_a_block_has_at_least_the_time_it_computed(schedstat, clock):
    """Waiting just before and after a short block is subtracted too, but never its CPU time."""
    with host.Stopwatch() as block:
        clock.wall, clock.cpu = 0.5, 0.4
        schedstat.write_text("41434011 5500000000 54\n")
    assert 0.4 == block.unqueued_seconds
    assert 0.8 == block.unqueued_share


@pytest.mark.parametrize("text", ["", "12\n", "a b c\n", None])
def test_without_the_counter_it_is_the_wall_time(schedstat, clock, text):
    """No file, or one in another format."""
    schedstat.unlink() if text is None else schedstat.write_text(text)
    assert host.queued_seconds() is None
    with host.Stopwatch() as block:
        clock.wall = 10.0
    assert 10.0 == block.unqueued_seconds


def test_a_batch_for_a_modelled_card_costs_what_it_takes_with_a_core(schedstat, clock):
    """The cheapest of three."""
    costs, queued = [3.0, 1.5, 2.0, 0.5], [2.5]

    class Loader:
        dataset, batch_sampler = list(range(64)), [range(8)] * 4

        @staticmethod
        def collate_fn(samples):
            clock.wall += costs.pop(0)
            queued[0] += 0.25
            schedstat.write_text(f"0 {queued[0] * 1e9:.0f} 1\n")

    assert 1.25 == measurer._timed(Loader())
    assert [0.5] == costs
