"""Files for dashboards and GitHub: each figure once, in its direction, modelled ones always marked."""

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

from perfsuite.plugin.ledger import Ledger
from perfsuite.plugin.outputs import annotations, write_outputs
from perfsuite.records import Expectation, Outcome, Result, Verdict
from perfsuite.report import github, machine
from tests.page.pages import ENVIRONMENTS, reading, result
from tests.readings import changed

FAILED, COMPARED, MODELLED = result(0), result(2), result(4)
EVIL = "tests/test_a.py::test_b[a|b`</td>%0A::error::]"


def ledger(**outputs):
    options = SimpleNamespace(outputs=outputs)
    config = SimpleNamespace(rootpath=Path("/nowhere"))
    return Ledger(config, options, environments=dict(ENVIRONMENTS), lines={FAILED.test: 12})


def test_each_figure_is_in_the_list_of_its_direction():
    """customBiggerIsBetter and customSmallerIsBetter, in units a person reads."""
    bigger = json.loads(machine.github_action_benchmark([FAILED], bigger_is_better=True))
    smaller = json.loads(machine.github_action_benchmark([FAILED], bigger_is_better=False))
    assert {"samples/s", "utilization"} == {entry["name"].rpartition(": ")[2] for entry in bigger}
    assert {"step time", "peak memory", "data wait"} == {
        entry["name"].rpartition(": ")[2] for entry in smaller
    }
    step = next(entry for entry in smaller if entry["name"].endswith("step time"))
    assert "ms" == step["unit"]
    assert 27 < step["value"] < 29
    assert step["range"].startswith("± ")
    assert all(set(entry) <= {"name", "unit", "value", "range", "extra"} for entry in bigger + smaller)


def test_bencher_gets_values_with_their_bounds():
    """Benchmark → measure → value, and the interval where there is one."""
    document = json.loads(machine.bencher([FAILED, COMPARED]))
    step = document[FAILED.test]["step-time"]
    assert step["lower_value"] <= step["value"] <= step["upper_value"]
    assert {"value": 3.0, "lower_value": 2.9, "upper_value": 3.1} == document[COMPARED.test]["speedup"]


def test_a_modelled_figure_is_named_so_everywhere():
    """No dashboard draws a prediction into the curve of a measurement."""
    (name,) = json.loads(machine.bencher([MODELLED]))
    assert name.endswith("[modelled]")
    for entry in json.loads(machine.github_action_benchmark([MODELLED], bigger_is_better=True)):
        assert "[modelled]" in entry["name"]
    assert "_modelled_" in github.summary([MODELLED])


def test_an_invalid_measurement_is_exported_nowhere():
    """A throttled card's figure is not a point of a curve."""
    throttled = replace(FAILED, readings=(replace(reading(0), invalid=("throttled",)),))
    assert "[]\n" == machine.github_action_benchmark([throttled], bigger_is_better=True)
    assert "{}\n" == machine.bencher([throttled])
    elsewhere = replace(FAILED, verdicts=(Verdict("loop", Outcome.INVALID, None, reason="other clocks"),))
    assert "{}\n" == machine.bencher([elsewhere])


def test_a_figure_that_is_no_number_does_not_keep_the_others_from_being_exported():
    """Results that are NaN have a difference that is NaN, and JSON has no word for it."""
    strange = replace(COMPARED, readings=(changed(COMPARED.readings[0], difference=float("nan")),))
    assert "speedup" in json.loads(machine.bencher([strange]))[strange.test]


def test_the_summary_has_the_failure_and_its_cause_first():
    """What a reviewer must see is on top, the table below."""
    text = github.summary([COMPARED, FAILED])
    assert "2 tests, 1 failed" in text
    assert text.index("is 28.") < text.index("| | test |")
    assert "likely cause: data-bound" in text
    assert "| ❌ |" in text


def test_a_name_cannot_break_the_summary_or_a_command():
    """Pipes, backticks, tags and line breaks of a test's id stay text."""
    evil = replace(FAILED, test=EVIL)
    (row,) = [line for line in github.summary([evil]).splitlines() if line.startswith("| ❌")]
    assert 6 == row.replace("\\|", "").count("|")
    assert "<td>" not in row
    (line,) = annotations_on(evil)
    assert "\n" not in line
    assert line.startswith(
        "::error file=tests/test_a.py,line=1,title=perf%3A test_b[a|b`</td>%250A%3A%3Aerror%3A%3A]::"
    )


def annotations_on(*results):
    import os

    before = os.environ.get("GITHUB_ACTIONS")
    os.environ["GITHUB_ACTIONS"] = "true"
    try:
        return annotations(ledger(), results)
    finally:
        os.environ.pop("GITHUB_ACTIONS")
        if before is not None:
            os.environ["GITHUB_ACTIONS"] = before


def test_failed_tests_are_annotated_at_their_line():
    """With the whole message; pytest reports errors of the test itself."""
    errors = Result("tests/test_a.py::test_c", Expectation(), (), (), error="ZeroDivisionError()")
    invalid = replace(FAILED, verdicts=(Verdict("loop", Outcome.INVALID, None, reason="throttled"),))
    first, second = annotations_on(FAILED, COMPARED, errors, invalid)
    assert first.startswith(
        "::error file=tests/perf/test_training.py,line=12,title=perf%3A test_optimization[0]::samples/s"
    )
    assert "%0A  likely cause: data-bound" in first
    assert second.startswith("::warning file=")


def test_an_annotation_is_no_longer_than_what_fits_beside_a_line():
    """The log has the rest."""
    many = tuple(Verdict("loop", Outcome.UNMEASURED, None, reason=f"reason {i}") for i in range(40))
    (command,) = github.annotations([replace(FAILED, verdicts=many)], {})
    assert 16 == command.count("reason") + command.count("the rest is in the log")


def test_everything_is_written_and_what_cannot_be_is_bad(tmp_path, monkeypatch):
    """The summary is added to what earlier steps said."""
    summary = tmp_path / "summary.md"
    summary.write_text("before\n")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(summary))
    asked = {"perf_html": tmp_path / "a" / "p.html", "perf_export": tmp_path / "out"}
    written = list(write_outputs(ledger(**asked), [FAILED]))
    assert [False, False] == [one.is_failed for one in written]
    assert summary.read_text().startswith("before\n## Performance")
    names = {"readings.json", "bigger-is-better.json", "smaller-is-better.json", "bencher.json", "summary.md"}
    assert names == {path.name for path in (tmp_path / "out").iterdir()}
    (tmp_path / "file").write_text("")
    (failed,) = write_outputs(ledger(perf_html=tmp_path / "file" / "p.html"), [FAILED])
    assert failed.is_failed
    assert failed.text.startswith("--perf-html: ")
