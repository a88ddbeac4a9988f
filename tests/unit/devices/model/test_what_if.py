"""A modelled step played again, removing one cause after the other: each share is what it would gain."""

import pytest

from perfsuite.devices.code_lines import Place
from perfsuite.devices.kernels import Copy, Kernel, KernelKind, Launch, OptimizerMark, Sync
from perfsuite.devices.model.cards import find_card
from perfsuite.devices.model.timeline import Timeline
from perfsuite.devices.model.what_if import resident_seconds, what_if

CARD = find_card("a10", None)
HERE = Place("train.py step: loss.item()", 7)
BIG = Launch(
    Kernel("mm", KernelKind.LINEAR, 2e10, 10**7, 10**7, "float32", problem=(1, 2048, 2048, 2048)), HERE
)
SMALL = Launch(Kernel("add", KernelKind.ELEMENTWISE, 0, 1000, 1000, "float32"), HERE)
SYNC = Sync("item", HERE)


def shares(*events):
    return what_if([list(events)] * 3, CARD).shares


def test_large_kernels_are_all_there_is():
    """The host runs ahead and nothing else shows."""
    assert shares(*[BIG] * 10)["kernels"] > 0.99


def test_many_small_kernels_leave_gaps():
    """Each ends before the next is launched."""
    values = shares(*[SMALL] * 100)
    assert values["launch_gaps"] > 0.6
    assert pytest.approx(1) == sum(values.values())


def test_a_sync_costs_what_the_step_would_gain_without_it():
    """Not only the gap after it: the launches that follow come late, too."""
    mixed = [*[SMALL] * 20, *[BIG] * 2]
    assert 0 == shares(*mixed)["sync_waits"]
    with_sync = shares(*mixed, SYNC)
    before, after = (resident_seconds([list(events)] * 3, CARD) for events in (mixed, [*mixed, SYNC]))
    assert pytest.approx((after - before) / after) == with_sync["sync_waits"]
    assert with_sync["sync_waits"] > 0.02


def test_a_copy_that_blocks_is_the_transfers():
    """From pageable memory, large, and before everything else; with its line."""
    copy = Copy("h2d", 64 * 2**20, False, True, HERE)
    insight = what_if([[copy, *[SMALL] * 5]] * 3, CARD)
    assert insight.shares["transfer"] > 0.9
    assert 64 * 2**20 == insight.clues["pageable_bytes"]
    assert "train.py:7 in step: loss.item()" == insight.clues["copy_place"]


def test_what_lies_between_the_marks_is_the_optimizers():
    """And only that."""
    inside = [OptimizerMark(True), BIG, OptimizerMark(False)]
    assert pytest.approx(0.25, abs=0.01) == shares(*[BIG] * 3, *inside)["optimizer"]


def test_a_loop_is_known_by_its_repeated_kernel():
    """The same kernel from the same line, many times per step."""
    insight = what_if([[*[SMALL] * 60, BIG]] * 3, CARD)
    assert (60, "train.py:7 in step: loss.item()") == (
        insight.clues["repeated_kernel_count"],
        insight.clues["repeated_kernel_place"],
    )


def test_a_huge_step_is_split_by_its_gaps(monkeypatch):
    """It is not played again: each gap goes to what the host did last before it."""
    monkeypatch.setattr("perfsuite.devices.model.what_if._HUGE_EVENTS", 50)
    timeline = Timeline(CARD)
    events = [*[SMALL] * 60, SYNC]
    timeline.play(events)
    timeline.play(events)
    values = what_if([events, events], CARD, timeline.result()).shares
    assert values["launch_gaps"] > 0.5
    assert values["sync_waits"] > 0
    assert pytest.approx(1) == sum(values.values())


def test_nothing_to_play_gives_no_shares():
    """A step without events has no shares."""
    assert {} == what_if([[]], CARD).shares


def test_what_happens_in_the_third_step_has_its_share():
    """Steps that are alike are played twice; one that differs must not be left out."""
    waiting = what_if([[BIG], [BIG], [BIG, SYNC, BIG]], CARD)
    assert waiting.clues["syncs"] == pytest.approx(1 / 3)
    assert 0 < waiting.shares["sync_waits"]
