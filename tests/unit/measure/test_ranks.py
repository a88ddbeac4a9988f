"""The readings of several ranks as one."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfsuite.diagnose.diagnosis import diagnose
from perfsuite.measure.ranks import join
from perfsuite.report.ranks import summary
from tests.readings import make_reading


def reading(**figures):
    given_ = {
        "name": "step", "kind": "step", "device": "cpu×2", "steps": 10, "warmup_steps": 3, "samples": 80,
        "wall_seconds": 1.0, "rounds": (0.1,) * 10, "samples_per_s": 80.0, "step_seconds": 0.1,
        "utilization": 0.8, "peak_memory_bytes": 100.0,
    }  # fmt: skip
    return make_reading(**{**given_, **figures})


def waiting(share, **figures):
    return reading(clues={"collective_exposed_share": share}, **figures)


def test_samples_add_up_over_the_slowest_ranks_time():
    """160 samples in the two seconds of the slower rank."""
    joint = join([reading(), reading(wall_seconds=2.0)])
    assert (160, 2.0, 80.0) == (joint.samples, joint.wall_seconds, joint.samples_per_s)


@pytest.mark.parametrize(
    ("field", "values", "expected"),
    [
        ("step_seconds", (0.1, 0.3), 0.3),
        ("utilization", (0.9, 0.4), 0.4),
        ("peak_memory_bytes", (10.0, 30.0), 30.0),
        ("data_wait", (0.1, 0.5), 0.5),
        ("data_wait", (0.1, None), None),  # what one rank does not know is known of none
    ],
)
def test_a_limit_on_the_whole_holds_for_the_worst_rank(field, values, expected):
    """Of the slowest, fullest or idlest rank."""
    assert expected == getattr(join([reading(**{field: value}) for value in values]), field)


def test_skew_is_told_by_own_work_not_by_step_times():
    """Steps are equally long on all ranks, because the fast ones wait: 25 against 100 ms of work is 75 %."""
    joint = join([waiting(0.75), waiting(0.0)])
    assert pytest.approx(0.75) == joint.rank_skew
    assert 1.0 == joint.clues["slowest_rank"]
    assert pytest.approx([0.025, 0.1]) == [figures["own_seconds"] for figures in joint.ranks]


@given(st.lists(st.floats(0.0, 0.99), min_size=2, max_size=8))
def test_skew_is_a_share(shares):
    """Whatever the ranks wait."""
    assert 0.0 <= join([waiting(share) for share in shares]).rank_skew < 1.0


def test_notes_say_whose_they_are_unless_all_say_them():
    """Common texts appear once, the others with their rank."""
    joint = join([reading(notes=("alike",)), reading(notes=("alike", "mine"))])
    assert ("alike", "rank 1: mine") == joint.notes


def test_a_straggler_is_named_with_what_sets_it_apart():
    """By its loader, its cores, its clock, or otherwise by its own work."""
    slow_loader = join([waiting(0.5, data_wait=0.0, kind="loop"), waiting(0.0, data_wait=0.4, kind="loop")])
    assert (
        "rank 1 of 2, which waits for its loader 40.0 % of the time" in diagnose(slow_loader).causes[0].title
    )
    kept_away = join([waiting(0.5), waiting(0.0, reported={"queued_seconds": 0.3})])
    assert "which waited for a core 30.0 % of the time" in diagnose(kept_away).likely.title
    clocks = {"reported": {"sm_clock_mhz": 900.0}}, {"reported": {"sm_clock_mhz": 1700.0}}
    throttled = join([waiting(0.0, **clocks[0]), waiting(0.5, **clocks[1])])
    assert "rank 0 of 2, whose card runs at 900 MHz (the others at 1700)" in diagnose(throttled).likely.title
    busy = join([waiting(0.5), waiting(0.0)])
    assert "whose own work takes longer" in diagnose(busy).likely.title


def test_even_ranks_that_wait_for_collectives_are_communication_bound():
    """And no straggler is named where there is none."""
    figures = {"collective_seconds": 0.05, "collective_hidden_share": 0.2}
    shares = {"collectives": 0.4, "kernels": 0.6}
    joint = join([waiting(0.4, shares=shares, reported=figures) for _ in range(2)])
    likely = diagnose(joint).likely
    assert "communication-bound" == likely.name
    assert "collectives 50 ms a step, 20.0 % of it hidden" in likely.evidence


def test_modelled_cards_are_communication_bound_by_their_own_figures():
    """Predicted ones, under their own names."""
    figures = {"modelled_collective_seconds": 0.02, "modelled_collective_hidden_share": 0.1}
    one = reading(
        device="model:4xa10@pcie",
        modelled=True,
        shares={"collectives": 0.5, "kernels": 0.5},
        reported=figures,
    )
    likely = diagnose(one).likely
    assert "communication-bound" == likely.name
    assert "collectives 20 ms a step, 10.0 % of it hidden" in likely.evidence


def test_loaders_that_share_too_few_cores_get_a_number_for_each_rank():
    """Two ranks with four workers each on four cores: one worker for each rank."""
    clues = {"num_workers": 4.0, "cores": 4.0, "collective_exposed_share": 0.0}
    joint = join([reading(kind="loop", data_wait=0.3, clues=clues) for _ in range(2)])
    likely = diagnose(joint).likely
    assert "shared-cores" == likely.name
    assert "Try num_workers=1 a rank (now 4)" in likely.advice


def test_the_summary_tells_what_only_ranks_have():
    """In one line."""
    joint = join([waiting(0.5, reported={"collective_seconds": 0.01, "collective_hidden_share": 0.5})] * 2)
    assert "skew 0.0 %; collectives 10 ms a step, 50.0 % of it hidden" == summary(joint)
