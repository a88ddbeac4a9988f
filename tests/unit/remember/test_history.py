"""History and trend: appended lines, change points with their commit, and an anchor that stays."""

import json
import math
import random

import pytest

from perfsuite.commands.trend import change_points, render, trends
from perfsuite.environment import Environment
from perfsuite.errors import HistoryUnusable
from perfsuite.records import DeviceFacts, Expectation, Result
from perfsuite.remember import history
from tests.readings import make_reading

HERE = Environment.from_device(DeviceFacts("cpu", "Some CPU", "perf_counter", threads=2))
READING = make_reading("step", "step", "cpu", 1, 1, 1, 1.0, (0.1,), step_seconds=0.1, samples_per_s=10.0)


def entries(costs, key="cpu_here", commits=None):
    return [
        {
            "schema": history.SCHEMA,
            "time": f"2026-01-{i + 1:02}",
            "commit": commits[i] if commits else f"c{i:039}",
            "key": key,
            "test": "t.py::test",
            "reading": "step",
            "kind": "step",
            "metrics": {"step_time": cost},
            "invalid": [],
        }
        for i, cost in enumerate(costs)
    ]


(ENTRY,) = entries([0.01])


def noisy(levels, deviation=0.01, seed=2):
    chance = random.Random(seed)
    return [level * math.exp(chance.gauss(0, deviation)) for level in levels]


def test_readings_are_appended_with_commit_and_machine(tmp_path):
    """Two runs, two lines each readable on its own; nothing is rewritten."""
    path = tmp_path / "deep" / "history.jsonl"
    result = Result("t.py::test", Expectation(), (READING,), ())
    assert [1, 1] == [history.append(path, [result], {"cpu": HERE}) for _ in range(2)]
    first, second = history.load(path)
    assert first["metrics"] == second["metrics"] == {"step_time": 0.1, "samples_per_s": 10.0}
    assert HERE.key == first["key"]
    assert {"commit", "dirty", "environment", "modelled"} <= set(first)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("{", "line 1"),
        ('\n{"schema": "x"}', "line 2"),
        ("[]", "line 1"),
        ("1", "line 1"),
        (json.dumps({**ENTRY, "kind": "foo"}), "line 1: its kind is 'foo', not one of step, loop"),
        (json.dumps({**ENTRY, "metrics": {"step_time": "fast"}}), "line 1: its step_time is 'fast', not a"),
        (json.dumps({**ENTRY, "metrics": {"step_time": math.nan}}), "line 1: its step_time is nan"),
        ("[" * 100_000, "line 1: maximum recursion"),
    ],
    ids=range(8),
)
def test_a_line_that_is_no_reading_is_named(tmp_path, text, told):
    """File, line and remedy."""
    path = tmp_path / "h.jsonl"
    path.write_text(text)
    with pytest.raises(HistoryUnusable, match=f"{told}.*remove the line"):
        history.load(path)


def test_a_file_that_is_no_text_is_refused(tmp_path):
    """With the place."""
    (tmp_path / "h.jsonl").write_bytes(b"{\xff}")
    with pytest.raises(HistoryUnusable, match="is not a history file: invalid start byte at byte 1"):
        history.load(tmp_path / "h.jsonl")


def test_a_history_that_is_not_there_says_how_to_write_one(tmp_path):
    """The command that makes it is named."""
    with pytest.raises(HistoryUnusable, match="--perf-history="):
        history.load(tmp_path / "none.jsonl")


def test_a_slowdown_is_found_at_its_commit():
    """Twenty readings, 10 % slower from the eleventh on."""
    (trend,) = trends(entries(noisy([0.01] * 10 + [0.011] * 10), commits=["old"] * 10 + ["new"] * 10))
    (change,) = trend.changes
    assert ("commit new", "commit old") == (change.commit, change.last_before)
    assert 0.10 == pytest.approx(change.slower, abs=0.02)
    assert "slower at commit new (2026-01-11), unchanged until commit old" in render([trend])


def test_what_was_not_committed_is_no_commits_fault():
    """The same commit with and without changes in the working tree."""
    found = entries(noisy([0.01] * 6 + [0.0143] * 6), commits=["one"] * 12)
    found = [{**entry, "dirty": i >= 6} for i, entry in enumerate(found)]
    told = render(trends(found))
    assert "slower at uncommitted changes on one (2026-01-07), unchanged until commit one" in told


@pytest.mark.parametrize(
    ("costs", "told"),
    [
        ([0.01], "step time 10 ms, 1 reading"),
        ([0.01, 0.02], "10 ms at first, 20 ms recently (100.0 % slower since the first), 2 readings"),
        ([0.01] * 6 + [0.0143] * 3, "10 ms at first, 14.3 ms recently (43.0 % slower"),
        ([0.01] * 5 + [0.5] + [0.02] * 5, "10 ms at first, 20 ms recently"),
    ],
)
def test_no_reading_is_both_among_the_first_and_of_late(costs, told):
    """Windows that overlap made a change smaller than it was."""
    assert told in render(trends(entries(costs)))


def test_a_step_is_followed_in_what_is_steadier():
    """On a machine whose speed drifts, rounds of a reference show what seconds hide."""
    drift = [1.0, 1.4, 0.9, 1.3, 1.1, 1.5] * 3
    found = [
        {**entry, "metrics": {"step_time": 0.01 * slow * d, "step_in_tiny_ops": 5.0 * slow}}
        for entry, slow, d in zip(entries([1.0] * 18), [1.0] * 9 + [1.1] * 9, drift, strict=True)
    ]
    (trend,) = trends(found)
    assert "step_in_tiny_ops" == trend.metric.name
    assert 0.1 == pytest.approx(trend.changes[0].slower, abs=0.001)


def test_a_test_without_a_time_does_not_keep_the_others_from_being_told():
    """It has no trend."""
    silent = [{**entry, "test": "t.py::silent", "metrics": {}} for entry in entries([0.01] * 8)]
    assert ["t.py::test"] == [trend.test for trend in trends([*silent, *entries([0.01] * 8)])]


def test_identical_code_has_no_change_point():
    """Fifty histories of noise: none but a stray one has a change of 2 % or more."""
    found = [trends(entries(noisy([0.01] * 28, seed=seed)))[0].changes for seed in range(50)]
    assert 2 >= sum(bool(changes) for changes in found)


def test_many_small_losses_show_against_the_anchor():
    """0.5 % a reading hides in every rolling view; against the first readings it is 20 %."""
    (trend,) = trends(entries([0.01 * 1.005**i for i in range(28)]))
    assert 0.12 == pytest.approx(trend.since_anchor, abs=0.02)


def test_machines_are_never_mixed():
    """A modelled or another machine's reading has a key and a trend of its own."""
    both = entries([0.01] * 6) + entries([0.5] * 6, key="model-a10")
    assert [("cpu_here", ()), ("model-a10", ())] == [(t.key, t.changes) for t in trends(both)]


def test_invalid_readings_say_nothing():
    """What did not count then does not count now."""
    history_ = entries([0.01] * 8)
    history_[4] = {**history_[4], "metrics": {"step_time": 9.0}, "invalid": ["throttled"]}
    assert 7 == trends(history_)[0].readings


def test_too_few_readings_have_no_change_point():
    """Six at least, three a stretch."""
    assert [] == change_points([0.0, 0.0, 1.0, 1.0])
    assert "too few readings: 6 are needed" in render(trends(entries([0.01] * 3)))


def test_an_empty_history_says_what_to_do():
    """Without readings there is nothing to show."""
    assert "--perf-history" in render(trends([]))
    assert json.dumps([]) == json.dumps(trends([]))
