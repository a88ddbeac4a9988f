"""Markers and baselines become limits before anything runs."""

from dataclasses import dataclass, field

import pytest

from perfsuite.collect.limits import expect
from perfsuite.collect.markers import parse_limits, parse_markers
from perfsuite.errors import InvalidMarker
from perfsuite.metrics import METRICS, Tolerance
from perfsuite.records import Baseline, CardMatch, Match, Settings, StoredReading


@dataclass
class Mark:
    args: tuple = ()
    kwargs: dict = field(default_factory=dict)


def test_every_metric_has_one_limit_name():
    """Limit names derive from the metrics: min_ where higher is better, max_ where lower is."""
    assert [
        "min_samples_per_s",
        "min_utilization",
        "max_utilization_swing",
        "max_idle_stretch",
        "min_kernel_busy",
        "max_peak_memory",
        "max_step_time",
        "max_data_wait",
        "min_speedup",
        "max_difference",
        "max_rank_skew",
        "min_scaling_efficiency",
        "max_step_in_products",
        "max_step_in_copies",
        "max_step_in_tiny_ops",
        "max_kernels",
        "max_syncs",
        "max_h2d_bytes",
        "max_d2h_bytes",
        "max_blocking_copies",
        "max_d2d_copies",
        "max_memsets",
        "max_flops",
        "max_parameter_memory",
        "max_gradient_memory",
        "max_optimizer_memory",
        "max_activation_memory",
        "max_launches",
        "min_graph_launches",
        "min_graph_nodes",
    ] == [metric.limit_name for metric in METRICS.values()]


def test_limits_and_settings_are_read_in_human_units():
    """A marker's values arrive as plain numbers, settings apart from limits."""
    marked = parse_markers(
        [Mark(kwargs={"min_utilization": "85 %", "max_peak_memory": "12 GiB", "tolerance": "5 %"})]
    )
    assert [("utilization", 0.85), ("peak_memory", 12 * 2**30)] == [
        (limit.metric.name, limit.bound) for limit in marked.limits
    ]
    assert {"tolerance": 0.05} == marked.settings


def test_the_closest_marker_wins():
    """A function's marker overrides its class's, argument by argument."""
    marked = parse_markers(
        [Mark(kwargs={"min_samples_per_s": 10}), Mark(kwargs={"min_samples_per_s": 5, "max_step_time": 1})]
    )
    assert {"samples_per_s": 10, "step_time": 1} == {
        limit.metric.name: limit.bound for limit in marked.limits
    }


@pytest.mark.parametrize(
    ("mark", "told"),
    [
        (Mark(args=(85,)), "named arguments only"),
        (Mark(kwargs={"min_utilisation": "85 %"}), "did you mean 'min_utilization'"),
        (Mark(kwargs={"max_samples_per_s": 1}), "unknown argument 'max_samples_per_s'"),
        (Mark(kwargs={"min_utilization": 85}), "min_utilization: 85 is more than the whole"),
        (Mark(kwargs={"tolerance": "a lot"}), "tolerance: 'a lot' is not a share"),
        (Mark(kwargs={"device": 3}), "device: 3 is not a str"),
        (Mark(kwargs={"strict": "yes"}), "strict: 'yes' is not a bool"),
    ],
)
def test_wrong_markers_are_refused(mark, told):
    """Each mistake is named."""
    with pytest.raises(InvalidMarker) as refused:
        parse_markers([mark])
    assert told in str(refused.value)


def test_all_mistakes_are_told_at_once_with_the_known_names():
    """Two mistakes need one run to be found, and the remedy stands beside them."""
    with pytest.raises(InvalidMarker) as refused:
        parse_limits({"speed": 1, "min_speedup": "no"}, "a test")
    assert "unknown argument 'speed'" in str(refused.value)
    assert "min_speedup: 'no' is not a ratio" in str(refused.value)
    assert "min_samples_per_s, min_utilization" in str(refused.value)


def bounds(stored, match=Match.EXACT, settings=None, tolerances=None):
    baseline = Baseline(match, readings={name: StoredReading(values) for name, values in stored.items()})
    expectation = expect((), settings or Settings(), baseline, tolerances or {})
    return {
        reading: {limit.metric.name: limit.bound for limit in limits}
        for reading, limits in expectation.by_reading.items()
    }


def test_a_baseline_becomes_limits_with_the_metrics_tolerance():
    """Timings may fall behind by 10 %, memory by 0.5 %; utilization is not gated."""
    stored = {"step": {"step_time": 0.1, "peak_memory": 1000.0, "utilization": 0.5}}
    assert {"step": {"step_time": pytest.approx(0.11), "peak_memory": 1005.0}} == bounds(stored)


def test_the_markers_tolerance_replaces_the_metrics():
    """tolerance is for timings, memory_tolerance for memory."""
    stored = {"step": {"step_time": 0.1, "peak_memory": 1000.0}}
    settings = Settings(tolerance=0.5, memory_tolerance=0.2)
    assert {"step": {"step_time": pytest.approx(0.15), "peak_memory": 1200.0}} == bounds(
        stored, settings=settings
    )


def test_a_device_with_coarse_memory_widens_the_bound():
    """A device's own tolerance, with its absolute floor, stands in for the metric's."""
    tolerances = {"peak_memory": Tolerance(0.1, 500.0)}
    assert {"step": {"peak_memory": 1500.0}} == bounds(
        {"step": {"peak_memory": 1000.0}}, tolerances=tolerances
    )


@pytest.mark.parametrize("match", [Match.NEAR, Match.NONE])
def test_only_an_exact_match_gates(match):
    """Another torch or another card is told, never judged by."""
    assert {} == bounds({"step": {"step_time": 0.1}}, match=match)


def test_times_of_a_device_that_compares_none_are_neither_limits_nor_known():
    """Neither of one session nor of several, nor shares and rounds: nobody can show them beside others."""
    sessions = {name: [value] * 5 for name, value in (("step_time", 0.1), ("peak_memory", 1000.0))}
    values = {"step_time": 0.1, "samples_per_s": 10.0, "speedup": 2.0, "peak_memory": 1000.0, "kernels": 7.0}
    stored = StoredReading(values, sessions, shares={"kernels": 1.0}, rounds=(0.1,), launched={"gemm": 7.0})
    baseline = Baseline(Match.EXACT, readings={"step": stored})
    expectation = expect((), Settings(tolerance=0.1), baseline, {}, compares_times=False)
    assert {"peak_memory", "kernels"} == {one.metric.name for one in expectation.by_reading["step"]}
    left = StoredReading({"peak_memory": 1000.0, "kernels": 7.0}, launched={"gemm": 7.0})
    assert left == expectation.baseline.of("step")


STEADY = [0.1, 0.1001, 0.0999, 0.1, 0.1]


def gate(card, *, others=(), requested=None):
    """Return how far a step may fall behind a baseline of five steady sessions."""
    stored = {"step": StoredReading({"step_time": 0.1}, {"step_time": STEADY})}
    cards = tuple({"step": StoredReading(sessions={"step_time": [0.1 * by] * 5})} for by in others)
    baseline = Baseline(Match.EXACT, readings=stored, card=card, cards=cards)
    (limit,) = expect((), Settings(tolerance=requested), baseline, {}).by_reading["step"]
    assert limit.bound == pytest.approx(limit.reference * (1 + limit.tolerance))
    return limit.reference, limit.tolerance


@pytest.mark.parametrize(
    ("card", "requested", "expected"),
    [
        (CardMatch.SAME, None, 0.02),
        (CardMatch.SAME, 0.01, 0.01),
        (CardMatch.UNKNOWN, None, 0.05),  # as before cards were told apart
        (CardMatch.UNKNOWN, 0.3, 0.3),
        (CardMatch.OTHER, None, 0.10),
        (CardMatch.OTHER, 0.02, 0.10),  # a card is what it is, whatever the user wishes
        (CardMatch.OTHER, 0.3, 0.3),
    ],
)
def test_the_same_card_gates_tighter_than_another(card, requested, expected):
    """2 % on the card itself, 10 % on another of its kind."""
    assert (pytest.approx(0.1, rel=1e-3), expected) == gate(card, requested=requested)


@pytest.mark.parametrize(
    ("others", "reference", "expected"),
    [
        ((0.99, 1.01), 0.1, 0.10),  # two cards do not show how much cards differ
        ((0.99, 1.0, 1.01), 0.1, 0.084),
        ((0.98, 0.99, 1.0, 1.01, 1.02), 0.1, 0.067),
        ((1.0,) * 10, 0.1, 0.02),
        ((1.1,) * 10, 0.11, 0.02),  # the typical card is the reference, not the first one
    ],
)
def test_several_cards_show_how_much_cards_differ(others, reference, expected):
    """The margin is the 99 % bound of one more card; never below the same card's floor."""
    found = gate(CardMatch.OTHER, others=others)
    assert (pytest.approx(reference, rel=1e-3), pytest.approx(expected, abs=0.002)) == found


def test_without_sessions_another_card_has_its_margin_too():
    """A marker's tolerance of 1 % is for the card it was measured on."""
    stored = {"step": StoredReading({"step_time": 0.1, "peak_memory": 1000.0})}
    for card, expected in ((CardMatch.SAME, 0.101), (CardMatch.OTHER, 0.11)):
        baseline = Baseline(Match.EXACT, readings=stored, card=card)
        timing, memory = expect((), Settings(tolerance=0.01), baseline, {}).by_reading["step"]
        assert (pytest.approx(expected), 1005.0) == (timing.bound, memory.bound)
