"""Invalid readings: by themselves, and by conditions that differ from the baseline's."""

from dataclasses import replace

import pytest

from perfsuite.judge.validity import CONDITIONS, crowded, differing, faults, remarks
from perfsuite.records import Baseline, CardMatch, Match, StoredReading
from tests.readings import make_reading

READING = make_reading("step", "step", "cuda:0", 10, 3, 10, 1.0, (0.1,) * 10)


@pytest.mark.parametrize(
    ("name", "stored", "now", "differs"),
    [
        ("sm_clock_mhz", 1400.0, 1470.0, False),
        ("sm_clock_mhz", 1400.0, 1471.0, True),
        ("sm_clock_mhz", 1400.0, 1329.0, True),
        ("memory_clock_mhz", 1000.0, 1051.0, True),
        ("max_sm_clock_mhz", 1695.0, 1695.0, False),
        ("max_sm_clock_mhz", 1695.0, 1410.0, True),
        ("power_limit_watts", 150.0, 151.0, False),
        ("power_limit_watts", 150.0, 148.9, True),
        ("power_cap_share", 0.4, 0.9, False),
        ("power_cap_share", 0.4, 0.91, True),
        ("mig", 0.0, 1.0, True),
        ("sm_clock_moved_mhz", 0.0, 300.0, False),
    ],
)
def test_conditions_may_differ_as_far_as_the_table_says(name, stored, now, differs):
    """Clocks by 5 %, the power limit by a watt; how much a clock moved is reported, but not required."""
    assert differs is bool(list(differing({name: now}, {name: stored})))


@pytest.mark.parametrize("name", CONDITIONS)
def test_a_condition_known_on_one_side_only_is_no_difference(name):
    """An older baseline, or a driver that no longer reports a condition, can still be compared."""
    assert [] == [*differing({name: 1.0}, {}), *differing({}, {name: 1.0})]


def test_the_reason_says_both_figures():
    """Measured first, then what it was."""
    ((_, text),) = differing({"power_limit_watts": 120.0}, {"power_limit_watts": 150.0})
    assert "the power limit is 120 W, the baseline was taken at 150 W" == text


def test_both_variants_of_a_comparison_must_count_and_each_reason_is_given_once():
    """A slow variant that was throttled makes a fine speed-up."""
    reading = replace(READING, invalid=("hot",), without=replace(READING, invalid=("hot", "shared")))
    assert ("hot", "shared") == faults(reading, Baseline())


SLOW, FAST = {"sm_clock_mhz": 1200.0}, {"sm_clock_mhz": 1400.0}


@pytest.mark.parametrize(
    ("kind", "now", "stored", "counts"),
    [
        ("step", SLOW, FAST, False),
        ("step", {**SLOW, "power_cap_share": 0.01}, {**FAST, "power_cap_share": 0.01}, False),
        ("step", {**SLOW, "power_cap_share": 0.011}, FAST, True),
        ("step", FAST, {**SLOW, "power_cap_share": 0.9}, True),
        ("comparison", SLOW, FAST, True),
        ("step", {"power_cap_share": 0.0}, {"power_cap_share": 0.9}, True),
        ("step", {"power_limit_watts": 120.0, "power_cap_share": 1.0}, {"power_limit_watts": 150.0}, False),
        ("comparison", {"power_limit_watts": 120.0}, {"power_limit_watts": 150.0}, False),
    ],
)
def test_clocks_at_the_power_limit_are_noted_and_excuse_nothing(kind, now, stored, counts):
    """They follow the load, and so the change under test; a limit that was set is a circumstance."""
    baseline = Baseline(Match.EXACT, readings={"step": StoredReading(conditions=stored)})
    reading = replace(READING, kind=kind, conditions=now)
    reasons, notes = faults(reading, baseline), remarks(reading, baseline)
    assert (0, 1) == (len(reasons), len(notes)) if counts else (1, 0) == (len(reasons), len(notes))
    assert all("the baseline was taken at" in text for text in (*reasons, *notes))


@pytest.mark.parametrize(("count", "words"), [(1, "of another card of"), (3, "of 3 other cards of")])
def test_another_cards_baseline_is_noted_and_its_clock_may_differ(count, words):
    """Cards of one kind boost differently; the limits that were set must still agree."""
    stored = {"step": StoredReading(conditions={**FAST, "power_limit_watts": 150.0})}
    baseline = Baseline(Match.EXACT, readings=stored, card=CardMatch.OTHER, cards=(stored,) * count)
    reading = replace(READING, conditions={**SLOW, "power_limit_watts": 120.0})
    clock, card = remarks(reading, baseline)
    assert clock.endswith("(it is another card)")
    assert words in card
    assert 1 == len(faults(reading, baseline))


@pytest.mark.parametrize(
    ("queued", "changes", "is_crowded"),
    [
        (0.2, {}, False),
        (0.21, {}, True),
        (0.9, {"kind": "comparison"}, False),  # both variants suffer alike
        (0.9, {"ranks": ({}, {})}, False),
        (0.9, {"workers": 2.0}, False),
        (0.9, {"workers": 0.0, "kind": "loop"}, True),
        (None, {}, False),
    ],
)
def test_a_time_that_others_had_the_cores_for_is_no_base_for_a_comparison(queued, changes, is_crowded):
    """Above a fifth of the time; not if the other processes belong to the measurement."""
    reported = {} if queued is None else {"queued_seconds": queued}
    if "workers" in changes:
        reported["num_workers"] = changes.pop("workers")
    told = crowded(replace(READING, device="cpu", reported=reported, **changes))
    assert is_crowded is bool(told)
    assert not is_crowded or told[0].startswith(f"other processes had the cores for {100 * queued:.0f} %")
