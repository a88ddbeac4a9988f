"""Messages, table and JSON: measured, expected, by whom, how far off, what to do."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from perfsuite.environment import Environment
from perfsuite.judge.verdicts import judge, judge_unmeasured
from perfsuite.metrics import METRICS
from perfsuite.records import (
    Baseline,
    DeviceFacts,
    Expectation,
    Limit,
    Match,
    Outcome,
    Result,
    StoredReading,
    Verdict,
)
from perfsuite.report import github, machine, terminal
from perfsuite.report.explanation import explanations
from perfsuite.report.messages import failure_text, properties
from perfsuite.report.page import render as render_page
from tests.readings import changed, make_reading

READING = make_reading(
    "step",
    "step",
    "cuda:0",
    100,
    10,
    6400,
    2.0,
    (0.02,) * 100,
    samples_per_s=3200.0,
    step_seconds=0.02,
    utilization=0.61,
    peak_memory_bytes=12.5 * 2**30,
)
MARKER = "the perf marker"


def limit(metric, bound, reference=None):
    return Limit(METRICS[metric], bound, "the baseline" if reference else MARKER, reference)


def baseline(stored, match, before):
    names = {*stored, *before}
    readings = {
        n: StoredReading(stored.get(n, {}), shares=before.get(n, {}).get("shares", {})) for n in names
    }
    return Baseline(match, readings=readings)


def result(
    *limits, reading=READING, stored=None, match=Match.NONE, test="tests/test_a.py::test_b", before=None
):
    verdicts = (*judge(reading, limits), *judge_unmeasured([reading], limits))
    return Result(
        test, Expectation(baseline=baseline(stored or {}, match, before or {})), (reading,), verdicts
    )


@pytest.mark.parametrize(
    ("limits", "reading", "expected"),
    [
        (
            [limit("utilization", 0.85)],
            READING,
            "GPU utilization 61.0 % is below the 85.0 % expected by the perf marker (off by 28 %)",
        ),
        (
            [limit("utilization", 0.85)],
            replace(READING, device="cpu", is_accelerator=False),
            "CPU utilization 61.0 % is below the 85.0 % expected by the perf marker (off by 28 %)",
        ),
        (
            [limit("peak_memory", 12 * 2**30)],
            READING,
            "peak memory 12.5 GiB is above the 12 GiB expected by the perf marker (off by 4 %)",
        ),
        (
            [limit("step_time", 0.0165, reference=0.015)],
            READING,
            "step time 20 ms is 33.3 % above the baseline 15 ms (allowed: 16.5 ms)",
        ),
        (
            [limit("peak_memory", 1)],
            changed(READING, peak_memory_bytes=None),
            "peak memory was not measured, but the perf marker expects at most 1 B: "
            "cuda:0 does not measure it",
        ),
        (
            [limit("utilization", 0.5)],
            changed(READING, utilization=None, notes=("utilization: too short",)),
            "GPU utilization was not measured, but the perf marker expects at least 50.0 %: too short",
        ),
        (
            [limit("data_wait", 0.05)],
            READING,
            "data wait was not measured, but the perf marker expects at most 5.0 %: "
            "the test did not call perf.loop",
        ),
        (
            [limit("speedup", 1.3)],
            changed(READING, kind="comparison", speedup=1.35, speedup_low=1.28, speedup_high=1.42),
            "speed-up 1.35× (proven: 1.28×, 95 % interval to 1.42×) is below the 1.30× "
            "expected by the perf marker (off by 2 %)",
        ),
        (
            [limit("utilization", 0.85)],
            replace(READING, modelled=True),
            "modelled GPU utilization 61.0 % is below the 85.0 % expected by the perf marker (off by 28 %)",
        ),
    ],
)
def test_the_first_line_says_it_all(limits, reading, expected):
    """Measured, expected, by whom, how far off: in one line that stands alone."""
    assert expected == failure_text(result(*limits, reading=reading)).splitlines()[0]


def test_all_failed_limits_are_told_at_once():
    """One run shows both missed limits."""
    text = failure_text(
        result(limit("utilization", 0.85), limit("samples_per_s", 1.0), limit("step_time", 0.001))
    )
    assert 2 == text.count("expected by the perf marker")


def test_a_starved_loop_names_the_loader():
    """The message says where the time went, against the baseline, and what to try."""
    reading = changed(
        READING,
        name="loop",
        kind="loop",
        data_wait=0.41,
        samples_per_s=1412.0,
        shares={"data_wait": 0.41, "kernels": 0.59},
    )
    text = failure_text(
        result(
            limit("samples_per_s", 1500, reference=1557.0),
            reading=reading,
            match=Match.EXACT,
            before={"loop": {"shares": {"data_wait": 0.06, "kernels": 0.94}}},
        )
    )
    assert "samples/s 1,412 is 9.3 % below the baseline 1,557" in text
    assert "data wait 41.0 % (baseline 6.0 %), kernels 59.0 % (baseline 94.0 %)" in text
    assert "likely cause: data-bound: the loader (data wait 41.0 %)" in text
    assert text.endswith("prepared beforehand; more: python -m perfsuite explain data-bound")
    assert "pytest --save-baseline" in text


def test_several_readings_are_told_apart():
    """With two readings every line names its reading."""
    other = replace(READING, name="fp16")
    verdicts = judge(other, [limit("utilization", 0.85)])
    text = failure_text(Result("t", Expectation(), (READING, other), verdicts))
    assert text.startswith("fp16: GPU utilization")


@pytest.mark.parametrize("width", [60, 80, 100, 200])
def test_the_table_fits_the_terminal(width):
    """Every width shows every figure; names are shortened at the front or get a separate line."""
    long = result(limit("utilization", 0.5), test="tests/test_a.py::test_" + "x" * 150)
    lines = [text for text, _ in terminal.table([long, result()], width)]
    assert all(len(line) <= max(width, 70) for line in lines)
    shown = "\n".join(lines)
    for figure in ("3,200", "61.0 %", "12.5 GiB", "20 ms"):
        assert figure in shown


def test_a_predicted_step_is_shown_with_its_error():
    """In the table and on the page; a measured one has none, other figures neither."""
    modelled = replace(READING, modelled=True, reported={"modelled_step_error": 0.124})
    step_time = METRICS["step_time"]
    assert ["20 ms", "20 ms ±12 %"] == [reading.shown(step_time) for reading in (READING, modelled)]
    assert "3,200" == modelled.shown(METRICS["samples_per_s"])
    assert "20 ms ±12 %" in "\n".join(text for text, _ in terminal.table([result(reading=modelled)], 120))
    assert "20 ms ±12 %" in render_page([result(reading=modelled)], {}, "now")


def test_the_table_says_how_speed_moved_whatever_the_metric():
    """− is slower: a step time that doubled is −50 %."""
    slow = result(
        limit("step_time", 0.011, reference=0.01), stored={"step": {"step_time": 0.01}}, match=Match.EXACT
    )
    (*_, row), colour = terminal.table([slow], 120)[-1][0].split(), terminal.table([slow], 120)[-1][1]
    assert "-50.0 %" == terminal.against_baseline(slow, READING)
    assert ("failed", "red") == (row, colour)


def test_what_is_missing_near_or_better_is_told_with_the_command():
    """The closing lines name the exact command."""
    better = Verdict("step", Outcome.IMPROVED, limit("step_time", 0.04, reference=0.036), 0.02)
    improved = Result("t.py::a", Expectation(baseline=Baseline(Match.EXACT)), (READING,), (better,))
    near = Result("t.py::b", Expectation(baseline=Baseline(Match.NEAR, "torch 2.12")), (READING,), ())
    noted = result(reading=replace(READING, notes=("not steady after 9 warm-up steps",)))
    text = "\n".join(
        line for line, _ in terminal.closing([improved, near, noted], "pytest --save-baseline t.py")
    )
    assert "1 test has no baseline for this machine; store one with: pytest --save-baseline t.py" in text
    assert "near baseline, shown but not gated: torch 2.12" in text
    assert "improved beyond the tolerance, baseline kept: t.py::a (step time 36 ms → 20 ms)" in text
    assert "note: test_a.py::test_b: not steady after 9 warm-up steps" in text


def test_junit_gets_every_figure_that_was_measured():
    """Properties carry numbers, and the device; absent figures are absent."""
    found = dict(properties(result()))
    assert 3200.0 == found["perf.samples_per_s"]
    assert "cuda:0" == found["perf.device"]
    assert "perf.data_wait" not in found


ENVIRONMENT = Environment.from_device(DeviceFacts("cuda", "NVIDIA A10", "CUDA events"))


def rendered(*results):
    return machine.render(
        results,
        {"cuda:0": ENVIRONMENT},
        {"tests/test_a.py::test_b": {"size": 3, "obj": object, "nan": float("nan")}},
    )


def test_the_json_has_pytest_benchmarks_shape():
    """The fields that compare and github-action-benchmark read are present, ours are in extra_info."""
    found = json.loads(rendered(result()))
    (entry,) = found["benchmarks"]
    assert {"machine_info", "commit_info", "benchmarks", "datetime", "version"} == set(found)
    assert ("test_b", "tests/test_a.py::test_b") == (entry["name"], entry["fullname"])
    assert 50.0 == pytest.approx(entry["stats"]["ops"])
    assert 100 == entry["stats"]["rounds"]
    assert {"value": 0.61, "unit": "fraction", "higher_is_better": True} == entry["extra_info"]["perfsuite"][
        "metrics"
    ]["utilization"]
    assert {"size": 3, "obj": "<class 'object'>", "nan": "nan"} == entry["params"]


def test_pytest_benchmark_compares_the_file(tmp_path):
    """The real command line of pytest-benchmark reads what we write."""
    for number, steps in ((1, (0.02,) * 9), (2, (0.04,) * 9)):
        path = tmp_path / f"000{number}_run.json"
        path.write_text(rendered(result(reading=replace(READING, rounds=steps))))
    command = Path(sys.executable).parent / "pytest-benchmark"
    ran = subprocess.run(
        [command, "compare", *sorted(map(str, tmp_path.glob("*.json")))],
        capture_output=True,
        text=True,
        check=False,
    )
    assert 0 == ran.returncode, ran.stderr
    assert 2 == ran.stdout.count("test_b ")
    assert "(2.00)" in ran.stdout


def test_statistics_of_one_round_are_finite():
    """A step slower than the budget is one round; nothing divides by zero."""
    found = machine.stats([0.5])
    assert (0.5, 0.0, 2.0) == (found["median"], found["stddev"], found["ops"])


COUNTED = changed(
    READING,
    device="model:a10",
    modelled=True,
    counts={"syncs": 1.0, "kernels": 95.0, "parameter_memory": 2048.0},
    places={"syncs": {"t.py step: loss.item()": 1.0}, "peak_memory": {"t.py step: big": 4096.0}},
    lines={"t.py step: loss.item()": 7},
    shares={"launch_gaps": 0.67, "kernels": 0.30, "sync_waits": 0.03},
    clues={
        "kernels_per_step": 88.0,
        "kernel_seconds": 3e-6,
        "short_kernel_seconds": 1e-5,
        "syncs": 1.0,
        "sync_place": "t.py:7 in step: loss.item()",
    },
)


def test_what_matters_most_comes_first_and_how_to_accept_it_once():
    """Time, counts, peak memory, its parts: one change of a training affects all of them."""
    limits = [
        limit("parameter_memory", 1024.0, reference=1024.0),
        limit("peak_memory", 2**30, reference=2**30),
        limit("kernels", 80.0, reference=80.0),
        limit("step_time", 0.011, reference=0.010),
    ]
    told = failure_text(result(*limits, reading=COUNTED)).splitlines()
    named = [line.split(" is ")[0] for line in told if line.startswith("modelled")]
    assert [
        "modelled step time 20 ms",
        "modelled kernels per step 95",
        "modelled peak memory 12.5 GiB",
        "modelled memory of parameters 2 KiB",
    ] == named
    meant = "  if the slower figures are intended: delete this test's baseline and run pytest --save-baseline"
    assert 1 == told.count(meant)


def test_lines_stand_under_the_figure_they_make_up():
    """Where the peak was allocated says nothing about parameters."""
    told = failure_text(result(limit("parameter_memory", 1024.0), reading=COUNTED))
    assert "big" not in told
    told = failure_text(result(limit("peak_memory", 1024.0), limit("syncs", 0.0), reading=COUNTED))
    assert "1 at t.py:7 in step: loss.item()" in told
    assert "4 KiB at t.py step: big" in told


def test_a_baseline_without_its_times_is_no_reference_anywhere():
    """Neither in the table nor on the page, in GitHub's summary, the JSON or the explanation."""
    times = StoredReading({"step_time": 0.004}, shares={"kernels": 0.9}, rounds=(0.004,))
    known = Baseline(Match.EXACT, readings={"step": times})

    def told(baseline):
        one = replace(result(reading=COUNTED), expectation=Expectation(baseline=baseline))
        written = json.loads(machine.render([one], {COUNTED.device: ENVIRONMENT}, {}))["benchmarks"][0]
        return [
            terminal.table([one], 200)[-1][0],
            github.summary([one]),
            render_page([one], {}, "today").partition("<body")[2],
            written["extra_info"]["perfsuite"]["against_baseline"],
            str(explanations([one])),
        ]

    for text in told(known):
        assert "-80.0 %" in text or "(baseline 90.0 %)" in text
    for text in told(known.without_times()):
        assert "–" in text or "explain" in text
        assert "-80.0 %" not in text
        assert "baseline 90.0 %" not in text
        assert '"stepsBefore": [0.004' not in text


MUL = "void at::native::vectorized_elementwise_kernel<4, at::native::{}<at::MulFunctor<float> > >(int)"
LAUNCHED = replace(
    COUNTED,
    places={"kernels": {"t.py step: a * 2": 3.0, "t.py step: b @ b": 2.0, "t.py step: c": 1.0}},
    lines={"t.py step: a * 2": 40, "t.py step: b @ b": 41, "t.py step: c": 42},
    launched={
        MUL.format("AUnaryFunctor"): {"t.py step: a * 2": 2.0, "t.py step: c": 1.0},
        MUL.format("BinaryFunctor"): {"t.py step: a * 2": 1.0},
        "cublasSgemm": {"t.py step: b @ b": 2.0},
    },
)


def missed_kernels(**stored):
    kept = StoredReading({"kernels": 80.0}, **stored)
    judged = result(limit("kernels", 80.0, reference=80.0), reading=LAUNCHED)
    expected = Expectation(baseline=Baseline(Match.EXACT, readings={"step": kept}))
    return [line.strip() for line in failure_text(replace(judged, expectation=expected)).splitlines()]


def test_a_missed_count_of_kernels_names_those_that_are_more():
    """Instances of a template are one kernel; of its lines the one that has grown; others are not named."""
    before = {"kernels": {"t.py step: b @ b": 2.0, "t.py step: c": 1.0}}
    told = missed_kernels(
        places=before, launched={"vectorized_elementwise_kernel<MulFunctor>": 1.0, "cublasSgemm": 2.0}
    )
    assert [
        "3 more (baseline 0) at t.py:40 in step: a * 2",
        "+3 vectorized_elementwise_kernel<MulFunctor> at t.py:40",
    ] == told[1:3]
    assert not any("cublasSgemm" in line for line in told)


def test_a_baseline_without_kernels_names_none():
    """Nothing is known to be new then."""
    assert not any("MulFunctor" in line for line in missed_kernels())


def test_a_derived_count_that_says_the_same_is_left_out():
    """Launches without a graph are the kernels; with one they are not, and their lines are the kernels'."""
    same = changed(LAUNCHED, counts={"kernels": 95.0, "launches": 95.0})
    limits = limit("kernels", 80.0, reference=80.0), limit("launches", 80.0, reference=80.0)
    assert "launches" not in failure_text(result(*limits, reading=same))
    lost = failure_text(result(limits[0], limit("launches", 1.0, reference=1.0), reading=same))
    assert "modelled launches by the host per step 95 is 9400.0 % above the baseline 1" in lost
    assert 2 == lost.count("3 more (baseline 0) at t.py:40 in step: a * 2")


def test_the_page_has_each_kernel_with_its_lines():
    """The most frequent first."""
    page = render_page([result(reading=LAUNCHED)], {}, "today")
    row = "<tr><th scope=row>{}</th><td>{}</td><td>{}</td></tr>"
    mul = row.format("vectorized_elementwise_kernel&lt;MulFunctor&gt;", 4, "t.py:40 (3), t.py:42 (1)")
    assert mul + row.format("cublasSgemm", 2, "t.py:41 (2)") in page
    assert "kernels by name" not in render_page([result()], {}, "today")


@pytest.mark.parametrize(
    ("missed", "before", "told"),
    [
        ("syncs", {"launch_gaps": 0.678}, "likely cause: host syncs"),
        ("syncs", {"launch_gaps": 0.60, "sync_waits": 0.03}, "likely cause: host syncs"),
        ("kernels", {"launch_gaps": 0.20, "kernels": 0.8}, "likely cause: launch-bound"),
        ("peak_memory", {"launch_gaps": 0.68, "sync_waits": 0.03}, "as before the change: launch-bound"),
        ("peak_memory", {"launch_gaps": 0.68, "sync_waits": 0.0}, "likely cause: host syncs"),
        ("peak_memory", {}, "likely cause: launch-bound"),
    ],
)
def test_the_cause_is_that_of_what_was_missed(missed, before, told):
    """A cause from before the change did not cause it, and is marked as such."""
    failing = result(limit(missed, 0.5, reference=0.5), reading=COUNTED, before={"step": {"shares": before}})
    (line,) = [line for line in failure_text(failing).splitlines() if line.startswith(f"  {told}")]
    assert "88 kernels a step outside the optimizer" in line or "syncs" in line


def test_explanations_repeat_no_failure():
    """A missed limit was explained with its failure; other errors were not."""
    kept, missed = result(limit("syncs", 1.0), reading=COUNTED), result(limit("syncs", 0.0), reading=COUNTED)
    raised = replace(missed, error="ValueError()")
    assert [kept.test] == [name for name, _ in explanations([kept])]
    assert [] == explanations([missed])
    assert [raised.test] == [name for name, _ in explanations([raised])]
