"""Shares from profiled intervals of a GPU: what ran, and for every gap what the host did; scripted traces."""

import pytest

from perfsuite.devices.cuda.profile import kernel_figures, split
from perfsuite.devices.profiler import RANGE, Interval


def host(name, start, end, number=0):
    return Interval(name, start, end, False, number)


def device(name, start, end, number=0):
    return Interval(name, start, end, True, number)


def launch(number, at):
    # Kineto has no name for a call that is newer than itself, such as CUDA 13's launch.
    return Interval("INVALID", at, at + 1, False, number, is_call=True)


def shares(*intervals, length=100):
    return split([host(RANGE, 0, length), *intervals], 1).shares


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
    clues = split([host(RANGE, 0, 100), *copies, launch(1, 0), device("k", 10, 13, 1)], 2).clues
    assert (1.0, 0.5) == (clues["copies_per_step"], clues["pageable_copies"])
    assert pytest.approx(3e-6) == clues["kernel_seconds"]


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
            host("cudaStreamSynchronize", Moment(at + 4), Moment(at + 5)),
            host("Optimizer.step#SGD.step", Moment(at), Moment(at + 1)),
            device("k", Moment(at + 6), Moment(at + 9), number),
        ]
    Moment.compared = 0
    assert split(intervals, 1).shares
    assert kernel_figures(intervals, 1)
    return Moment.compared


def test_twice_as_many_kernels_take_twice_the_work():
    """Steps of 100,000 kernels exist: nothing may be compared with everything."""
    assert comparisons(4_000) < 2.5 * comparisons(2_000)
