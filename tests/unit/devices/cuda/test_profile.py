"""The profile after the window: kernel time from intervals, synchronisations from torch's warnings."""

import warnings
from types import SimpleNamespace

import pytest

from perfsuite.devices import profiler
from perfsuite.devices.cuda.profile import analyse, syncs
from perfsuite.devices.profiler import Interval
from perfsuite.records import Insight


def kernel(start, end, name="gemm", number=0):
    return Interval(name, start, end, is_on_device=True, id=number)


RANGE = Interval(profiler.RANGE, 0, 100, is_on_device=False)


@pytest.mark.parametrize(
    ("spans", "expected"),
    [
        ([], 0),
        ([(0, 10)], 10),
        ([(0, 10), (5, 15)], 15),
        ([(0, 10), (2, 4), (20, 30)], 20),
        ([(20, 30), (0, 10)], 20),
        ([(-10, 5), (95, 200)], 10),
        ([(200, 300)], 0),
    ],
)
def test_overlapping_kernels_are_counted_once(spans, expected):
    """Two streams at once are not 200 %, and what lies outside the range is cut off."""
    intervals = [RANGE, kernel(40, 41), *(kernel(*span) for span in spans)]
    assert pytest.approx((expected + 1) / 100) == analyse(intervals, 1, 1e-4).figures["kernel_busy"]


def test_kernel_figures_leave_copies_and_ranges_out():
    """Copies and fills are not kernels; a graph's kernels share the id of their only launch."""
    intervals = [
        RANGE,
        kernel(0, 30, number=7),
        kernel(20, 50, number=8),
        kernel(50, 60, number=8),
        kernel(70, 90, "Memcpy HtoD (Pinned -> Device)", number=9),
        kernel(90, 95, "Memset (Device)", number=10),
        Interval("aten::mm", 0, 50, False, 7),
    ]
    figures = {"kernel_busy": 0.6, "kernels": 1.5, "launches": 1.0, "memsets": 0.5}
    figures |= {"syncs": 0, "blocking_copies": 0, "d2d_copies": 0}
    assert figures == pytest.approx(dict(analyse(intervals, 2, 5e-5).figures))


@pytest.mark.parametrize(
    "intervals", [[], [RANGE], [RANGE, Interval("aten::mm", 0, 1, False)], [kernel(0, 1)]]
)
def test_without_kernels_nothing_is_reported(intervals):
    """A profiler that records no CUDA kernels gives no figure instead of 0."""
    assert Insight() == analyse(intervals, 1, 1e-4)


def test_synchronisations_are_counted_and_the_detector_is_put_back():
    """Also after a step that raises, and without swallowing other warnings' count."""
    modes = []
    torch = SimpleNamespace(
        cuda=SimpleNamespace(
            get_sync_debug_mode=lambda: 0, set_sync_debug_mode=modes.append, synchronize=lambda index: None
        )
    )

    def step():
        for text in ("called a synchronizing CUDA operation", "something else") * 2:
            warnings.warn(text, stacklevel=1)

    lines = syncs(torch, 0, step)
    assert 2 == len(lines)
    assert all(line.startswith(f"{__file__}:") for line in lines)
    with pytest.raises(ZeroDivisionError):
        syncs(torch, 0, lambda: 1 / 0)
    assert ["warn", 0, "warn", 0] == modes
