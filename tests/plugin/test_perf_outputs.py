"""--perf-explain, --perf-html, --perf-export, --perf-patch and what GitHub gets, through a whole run."""

import json
import subprocess

import jsonschema
import pytest

from perfsuite.remember.schema import readings_schema

STEP = "perf(lambda: spend(0.01), samples_per_step=8)"
INSIGHT = (
    "insight=__import__('perfsuite.records', fromlist=['x']).Insight("
    "shares={'launch_gaps': 0.6, 'kernels': 0.4}, clues={'kernel_seconds': 2e-6, "
    "'short_kernel_seconds': 1e-5, 'kernels_per_step': 900.0, 'repeated_kernel_count': 300.0, "
    "'repeated_kernel_place': 'model.py:7 in forward: self.cell(x)'})"
)


def test_explain_tells_the_cause_of_a_passing_test(project):
    """Shares, cause, line and advice; without the option only failures say so."""
    project.script(INSIGHT)
    project.test(STEP)
    project.run("--perf").stdout.no_fnmatch_line("*likely cause*")
    project.run("--perf", "--perf-explain").stdout.fnmatch_lines(
        [
            "test_it.py::test_it",
            "  where the step's time went: launch gaps 60.0 %, kernels 40.0 %",
            "  likely cause: launch-bound: the same kernel is called 300 times a step*model.py:7 in*",
            "  Merge the loop into one call*; more: python -m perfsuite explain launch-bound",
        ]
    )


def test_a_failure_ends_with_cause_and_advice_beside_the_baselines_shares(project):
    """The baseline keeps its shares, so that a failure shows what grew."""
    project.script(INSIGHT.replace("0.6, 'kernels': 0.4", "0.1, 'kernels': 0.9"))
    project.test(STEP)
    project.run("--save-baseline").assert_outcomes(passed=1)
    project.script(INSIGHT)
    project.test("perf(lambda: spend(0.02), samples_per_step=8)")
    ran = project.run("--perf", "--junitxml=junit.xml")
    ran.assert_outcomes(failed=1)
    ran.stdout.fnmatch_lines(
        [
            "step time 20 ms is 100.0 % above the baseline 10 ms*",
            "  where the step*: launch gaps 60.0 % (baseline 10.0 %), kernels 40.0 % (baseline 90.0 %)",
            "  likely cause: launch-bound*",
            "  Merge the loop*",
        ]
    )
    assert '<property name="perf.cause" value="launch-bound" />' in (project.path / "junit.xml").read_text()
    assert 'name="perf.share.launch_gaps" value="0.6"' in (project.path / "junit.xml").read_text()


def test_page_and_exports_are_written(project):
    """Into folders that need not be there; the readings fit their schema."""
    project.script(INSIGHT)
    project.test(STEP)
    ran = project.run("--perf", "--perf-html=out/page.html", "--perf-export=out/data")
    ran.assert_outcomes(passed=1)
    ran.stdout.fnmatch_lines(["report page: out/page.html", "exported to out/data"])
    assert "test_it.py::test_it" in (project.path / "out/page.html").read_text()
    readings = json.loads((project.path / "out/data/readings.json").read_text())
    jsonschema.validate(readings, readings_schema())
    assert {"launch_gaps": 0.6, "kernels": 0.4} == readings["benchmarks"][0]["extra_info"]["perfsuite"][
        "shares"
    ]


def test_a_page_that_cannot_be_written_fails_the_run(project):
    """An artifact that is missing must not look like one nobody asked for."""
    project.test(STEP)
    (project.path / "file").write_text("")
    ran = project.run("--perf", "--perf-html=file/page.html")
    assert 1 == ran.ret
    ran.stdout.fnmatch_lines(["--perf-html: *file/page.html was not written*"])


def test_new_baselines_leave_as_a_patch_that_git_applies(project):
    """Nothing is stored; applied, they gate as stored ones do."""
    subprocess.run(["git", "init", "-q", project.path], check=True)
    project.test(STEP)
    ran = project.run("--save-baseline", "--perf-patch=new.patch")
    ran.stdout.fnmatch_lines(["1 new baseline as a patch: git apply new.patch"])
    assert [] == project.stored
    subprocess.run(["git", "apply", "new.patch"], cwd=project.path, check=True)
    assert 1 == len(project.stored)
    project.test("perf(lambda: spend(0.02), samples_per_step=8)")
    project.run("--perf").assert_outcomes(failed=1)


def test_a_patch_needs_something_to_save(project):
    """The option alone is a mistake; in an ini file it waits for its day."""
    project.test(STEP)
    ran = project.run("--perf", "--perf-patch=new.patch")
    assert 4 == ran.ret
    ran.stderr.fnmatch_lines(["*--perf-patch: there is nothing to write without --save-baseline*"])
    project.run("--perf", "-o", "perf_patch=new.patch").assert_outcomes(passed=1)


def test_a_patch_has_the_sessions_of_fresh_processes(project):
    """They are told nothing of what the run writes."""
    project.test(STEP)
    files = ("--perf-patch=new.patch", "--perf-html=page.html", "--perf-export", "out")
    ran = project.run("--save-baseline", "--perf-sessions=2", *files)
    ran.stdout.fnmatch_lines(["1 new baseline as a patch: git apply new.patch"])
    assert '"step_time": [' in (project.path / "new.patch").read_text()


@pytest.mark.parametrize("is_on", [True, False])
def test_github_gets_summary_and_annotations(project, monkeypatch, is_on):
    """On its runners only, at the line of the test."""
    monkeypatch.setenv("GITHUB_ACTIONS", "true" if is_on else "")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(project.path / "summary.md") if is_on else "")
    project.test(STEP, marker="max_step_time=0.001")
    ran = project.run("--perf")
    ran.assert_outcomes(failed=1)
    if not is_on:
        ran.stdout.no_fnmatch_line("::error*")
        return
    ran.stdout.fnmatch_lines(
        ["::error file=test_it.py,line=4,title=perf%3A test_it::step time 10 ms is above*"]
    )
    assert "1 test, 1 failed" in (project.path / "summary.md").read_text()
