"""What the system counts for a process, and the clock that leaves out what others took."""

import pytest

from perfsuite import host as usage
from perfsuite.devices.model import measurer as modelled
from tests.unit.scripted_clock import Clock


@pytest.fixture
def schedstat(monkeypatch, tmp_path):
    """A file in the kernel's form: nanoseconds on a core, nanoseconds ready without one, turns."""
    path = tmp_path / "schedstat"
    path.write_text("41434011 2500000000 54\n")
    monkeypatch.setattr(usage, "_SCHEDSTAT", path)
    return path


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(usage, "time", clock)
    return clock


def test_time_that_others_had_the_cores_is_told_apart(schedstat, clock):
    """The file's second figure is taken off the wall clock."""
    with usage.Stretch() as block:
        clock.wall, clock.cpu = 10.0, 6.0
        schedstat.write_text("41434011 5500000000 54\n")
    assert (10.0, 6.0, 7.0) == (block.wall_seconds, block.cpu_seconds, block.own_seconds)
    assert 0.7 == block.own_share


@pytest.mark.parametrize("text", ["", "12\n", "a b c\n", None])
def test_where_nobody_counts_it_is_the_wall_clock(schedstat, clock, text):
    """No file, or one of another form."""
    schedstat.unlink() if text is None else schedstat.write_text(text)
    assert usage.queued_seconds() is None
    with usage.Stretch() as block:
        clock.wall = 10.0
    assert 10.0 == block.own_seconds


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

    assert 1.25 == modelled._timed(Loader())
    assert [0.5] == costs
