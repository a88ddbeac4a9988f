"""What nothing was held against is told, and under --perf-strict fails."""

import json

import pytest

HEAD = "import pytest\nfrom conftest import DEVICE\n"
STEP = "def {name}(perf): perf(lambda: DEVICE.spend({seconds}){more})\n"


def write(project, *tests):
    project.pytester.makepyfile(test_it=HEAD + "".join(tests))


def step(name="test_it", seconds=0.01, more=""):
    return STEP.format(name=name, seconds=seconds, more=more)


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        (step("test_renamed"), "stored, but there is no such test: test_it.py::test_it (baselines/*)"),
        (
            "@pytest.mark.skip(reason='not today')\n" + step(),
            "stored, but not measured in this run: test_it.py::test_it",
        ),
        (
            step(more=", name='other'"),
            "stored, but not measured by its test: test_it.py::test_it (step)",
        ),
    ],
    ids=["renamed", "skipped", "another reading"],
)
def test_a_baseline_that_nothing_is_held_against_is_told_and_under_strict_fails(project, changed, told):
    """The gate has a hole, and says so."""
    write(project, step(), step("test_other"))
    project.run("--save-baseline").assert_outcomes(passed=2)
    write(project, changed, step("test_other"))
    ran = project.run("--perf")
    assert 0 == ran.ret
    ran.stdout.fnmatch_lines([told])
    ran = project.run("--perf", "--perf-strict")
    assert 1 == ran.ret
    ran.stdout.fnmatch_lines([told])


def test_strict_is_content_where_every_baseline_has_its_test(project):
    """No hole, no failure; a deselected test is a choice."""
    write(project, step(), step("test_other"))
    project.run("--save-baseline")
    assert 0 == project.run("--perf", "--perf-strict").ret
    assert 0 == project.run("--perf", "--perf-strict", "-k", "test_other").ret


def test_everything_skipped_is_not_green(project):
    """A run of nothing but skips exits with 5, with strict and without."""
    write(project, "@pytest.mark.skip(reason='not today')\n" + step())
    assert [5, 5] == [project.run("--perf", *more).ret for more in ((), ("--perf-strict",))]


def test_a_step_that_takes_no_time_is_invalid(project):
    """Zero is no speed record."""
    write(project, step(seconds=0))
    ran = project.run("--perf")
    ran.assert_outcomes(failed=1)
    ran.stdout.fnmatch_lines(["invalid measurement: the steps took no time at all: *"])


def test_a_reading_that_collapsed_is_invalid_and_not_improved(project):
    """A thousandth of the baseline's time: the step lost its work."""
    write(project, step())
    project.run("--save-baseline")
    write(project, step(seconds=0.00001))
    for arguments in (("--perf",), ("--save-baseline",)):
        ran = project.run(*arguments)
        ran.assert_outcomes(failed=1)
        ran.stdout.fnmatch_lines(
            ["invalid measurement: step time collapsed to 10 µs, the baseline has 10 ms*"]
        )


def test_a_baseline_of_the_first_format_still_gates(project):
    """Old files know one session; they are judged by the fixed tolerance, and it is said."""
    write(project, step())
    project.run("--save-baseline")
    (path,) = project.path.glob("baselines/**/*.json")
    document = json.loads(path.read_text())
    document["schema"] = "perfsuite-baseline/1"
    path.write_text(json.dumps(document))
    ran = project.run("--perf")
    ran.assert_outcomes(passed=1)
    ran.stdout.fnmatch_lines(
        ["1 test has a baseline of fewer than 5 sessions, judged by a fixed tolerance; *"]
    )
    write(project, step(seconds=0.013))
    project.run("--perf").assert_outcomes(failed=1)


@pytest.mark.parametrize(
    ("sessions", "told"),
    [
        ({"step_time": [0.01, -1]}, "step_time[[]1] is -1: no time is that short"),
        ({"step_time": [0.01, 0]}, "no time is that short"),
        ({"step_time": []}, "step_time has 0 entries, at least 1 are needed"),
        ({"step_time": [0.01], "samples_per_s": [1, 2]}, "1 and 2 sessions at once"),
        ({"nonsense": [1]}, "sessions.nonsense is not expected; known: samples_per_s, "),
    ],
)
def test_sessions_that_cannot_be_are_refused(project, sessions, told):
    """A baseline is read with suspicion, its sessions too."""
    write(project, step())
    project.run("--save-baseline")
    (path,) = project.path.glob("baselines/**/*.json")
    document = json.loads(path.read_text())
    document["readings"]["step"]["sessions"] = sessions
    path.write_text(json.dumps(document))
    ran = project.run("--perf")
    ran.assert_outcomes(errors=1)
    ran.stdout.fnmatch_lines([f"*cannot be used: *{told}*"])


@pytest.mark.parametrize("how", ["flag", "ini"])
def test_every_reading_is_appended_to_the_history(project, how):
    """Two runs, two lines; a file that cannot be written turns the run red."""
    write(project, step())
    if how == "ini":
        (project.path / "tox.ini").write_text(
            "[pytest]\nperf_device = scripted\nperf_confirm = 0\nperf_history = deep/history.jsonl"
        )
    arguments = ["--perf", *(["--perf-history=deep/history.jsonl"] if how == "flag" else [])]
    for _ in range(2):
        project.run(*arguments).stdout.fnmatch_lines(["1 reading appended to deep/history.jsonl"])
    lines = (project.path / "deep" / "history.jsonl").read_text().splitlines()
    assert ["test_it.py::test_it"] * 2 == [json.loads(line)["test"] for line in lines]
    ran = project.run("--perf", "--perf-history=deep")
    assert 1 == ran.ret
    ran.stdout.fnmatch_lines(["--perf-history: *deep was not written: *"])
