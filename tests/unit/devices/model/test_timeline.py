"""The timeline: the host runs ahead, a sync stops it, a copy delays kernels, a loader starves them."""

import pytest

from perfsuite.devices.code_lines import UNKNOWN
from perfsuite.devices.kernels import VIEW, Copy, HostWork, Kernel, KernelKind, Launch, Sync
from perfsuite.devices.model.cards import Card
from perfsuite.devices.model.loader import LoaderCosts, LoaderSchedule
from perfsuite.devices.model.timeline import Timeline, utilization_series

# A byte a second, a second a launch: the figures below are whole numbers.
CARD = Card(
    "card", "Card", 1.0, 1.0, 1, 1e9, "a test",
    dispatch_seconds=1.0, launch_seconds=1.0, sync_seconds=0.0, kernel_seconds=0.0, bandwidth_share=1.0,
    pcie_bandwidth=1.0,
)  # fmt: skip


def kernel(seconds):
    return Launch(Kernel("op", KernelKind.ELEMENTWISE, 0.0, seconds, 0, "float32"), UNKNOWN)


def played(*steps, card=CARD, wait=None):
    timeline = Timeline(card)
    for events in steps:
        timeline.play(events, wait)
    return timeline.result()


SYNC = Sync("item", UNKNOWN)


@pytest.mark.parametrize(
    ("events", "end", "busy"),
    [
        ([kernel(10)], 12, 10),
        ([kernel(10), kernel(10)], 22, 20),  # enqueued while the first runs
        ([kernel(1), kernel(1)], 5, 2),  # launch-bound: two seconds for each kernel of one
        ([kernel(10), SYNC, kernel(10)], 24, 20),  # the host starts anew at 12
        ([VIEW, VIEW, kernel(10)], 13, 10),
        ([HostWork("add", 0, UNKNOWN), kernel(10)], 13, 10),
    ],
)
def test_the_device_waits_for_the_host_and_the_host_at_syncs(events, end, busy):
    """Step time and busy share follow from the order alone."""
    result = played(events)
    assert end == pytest.approx(result.seconds, rel=1e-6)
    assert busy / end == pytest.approx(result.busy_share, rel=1e-6)
    assert end - busy == pytest.approx(sum(result.gaps.values()), rel=1e-6)


def test_a_gap_has_a_cause():
    """Launches, syncs and copies are distinguished."""
    launch = played([kernel(1), kernel(1)]).gaps
    assert launch["launch"] > 0
    assert 0 == launch["sync"]
    assert 2 == pytest.approx(played([kernel(10), SYNC, kernel(10)]).gaps["sync"])


def test_a_pageable_copy_blocks_and_a_pinned_one_overlaps():
    """The same bytes cost the host nothing when they are pinned and copied without blocking."""
    pageable = [Copy("h2d", 10, False, True, UNKNOWN), HostWork("x", 0, UNKNOWN), kernel(1)]
    pinned = [Copy("h2d", 10, True, False, UNKNOWN), HostWork("x", 0, UNKNOWN), kernel(1)]
    assert played(pageable).seconds > 10 / 0.45 + 3
    assert 10 / 0.85 + 1 == pytest.approx(played(pinned).seconds, rel=1e-3)


@pytest.mark.parametrize("direction", ["h2d", "d2h"])
@pytest.mark.parametrize(("pinned", "share"), [(True, 0.85), (False, 0.45)])
def test_a_copy_keeps_the_order_of_its_stream(direction, pinned, share):
    """It starts when earlier kernels are done, later ones wait for it; if pinned, the host goes on."""
    copy = Copy(direction, 10, pinned, not pinned, UNKNOWN)
    result = played([kernel(30), copy, kernel(30)])
    took = 10 / share
    launched = 0 if pinned else 2  # the host comes back and needs two seconds for the second kernel
    assert 2 + 30 + took + launched + 30 == pytest.approx(result.seconds, rel=1e-3)
    assert took + launched == pytest.approx(result.gaps["copy"], rel=1e-3)


def test_steps_run_into_each_other():
    """The first step's kernels hide the second step's launches."""
    ends = played([kernel(10)], [kernel(10)]).step_ends
    assert (12, 22) == pytest.approx(ends)


def test_the_queue_is_finite():
    """The host cannot run ahead for ever: it waits when it is 1,024 kernels ahead of the device."""
    requests = []
    played([kernel(10)] * 1500, [kernel(10)], wait=lambda now: requests.append(now) or now)
    assert (1500 - 1024) * 10 < requests[1] < 1500 * 10


def test_the_series_shows_the_swing():
    """Busy, idle, busy: as a sampler would read it."""
    events = [kernel(10), SYNC, *[HostWork("x", 0, UNKNOWN)] * 8, kernel(10)]
    assert [0.8, 0.2, 0.8] == pytest.approx(
        [round(v, 1) for v in utilization_series(played(events), 32 / 3)], abs=0.1
    )
    assert [] == utilization_series(played(), 1.0)


@pytest.mark.parametrize(
    ("costs", "requested_every", "expected"),
    [
        (LoaderCosts(2.0), 5, [2, 2, 2]),  # no workers: the step always waits
        (LoaderCosts(2.0, workers=1, prefetch=2), 5, [2, 0, 0]),  # prefetched while the step runs
        (LoaderCosts(4.0, workers=1, prefetch=2), 1, [4, 3, 3]),  # starved
        (LoaderCosts(4.0, workers=4, prefetch=2), 1, [4, 0, 0]),  # four at once
        (LoaderCosts(1.0, workers=2, prefetch=1, worker_start_seconds=3.0), 5, [4, 0, 0]),
        (LoaderCosts(4.0, workers=4, prefetch=2, cores=1), 1, [16, 0, 0]),  # four workers, one core
    ],
)
def test_batches_are_ready_when_workers_had_the_time(costs, requested_every, expected):
    """Waits follow from cost, workers and prefetching."""
    schedule, now, waits = LoaderSchedule(costs), 0.0, []
    for _ in expected:
        ready = schedule(now)
        waits.append(ready - now)
        now = ready + requested_every
    assert expected == pytest.approx(waits)


@pytest.mark.parametrize(("persistent", "expected"), [(False, [4, 0, 4, 0]), (True, [4, 0, 0, 0])])
def test_workers_start_at_every_epoch_unless_they_persist(persistent, expected):
    """A swing with the epoch's period: utilization falls whenever workers restart."""
    costs = LoaderCosts(1.0, 1, 2, persistent, batches_per_epoch=2, worker_start_seconds=3.0)
    schedule, now, waits = LoaderSchedule(costs), 0.0, []
    for _ in expected:
        ready = schedule(now)
        waits.append(ready - now)
        now = ready + 5
    if persistent:
        assert waits[2] < 4
    else:
        assert expected == pytest.approx(waits)


def test_waiting_for_data_is_the_devices_gap():
    """Waiting for data is distinguished from launches."""
    result = played([kernel(1)], [kernel(1)], wait=LoaderSchedule(LoaderCosts(100.0)))
    assert 200 == pytest.approx(result.wait_seconds)
    assert result.gaps["data"] > 190
