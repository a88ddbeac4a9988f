"""What requests of torch's allocator cost a window: steps and time, and when it still counts."""

from types import SimpleNamespace

import pytest

from perfsuite.devices.cuda.allocations import AllocationWatch, Block, cost

ALLOC, RETRY = "num_device_alloc", "num_alloc_retries"


class Run:
    """A scripted run of steps: some of them let the allocator's counters grow."""

    def __init__(self):
        self.clock, self.reads = 0.0, 0
        self.counts = {ALLOC: 7, RETRY: 1}
        torch = SimpleNamespace(cuda=SimpleNamespace(memory_stats_as_nested_dict=self.read))
        self.watch = AllocationWatch(torch, 0, lambda: self.clock)
        self.seconds = []

    def read(self, index):
        self.reads += 1
        return dict(self.counts)

    def steps(self, count, seconds, **growth):
        for _ in range(count):
            self.clock += seconds
            for name, by in growth.items():
                self.counts[name] += by
            self.seconds.append(seconds)
            self.watch.after_step(len(self.seconds))

    def check(self):
        self.watch.end_block(len(self.seconds))
        return self.watch.check(self.seconds)


def test_many_requests_in_one_step_cost_one_step():
    """A longer batch than all before asks for several blocks at once."""
    run = Run()
    run.steps(60, 0.1)
    run.steps(1, 0.11, num_device_alloc=9)
    run.steps(39, 0.1)
    notes, invalid = run.check()
    assert () == invalid
    assert ["9 times in the measured part, in at most 1.0 % of the steps"] == [
        note.removeprefix("the allocator requested memory from the driver ") for note in notes
    ]


def test_a_single_request_that_took_long_does_not_count():
    """One step in a hundred, but a tenth of the time."""
    run = Run()
    run.steps(99, 0.1)
    run.steps(1, 1.2, num_alloc_retries=1)
    notes, (reason,) = run.check()
    assert () == notes
    assert (
        "retried 1 time in the measured part: it cost 1 % of the steps and 10 % of the time, more than 5 %"
        in reason
    )


def test_longer_batches_that_allocate_lose_no_time_by_being_longer():
    """Their time is compared with that of other long batches, not with the typical one."""
    blocks = [Block(i, i + 1, {ALLOC: int(i % 25 == 0)}) for i in range(100)]
    seconds = [0.2 if i % 5 == 0 else 0.1 for i in range(100)]
    assert (0.04, pytest.approx(0.0)) == cost(blocks, ALLOC, seconds)


def test_an_allocator_that_asks_in_every_step_does_not_count():
    """Its steps are not those of a training that has warmed up."""
    run = Run()
    run.steps(30, 0.1, num_device_alloc=1)
    _, (reason,) = run.check()
    assert "30 times in the measured part: it cost 100 % of the steps" in reason


def test_short_steps_do_not_pay_for_the_watch():
    """The counters are read twenty times a second at most, and requests in between are counted as steps."""
    run = Run()
    run.steps(1000, 0.001)
    run.steps(2, 0.001, num_device_alloc=1)
    run.steps(998, 0.001)
    before = run.reads
    notes, invalid = run.check()
    assert 30 < before <= 41
    assert () == invalid
    assert notes[0].endswith("2 times in the measured part, in at most 0.1 % of the steps")


@pytest.mark.parametrize(("name", "counts"), [(ALLOC, True), (RETRY, False)])
def test_without_marked_steps_only_retries_do_not_count(name, counts):
    """What a request cost a window of another clock is unknown; a retry empties the card."""
    run = Run()
    run.counts[name] += 1
    notes, invalid = run.check()
    assert (1, 0) == (len(notes), len(invalid)) if counts else (0, 1) == (len(notes), len(invalid))
