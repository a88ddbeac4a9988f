"""Every other option, its ini twin, and its precedence."""

import json

import pytest

STEP = "perf(lambda: spend({seconds}), samples_per_step=10)"


def ini(project, *lines):
    always = ["[pytest]", "perf_device = scripted", "perf_sessions = 1", "perf_confirm = 0"]
    project.pytester.makeini("\n".join([*always, *lines]))


def saved(project):
    project.test(STEP.format(seconds=0.01))
    project.run("--save-baseline").assert_outcomes(passed=1)


# --baseline-dir


def test_baselines_can_lie_elsewhere(project):
    """The command line's folder is relative to the working folder, the ini's to the project's root."""
    project.test(STEP.format(seconds=0.01))
    project.run("--save-baseline", "--baseline-dir=else/where")
    assert 1 == len(list((project.path / "else" / "where").rglob("*.json")))
    ini(project, "baseline_dir = from_ini")
    project.run("--save-baseline")
    assert 1 == len(list((project.path / "from_ini").rglob("*.json")))
    assert not (project.path / "baselines").exists()


def test_files_lie_where_who_named_them_stood(project, monkeypatch):
    """One named in the ini file in the project's root, one typed in a subfolder there."""
    project.test(STEP.format(seconds=0.01))
    ini(project, "perf_json = out.json")
    folder = project.path / "below"
    folder.mkdir()
    monkeypatch.chdir(folder)
    project.run("--perf", "--perf-history=typed.jsonl", "..").assert_outcomes(passed=1)
    assert (folder / "typed.jsonl").exists()
    assert not (folder / "out.json").exists()
    assert (project.path / "out.json").exists()


@pytest.mark.parametrize(
    ("option", "least"), [("--perf-sessions", 1), ("--perf-confirm", 0)], ids=["sessions", "confirm"]
)
@pytest.mark.parametrize("count", ["101", "-1", "9" * 30, "2.5", "many"])
def test_a_number_of_sessions_that_no_file_holds_is_refused(project, option, least, count):
    """A hundred is the most a baseline keeps."""
    project.test(STEP.format(seconds=0.01))
    ran = project.run("--perf", f"{option}={count}")
    assert 4 == ran.ret
    ran.stderr.fnmatch_lines(
        [f"*{option}: '{count}' is not a whole number from {least} to 100; use for example {option}=5"]
    )


def test_a_folder_that_cannot_be_written_is_an_error_before_measuring(project):
    """No GPU second is spent on a run that could not be stored."""
    (project.path / "taken").write_text("a file")
    project.test("raise SystemError('measured')")
    ran = project.run("--save-baseline", "--baseline-dir=taken")
    assert 4 == ran.ret
    ran.stderr.fnmatch_lines(["*baselines cannot be written to *taken: *--baseline-dir*"])
    ran.stdout.no_fnmatch_line("*SystemError*")


def test_a_folder_that_is_not_there_is_no_error_for_reading(project):
    """Without baselines the run suggests to store some, and creates nothing."""
    project.test(STEP.format(seconds=0.01))
    project.run("--perf", "--baseline-dir=nowhere").assert_outcomes(passed=1)
    assert not (project.path / "nowhere").exists()


# --perf-strict


@pytest.mark.parametrize("how", ["flag", "ini", "marker"])
def test_strict_fails_without_a_baseline(project, how):
    """On a GPU runner a missing baseline must not look like a passed comparison."""
    project.test(STEP.format(seconds=0.01), marker="strict=True" if how == "marker" else "")
    if how == "ini":
        ini(project, "perf_strict = true")
    ran = project.run("--perf", *(["--perf-strict"] if how == "flag" else []))
    ran.assert_outcomes(failed=1)
    ran.stdout.fnmatch_lines(
        ["no baseline for this machine, and --perf-strict requires one; *--save-baseline*"]
    )


def test_strict_passes_with_a_baseline_and_does_not_hinder_saving(project):
    """The first save under strict has nothing to compare with."""
    project.test(STEP.format(seconds=0.01))
    project.run("--save-baseline", "--perf-strict").assert_outcomes(passed=1)
    project.run("--perf", "--perf-strict").assert_outcomes(passed=1)


# --perf-json


@pytest.mark.parametrize("how", ["flag", "ini"])
def test_json_is_written_with_folders(project, how):
    """The file has the readings, and is announced."""
    project.test(STEP.format(seconds=0.01))
    if how == "ini":
        ini(project, "perf_json = out/run.json")
    ran = project.run("--perf", *(["--perf-json=out/run.json"] if how == "flag" else []))
    ran.stdout.fnmatch_lines(["readings written to out/run.json"])
    (entry,) = json.loads((project.path / "out" / "run.json").read_text())["benchmarks"]
    assert "test_it.py::test_it" == entry["fullname"]
    assert 1000 == pytest.approx(entry["extra_info"]["perfsuite"]["metrics"]["samples_per_s"]["value"])


def test_json_that_cannot_be_written_turns_the_run_red(project):
    """CI must not find yesterday's file."""
    project.test(STEP.format(seconds=0.01))
    (project.path / "out").write_text("a file")
    ran = project.run("--perf", "--perf-json=out/run.json")
    assert 1 == ran.ret
    ran.stdout.fnmatch_lines(["--perf-json: *was not written: *"])


# --perf-tolerance, --perf-memory-tolerance


@pytest.mark.parametrize(
    ("flag", "marker", "line", "expected"),
    [
        ("", "", "", "failed"),
        ("--perf-tolerance=50 %", "", "", "passed"),
        ("", "tolerance=0.5", "", "passed"),
        ("", "", "perf_tolerance = 50 %", "passed"),
        ("", "tolerance=0.1", "perf_tolerance = 50 %", "failed"),
        ("--perf-tolerance=50 %", "tolerance=0.1", "", "passed"),
        ("--perf-tolerance=1 %", "tolerance=0.5", "perf_tolerance = 50 %", "failed"),
    ],
)
def test_tolerance_comes_from_command_line_marker_ini_or_default(project, flag, marker, line, expected):
    """30 % slower passes if 50 % are tolerated; the nearest setting counts."""
    saved(project)
    project.test(STEP.format(seconds=0.013), marker=marker)
    ini(project, line)
    project.run("--perf", *([flag] if flag else [])).assert_outcomes(**{expected: 1})


def test_memory_has_a_tolerance_of_its_own(project):
    """Twice the memory passes if 150 % more are tolerated, whatever the timing's tolerance."""
    saved(project)
    project.script("peak_memory_bytes=1.5 * 2**20")
    project.run("--perf", "--perf-tolerance=99 %").assert_outcomes(failed=1)
    project.run("--perf", "--perf-memory-tolerance=60 %").assert_outcomes(passed=1)


@pytest.mark.parametrize(
    ("arguments", "line", "told"),
    [
        (["--perf-tolerance=a lot"], "", "*--perf-tolerance: *'a lot' is not a share*"),
        (["--perf-min-time=soon"], "", "*--perf-min-time: *'soon' is not a duration*"),
        ([], "perf_max_time = never", "*ini option perf_max_time: *'never' is not a duration*"),
    ],
)
def test_values_that_cannot_be_meant_are_refused(project, arguments, line, told):
    """Command line and ini are checked before anything runs."""
    project.test(STEP.format(seconds=0.01))
    ini(project, line)
    ran = project.run("--perf", *arguments)
    assert 4 == ran.ret
    ran.stderr.fnmatch_lines([told])


# --perf-min-time, --perf-max-time


@pytest.mark.parametrize(
    ("flag", "marker", "line"),
    [("--perf-min-time=7 s", "", ""), ("", 'min_time="7 s"', ""), ("", "", "perf_min_time = 7 s")],
)
def test_the_minimum_time_is_measured(project, flag, marker, line):
    """Seven scripted seconds are seven scripted seconds."""
    project.test("assert 7 <= perf(lambda: spend(0.01)).wall_seconds < 7.5", marker=marker)
    ini(project, line)
    project.run("--perf", *([flag] if flag else [])).assert_outcomes(passed=1)


@pytest.mark.parametrize("flag", ["--perf-max-time=3 s", ""])
def test_the_maximum_time_ends_a_measurement_that_never_settles(project, flag):
    """The budget per test is an option; its default is ten seconds."""
    seconds = 3 if flag else 10
    body = "import random\nr = random.Random(1)\nreading = perf(lambda: spend(r.lognormvariate(-5, 3)))\n"
    project.test(body + f"assert {seconds} <= reading.wall_seconds", marker="min_time=0")
    project.run("--perf", *([flag] if flag else [])).assert_outcomes(passed=1)


# --perf and --save-baseline in ini files


def test_the_flags_have_working_twins(project):
    """perf = true measures, save_baseline = true stores."""
    project.test(STEP.format(seconds=0.01))
    ini(project, "perf = true")
    project.run().assert_outcomes(passed=1)
    assert [] == project.stored
    ini(project, "save_baseline = true")
    project.run().assert_outcomes(passed=1)
    assert 1 == len(project.stored)
