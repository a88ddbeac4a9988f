"""Judging: exact at the bound, one-sided, and never green for what was not measured."""

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfsuite.judge.verdicts import judge, judge_misplaced, judge_unmeasured
from perfsuite.metrics import METRICS
from perfsuite.records import Limit, Outcome
from tests.readings import changed, make_reading

READING = make_reading("step", "step", "cpu", 10, 3, 100, 1.0, (0.1,) * 10)
FINITE = st.floats(min_value=1e-9, max_value=1e12)


def outcome(metric, value, bound, reference=None, kind="step"):
    reading = replace(READING.with_figures(**{metric: value}), kind=kind)
    return [v.outcome for v in judge(reading, [Limit(METRICS[metric], bound, "test", reference)])]


@pytest.mark.parametrize(
    ("metric", "value", "bound", "expected"),
    [
        ("samples_per_s", 100.0, 100.0, Outcome.PASSED),
        ("samples_per_s", math.nextafter(100.0, 0), 100.0, Outcome.MISSED),
        ("samples_per_s", math.nextafter(100.0, 200), 100.0, Outcome.PASSED),
        ("peak_memory_bytes", 4096, 4096, Outcome.PASSED),
        ("peak_memory_bytes", 4097, 4096, Outcome.MISSED),
        ("peak_memory_bytes", 4095, 4096, Outcome.PASSED),
        ("utilization", None, 0.5, Outcome.UNMEASURED),
        ("utilization", math.nan, 0.5, Outcome.UNMEASURED),
        ("samples_per_s", math.inf, 1.0, Outcome.UNMEASURED),
        ("peak_memory_bytes", -1.0, 1.0, Outcome.UNMEASURED),
    ],
)
def test_limits_hold_exactly_at_their_bound(metric, value, bound, expected):
    """The bound itself passes, the next number on the wrong side does not, nothing is not a number."""
    assert [expected] == outcome(metric.removesuffix("_bytes"), value, bound)


@pytest.mark.parametrize(
    ("value", "expected"),
    [(0.1, Outcome.PASSED), (0.11, Outcome.PASSED), (0.12, Outcome.MISSED), (0.08, Outcome.IMPROVED)],
)
def test_a_baseline_is_missed_kept_or_beaten(value, expected):
    """An improvement beyond the tolerance is told as such and is no failure."""
    assert [expected] == outcome("step_time", value, 0.11, reference=0.1)
    assert expected.is_failure is (expected is Outcome.MISSED)


def test_a_claim_is_judged_by_its_cautious_end_and_a_loss_by_the_figure():
    """min_speedup must be proven by the interval; a stored speed-up is compared by the median."""
    reading = changed(READING, kind="comparison", speedup=1.4, speedup_low=1.2, speedup_high=1.6)
    asked = judge(reading, [Limit(METRICS["speedup"], 1.3, "the perf marker")])
    stored = judge(reading, [Limit(METRICS["speedup"], 1.3, "the baseline", reference=1.44)])
    assert [Outcome.MISSED, Outcome.PASSED] == [asked[0].outcome, stored[0].outcome]


def test_a_reading_is_gated_by_its_own_timing_only():
    """A step by its median, a loop by its samples/s: one timing each, never both."""
    stored = [
        Limit(METRICS["samples_per_s"], 90, "the baseline", reference=100),
        Limit(METRICS["step_time"], 0.11, "the baseline", reference=0.1),
    ]
    slow = changed(READING, samples_per_s=1.0, step_seconds=9.0)
    gated = {
        kind: [v.limit.metric.name for v in judge(replace(slow, kind=kind), stored)]
        for kind in ("step", "loop")
    }
    assert {"step": ["step_time"], "loop": ["samples_per_s"]} == gated


def test_a_limit_no_reading_can_carry_fails():
    """Asking for data wait and measuring only a step is a failure that says what to call."""
    limit = Limit(METRICS["data_wait"], 0.05, "the perf marker")
    assert () == judge(READING, [limit])
    (verdict,) = judge_unmeasured([READING], [limit])
    assert Outcome.UNMEASURED is verdict.outcome
    assert "perf.loop" in verdict.reason


@pytest.mark.parametrize(
    ("metric", "kind", "able"),
    [
        ("data_wait", "step", "perf.loop"),
        ("speedup", "loop", "perf.compare"),
        ("scaling_efficiency", "step", "perf.scaling"),
    ],
)
def test_a_limit_of_a_call_that_cannot_carry_it_fails(metric, kind, able):
    """It was asked of this very call: another one of the test is no excuse."""
    limit = Limit(METRICS[metric], 0.05, "the perf call")
    (verdict,) = judge_misplaced(replace(READING, kind=kind), [limit, Limit(METRICS["step_time"], 1, "x")])
    assert (Outcome.UNMEASURED, READING.name) == (verdict.outcome, verdict.reading)
    assert f"only {able} measures it" == verdict.reason


def test_a_limit_one_of_two_readings_carries_is_judged_there():
    """A loop beside a step takes the data-wait limit."""
    limit = Limit(METRICS["data_wait"], 0.05, "the perf marker")
    assert () == judge_unmeasured([READING, replace(READING, kind="loop")], [limit])


@given(st.sampled_from(sorted(METRICS)), FINITE, FINITE, FINITE)
def test_worse_never_turns_a_miss_into_a_pass(name, first, second, bound):
    """Whatever is missed stays missed when the figure gets worse."""
    metric = METRICS[name]
    better, worse = (first, second) if metric.is_better(first, second) else (second, first)
    kind = next(iter(metric.kinds))
    if outcome(name, better, bound, kind=kind) == [Outcome.MISSED]:
        assert [Outcome.MISSED] == outcome(name, worse, bound, kind=kind)


@given(st.sampled_from(["step_time", "samples_per_s"]), FINITE, FINITE, st.floats(0, 0.9))
def test_nothing_is_improved_and_missed(name, value, reference, tolerance):
    """Improved values lie on the good side of the reference."""
    metric = METRICS[name]
    bound = reference * (1 - tolerance if metric.higher_is_better else 1 + tolerance)
    kind = next(iter(metric.gated_kinds))
    if outcome(name, value, bound, reference, kind) == [Outcome.IMPROVED]:
        assert not metric.is_better(reference, value)


@pytest.mark.parametrize(
    ("metric", "reason"),
    [
        ("kernel_busy", "left out, the step uses a profiler itself"),
        ("syncs", "left out, the step uses a profiler itself"),
        ("launches", "left out, the step uses a profiler itself"),  # by way of the kernels
        ("idle_stretch", "too short"),
        ("flops", "cpu does not measure it"),
    ],
)
def test_what_is_missing_gives_the_reason_of_what_it_comes_from(metric, reason):
    """A figure of the inspection is missing with it, one of a series with that."""
    notes = ("inspection: left out, the step uses a profiler itself", "utilization: too short")
    (verdict,) = judge(replace(READING, notes=notes), [Limit(METRICS[metric], 1.0, "test")])
    assert (Outcome.UNMEASURED, reason) == (verdict.outcome, verdict.reason)
