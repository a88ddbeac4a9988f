"""Shares from profiled intervals of a GPU: what ran, and for every gap what the host did; scripted traces."""

import pytest

from perfsuite.devices.cuda.profile import analyse
from perfsuite.devices.profiler import RANGE, Interval


def host(name, start, end, number=0):
    return Interval(name, start, end, False, number)


def device(name, start, end, number=0):
    return Interval(name, start, end, True, number)


def launch(number, at):
    # Kineto has no name for a call that is newer than itself, such as CUDA 13's launch.
    return Interval("INVALID", at, at + 1, False, number, is_call=True)


def shares(*intervals, length=100):
    return analyse([host(RANGE, 0, length), *intervals], 1, 1e-6 * length).shares


def test_a_gap_before_a_late_launch_is_a_launch_gap():
    """The device had nothing queued: the host was too slow."""
    spent = shares(launch(1, 0), device("k", 10, 40, 1), launch(2, 55), device("k", 60, 100, 2))
    assert {"kernels": 0.7, "launch_gaps": 0.3} == pytest.approx({k: v for k, v in spent.items() if v})


def test_a_gap_whose_kernel_was_queued_before_is_other():
    """The host was early enough; what the device waited for is not visible."""
    spent = shares(launch(1, 0), launch(2, 2), device("k", 0, 40, 1), device("k", 60, 100, 2))
    assert {"kernels": 0.8, "other": 0.2} == pytest.approx({k: v for k, v in spent.items() if v})


def test_a_gap_after_a_wait_for_the_device_is_the_syncs():
    """The host waited until everything was done and only then launched again."""
    spent = shares(
        launch(1, 0),
        device("k", 0, 50, 1),
        host("cudaStreamSynchronize", 5, 52),
        launch(2, 70),
        device("k", 75, 100, 2),
    )
    assert {"kernels": 0.75, "sync_waits": 0.25} == pytest.approx({k: v for k, v in spent.items() if v})


def test_an_operator_with_the_number_of_a_launch_is_none():
    """Operators and calls are numbered independently: only the call says when the kernel was launched."""
    spent = shares(
        launch(1, 0),
        device("k", 0, 40, 1),
        launch(2, 2),
        host("aten::mm", 55, 58, 2),
        device("k", 60, 100, 2),
    )
    assert {"kernels": 0.8, "other": 0.2} == pytest.approx({k: v for k, v in spent.items() if v})


def test_loader_and_allocator_take_their_part_of_a_gap():
    """By the time the host spent in them while the device was idle."""
    spent = shares(
        launch(1, 0),
        device("k", 0, 20, 1),
        host("enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__", 10, 50),
        host("cudaMalloc", 50, 60),
        launch(2, 60),
        device("k", 70, 100, 2),
    )
    expected = {"kernels": 0.5, "data_wait": 0.3, "allocator": 0.1, "launch_gaps": 0.1}
    assert expected == pytest.approx({k: v for k, v in spent.items() if v})


def test_copies_and_the_optimizers_kernels_have_shares_of_their_own():
    """A kernel belongs to the optimizer by the launch that shares its id."""
    spent = shares(
        device("Memcpy HtoD (Pageable -> Device)", 0, 10, 7),
        launch(1, 0),
        device("k", 10, 50, 1),
        host("Optimizer.step#Adam.step", 20, 40),
        launch(2, 30),
        device("k", 50, 90, 2),
        device("Memcpy DtoH (Device -> Pageable)", 90, 100, 8),
    )
    expected = {"transfer": 0.1, "kernels": 0.4, "optimizer": 0.4, "sync_waits": 0.1}
    assert expected == pytest.approx({k: v for k, v in spent.items() if v})


def test_overlapping_streams_are_counted_once_and_all_adds_up():
    """Two kernels at a time count as one time span."""
    spent = shares(launch(1, 0), launch(2, 0), device("k", 0, 60, 1), device("k", 30, 80, 2))
    assert {"kernels": 0.8, "other": 0.2} == pytest.approx({k: v for k, v in spent.items() if v})
    assert pytest.approx(1) == sum(spent.values())


def test_pageable_copies_are_known_by_the_profilers_word_for_them():
    """And counted per step."""
    copies = [
        device(f"Memcpy HtoD ({kind} -> Device)", i, i + 1) for i, kind in enumerate(["Pageable", "Pinned"])
    ]
    clues = analyse([host(RANGE, 0, 100), *copies, launch(1, 0), device("k", 10, 13, 1)], 2, 5e-5).clues
    assert (1.0, 0.5) == (clues["copies_per_step"], clues["pageable_copies"])
    assert pytest.approx(3e-6) == clues["kernel_seconds"]


@pytest.mark.parametrize("slower", [1, 2, 5])
def test_a_profiler_that_slows_the_host_changes_no_share(slower):
    """Two kernels of 20 µs in a timed step of 100 µs, whose gaps the profiler makes longer."""
    at = 60 * slower - 20
    intervals = [
        host(RANGE, 0, 2 * at + 40),
        launch(1, at - 1),
        device("k", at, at + 20, 1),
        launch(2, 2 * at + 18),
        device("k", 2 * at + 20, 2 * at + 40, 2),
    ]
    found = analyse(intervals, 1, 100e-6)
    assert 0.4 == pytest.approx(found.figures["kernel_busy"])
    assert {"kernels": 0.4, "launch_gaps": 0.6} == pytest.approx({k: v for k, v in found.shares.items() if v})


def test_kernels_longer_than_the_timed_step_fill_it():
    """Clocks that fell while the profiler ran give at most 100 %."""
    found = analyse([host(RANGE, 0, 100), launch(1, 0), device("k", 10, 90, 1)], 1, 40e-6)
    assert (1.0, 1.0) == (found.figures["kernel_busy"], found.shares["kernels"])


COPIES = {
    "to pageable": "Memcpy DtoH (Device -> Pageable)",
    "to pinned": "Memcpy DtoH (Device -> Pinned)",
    "from pageable": "Memcpy HtoD (Pageable -> Device)",
    "from pinned": "Memcpy HtoD (Pinned -> Device)",
    "within": "Memcpy DtoD (Device -> Device)",
    "kernel": "gemm",
}


@pytest.mark.parametrize(
    ("calls", "waits", "blocking"),
    [
        (["cudaDeviceSynchronize"], 1, 0),
        (["cudaStreamSynchronize"], 1, 0),
        (["cudaEventSynchronize"], 1, 0),
        (["hipDeviceSynchronize"], 1, 0),
        (["cudaStreamWaitEvent", "cudaEventRecord"], 0, 0),
        (["from pinned"], 0, 0),
        (["from pinned", "cudaStreamSynchronize"], 1, 1),
        (["from pinned", "kernel", "cudaStreamSynchronize"], 1, 0),
        (["from pinned", "cudaEventSynchronize"], 1, 0),
        (["from pageable"], 0, 1),
        (["from pageable", "cudaStreamSynchronize"], 1, 1),
        (["to pageable"], 1, 1),
        (["to pageable", "cudaStreamSynchronize"], 1, 1),
        (["to pageable", "cudaDeviceSynchronize"], 2, 1),
        (["to pageable", "cudaStreamSynchronize", "cudaStreamSynchronize"], 2, 1),
        (["to pinned", "cudaStreamSynchronize"], 1, 1),
        (["within", "cudaStreamSynchronize"], 1, 0),
    ],
    ids=lambda value: " then ".join(value) if isinstance(value, list) else str(value),
)
def test_waits_are_the_calls_that_wait_and_copies_to_pageable_memory(calls, waits, blocking):
    """One wait of the profile's own ends the range, and what lies behind it belongs to no step."""
    intervals = [host(RANGE, 0, 100), device("k", 0, 1, 99)]
    for number, name in enumerate([*calls, "cudaDeviceSynchronize"], 1):
        is_work = name in COPIES
        intervals.append(
            Interval("cudaMemcpyAsync" if is_work else name, number, number, False, number, True)
        )
        if is_work:
            intervals.append(device(COPIES[name], number, number + 1, number))
    intervals.append(Interval("cudaDeviceSynchronize", 101, 102, False, 98, True))
    found = analyse(intervals, 1, 1e-4).figures
    assert (waits, blocking) == (found["syncs"], found["blocking_copies"])


def test_without_kernels_nothing_is_claimed():
    """A profiler that records no device gives no shares."""
    assert {} == shares(host("aten::add", 0, 10))


class Moment(float):
    """A time that counts how often it is compared."""

    compared = 0

    def __lt__(self, other):
        Moment.compared += 1
        return float(self) < other

    def __le__(self, other):
        Moment.compared += 1
        return float(self) <= other

    def __gt__(self, other):
        Moment.compared += 1
        return float(self) > other

    def __ge__(self, other):
        Moment.compared += 1
        return float(self) >= other


def comparisons(kernels):
    """Return how many times are compared for a step with that many kernels, all with a gap before them."""
    intervals = [host(RANGE, Moment(0), Moment(10 * kernels))]
    for number in range(kernels):
        at = 10 * number
        call = launch(number, Moment(at))
        intervals += [
            call._replace(end=Moment(at + 1)),
            host("enumerate(DataLoader)#_SingleProcessDataLoaderIter", Moment(at + 2), Moment(at + 3)),
            host("cudaMalloc", Moment(at + 3), Moment(at + 4)),
            call._replace(
                name="cudaStreamSynchronize", start=Moment(at + 4), end=Moment(at + 5), id=kernels + at
            ),
            host("Optimizer.step#SGD.step", Moment(at), Moment(at + 1)),
            device("k", Moment(at + 6), Moment(at + 9), number),
        ]
    intervals.append(intervals[1]._replace(name="cudaDeviceSynchronize", start=Moment(10 * kernels)))
    Moment.compared = 0
    found = analyse(intervals, 1, 1e-5 * kernels)
    assert (kernels, kernels) == (found.figures["kernels"], found.figures["syncs"])
    return Moment.compared


def test_twice_as_many_kernels_take_twice_the_work():
    """Steps of 100,000 kernels exist: nothing may be compared with everything."""
    assert comparisons(4_000) < 2.5 * comparisons(2_000)
