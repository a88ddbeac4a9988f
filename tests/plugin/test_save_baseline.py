"""--save-baseline: judged before remembered, written whole, never by a run that failed."""

import json

STEP = "perf(lambda: spend({seconds}), samples_per_step=10)"
KEY_FOLDER = "baselines/scripted_scripted_torch"


def save(project, seconds=0.01, marker=""):
    project.test(STEP.format(seconds=seconds), marker=marker)
    return project.run("--save-baseline")


def test_saving_stores_one_file_per_test_and_says_where(project):
    """The flag implies --perf; the file lies under key, test file and test."""
    ran = save(project)
    ran.assert_outcomes(passed=1)
    ran.stdout.fnmatch_lines(
        ["*test_it.py::test_it*saved", "stored 1 baseline in baselines; review and commit them"]
    )
    (path,) = project.stored
    assert path.as_posix().startswith(KEY_FOLDER)
    assert path.as_posix().endswith("/test_it.py/test_it.json")
    document = json.loads((project.path / path).read_text())
    assert "perfsuite-baseline/2" == document["schema"]
    assert {"value": 0.01, "unit": "seconds", "higher_is_better": False} == document["readings"]["step"][
        "metrics"
    ]["step_time"]


def test_the_same_code_passes_and_30_percent_slower_fails_again_and_again(project):
    """A regression is not forgotten by the run that found it."""
    save(project)
    project.run("--perf").assert_outcomes(passed=1)
    project.test(STEP.format(seconds=0.013))
    for _ in range(2):
        ran = project.run("--perf")
        ran.assert_outcomes(failed=1)
        ran.stdout.fnmatch_lines(["step time 13 ms is 30.0 % above the baseline 10 ms (allowed: 11 ms)"])


def test_saving_slower_code_is_refused_and_the_old_baseline_stays(project):
    """A baseline cannot be lowered by accident: the failed verdict keeps it."""
    save(project)
    before = (project.path / project.stored[0]).read_text()
    ran = save(project, seconds=0.013)
    ran.assert_outcomes(failed=1)
    ran.stdout.fnmatch_lines(
        ["*delete this test's baseline and run pytest --save-baseline", "no baseline was stored: *"]
    )
    assert before == (project.path / project.stored[0]).read_text()


def test_deleting_the_file_accepts_slower_code(project):
    """The remedy in the message works."""
    save(project)
    (project.path / project.stored[0]).unlink()
    save(project, seconds=0.013).assert_outcomes(passed=1)
    project.run("--perf").assert_outcomes(passed=1)


def test_an_improvement_is_told_not_taken(project):
    """Faster code passes, keeps the old baseline, and the command to take it is named."""
    save(project)
    before = (project.path / project.stored[0]).read_text()
    project.test(STEP.format(seconds=0.005))
    ran = project.run("--perf")
    ran.assert_outcomes(passed=1)
    ran.stdout.fnmatch_lines(
        [
            "*test_it.py::test_it*+100.0 %*improved",
            "improved beyond the tolerance, baseline kept: test_it.py::test_it (step time 10 ms → 5 ms)",
            "  take it as the new baseline with: pytest --save-baseline",
        ]
    )
    assert before == (project.path / project.stored[0]).read_text()


def test_nothing_is_stored_when_any_test_failed(project):
    """A run with a failing test, even one that measures nothing, is no source of baselines."""
    project.pytester.makepyfile(
        "from conftest import DEVICE\n"
        "def test_bad(): assert 0\n"
        "def test_good(perf): perf(lambda: DEVICE.spend(1))"
    )
    project.run("--save-baseline").assert_outcomes(passed=1, failed=1)
    assert [] == project.stored


def test_a_step_that_raises_stores_nothing(project):
    """Half a measurement is none."""
    project.test("def step():\n    raise ZeroDivisionError\nperf(step)")
    project.run("--save-baseline").assert_outcomes(failed=1)
    assert [] == project.stored


def test_a_run_that_measured_nothing_stores_nothing(project):
    """And it is not green."""
    project.pytester.makepyfile("def test_plain(): pass")
    assert 5 == project.run("--save-baseline").ret
    assert not list((project.path / "baselines").glob("*"))


def test_the_flag_takes_no_value(project):
    """A path behind it is a path."""
    project.test(STEP.format(seconds=0.01))
    project.run("--save-baseline", "test_it.py").assert_outcomes(passed=1)


def test_a_broken_baseline_fails_its_test_before_measuring_and_is_left_alone(project):
    """The message names the file and the remedy; other tests go on."""
    save(project)
    path = project.path / project.stored[0]
    path.write_text('{"schema": "perfsuite-base')
    for flag in ("--perf", "--save-baseline"):
        ran = project.run(flag)
        ran.assert_outcomes(errors=1)
        ran.stdout.fnmatch_lines(["*baseline *test_it.json cannot be used: Unterminated string*"])
        assert '{"schema": "perfsuite-base' == path.read_text()


def test_two_readings_of_one_test_are_stored_apart(project):
    """Nothing is overwritten: each has its name."""
    project.test(
        "perf(lambda: spend(0.01))\nperf(lambda: spend(0.02))\nperf(lambda: spend(0.03), name='third')"
    )
    project.run("--save-baseline").assert_outcomes(passed=1)
    readings = json.loads((project.path / project.stored[0]).read_text())["readings"]
    assert {"step": 0.01, "step 2": 0.02, "third": 0.03} == {
        name: reading["metrics"]["step_time"]["value"] for name, reading in readings.items()
    }


def test_awkward_test_ids_are_stored_and_found_again(project):
    """Slashes, brackets, unicode and 300 characters survive a save and a compare."""
    ids = ["a/b", "../../x", "naïve", "x" * 300, "[", "C:\\\\x"]
    project.pytester.makepyfile(
        f"""
        import pytest
        from conftest import DEVICE
        @pytest.mark.parametrize("value", range({len(ids)}), ids={ids!r})
        def test_it(perf, value): perf(lambda: DEVICE.spend(1))
        """
    )
    project.run("--save-baseline").assert_outcomes(passed=len(ids))
    assert len(ids) == len(project.stored)
    ran = project.run("--perf", "--perf-strict")
    ran.assert_outcomes(passed=len(ids))


def test_entries_without_a_test_are_told(project):
    """A renamed test leaves its baseline behind; the summary says so and names the file."""
    save(project)
    project.test(STEP.format(seconds=0.01), name="test_renamed")
    ran = project.run("--perf")
    ran.stdout.fnmatch_lines(
        ["stored, but there is no such test: test_it.py::test_it (baselines/*test_it.json)"]
    )


def test_a_reading_that_its_test_no_longer_takes_is_told(project):
    """Of two stored readings one vanished: the summary names it."""
    project.test("perf(lambda: spend(1), name='a')\nperf(lambda: spend(1), name='b')")
    project.run("--save-baseline")
    project.test("perf(lambda: spend(1), name='a')")
    project.run("--perf").stdout.fnmatch_lines(
        ["stored, but not measured by its test: test_it.py::test_it (b)"]
    )


def test_deselected_tests_are_not_told_as_gone(project):
    """-k and a single test id are a choice, not a loss."""
    project.pytester.makepyfile(
        test_it="from conftest import DEVICE\n"
        "def test_a(perf): perf(lambda: DEVICE.spend(1))\ndef test_b(perf): perf(lambda: DEVICE.spend(1))"
    )
    project.run("--save-baseline")
    project.run("--perf", "-k", "test_a").stdout.no_fnmatch_line("*no such test*")
    project.run("--perf", "test_it.py::test_a").stdout.no_fnmatch_line("*no such test*")


def test_a_near_baseline_warns_and_does_not_gate(project):
    """Another torch: the change is shown, the test passes."""
    save(project)
    path = project.path / project.stored[0]
    document = json.loads(path.read_text())
    document["environment"]["torch"] = "1.0.0"
    other = project.path / "baselines" / "scripted_scripted_torch1.0" / "test_it.py" / "test_it.json"
    other.parent.mkdir(parents=True)
    other.write_text(json.dumps(document))
    path.unlink()
    project.test(STEP.format(seconds=0.02))
    ran = project.run("--perf")
    ran.assert_outcomes(passed=1)
    ran.stdout.fnmatch_lines(
        ["*-50.0 % (near)*", "near baseline, shown but not gated: torch torch1.0 instead of *"]
    )


def test_a_loss_of_speed_up_is_found(project):
    """An optimization that no longer helps fails against its stored speed-up."""
    body = "perf.compare(without=lambda: spend(0.02), with_=lambda: spend({}))"
    project.test(body.format(0.01))
    project.run("--save-baseline").assert_outcomes(passed=1)
    project.test(body.format(0.02))
    ran = project.run("--perf")
    ran.assert_outcomes(failed=1)
    ran.stdout.fnmatch_lines(["speed-up 1.00× is 50.0 % below the baseline 2.00× (allowed: 1.80×)"])


def test_more_memory_is_a_regression(project):
    """Peak memory is gated beside the time."""
    save(project)
    project.script("peak_memory_bytes=2**21")
    ran = project.run("--perf")
    ran.assert_outcomes(failed=1)
    ran.stdout.fnmatch_lines(["peak memory 2 MiB is 100.0 % above the baseline 1 MiB*"])


def test_what_is_expected_to_fail_keeps_nobody_from_being_stored(project):
    """And is not stored itself."""
    project.pytester.makepyfile(
        test_it="import pytest\nfrom conftest import DEVICE\n"
        "@pytest.mark.xfail(reason='known')\n"
        "def test_bad(perf): perf(lambda: DEVICE.spend(1), max_step_time='1 ms')\n"
        "def test_good(perf): perf(lambda: DEVICE.spend(1))"
    )
    ran = project.run("--save-baseline")
    ran.assert_outcomes(passed=1, xfailed=1)
    assert 0 == ran.ret
    ran.stdout.fnmatch_lines(["*test_bad*xfailed", "*test_good*saved"])
    assert ["test_good.json"] == [path.name for path in project.stored]


def test_a_run_that_stored_nothing_is_not_green(project):
    """Who asked to save must not take it for a success."""
    project.test("perf(lambda: spend(1), max_step_time='1 ms')", marker="")
    text = (project.path / "test_it.py").read_text()
    (project.path / "test_it.py").write_text(text.replace("def test_it", "@pytest.mark.xfail\ndef test_it"))
    ran = project.run("--save-baseline")
    ran.assert_outcomes(xfailed=1)
    assert 1 == ran.ret
    ran.stdout.fnmatch_lines(["no baseline was stored: *"])


def test_what_cannot_be_stored_is_told_and_the_others_are(project):
    """A hundred readings of one test are allowed, not more; a write that fails is no success."""
    project.pytester.makepyfile(
        test_it="from conftest import DEVICE\n"
        "def test_many(perf):\n    for i in range(101):\n        perf(lambda: DEVICE.spend(1), name=str(i))\n"
        "def test_one(perf): perf(lambda: DEVICE.spend(1))"
    )
    ran = project.run("--save-baseline")
    assert 1 == ran.ret
    ran.stdout.fnmatch_lines(
        [
            "*test_one*",
            "*saved",
            "not stored: test_it.py::test_many: *: readings has 101 entries, at most 100 are allowed",
            "stored 1 baseline in baselines; review and commit them",
        ]
    )
    assert 1 == str(ran.stdout).count("saved")


def test_a_folder_that_is_a_file_is_told_once(project):
    """No «stored 0»."""
    save(project)
    key = project.path / project.stored[0].parts[0] / project.stored[0].parts[1]
    for path in sorted(key.rglob("*"), reverse=True):
        path.unlink() if path.is_file() else path.rmdir()
    key.rmdir()
    key.write_text("")
    ran = project.run("--save-baseline")
    assert 1 == ran.ret
    ran.stdout.fnmatch_lines(["not stored: test_it.py::test_it: *was not written*"])
    ran.stdout.no_fnmatch_line("stored*")


def test_last_failed_alone_makes_nobody_a_stranger(project):
    """pytest then collects fewer tests; they exist all the same."""
    project.pytester.makeini("[pytest]\nperf_device = scripted\nperf_sessions = 1\nperf_confirm = 0")
    project.pytester.makepyfile(
        test_it="import os\nfrom conftest import DEVICE\n"
        "def test_a(perf):\n    perf(lambda: DEVICE.spend(1))\n    assert 'FAIL' not in os.environ\n"
        "def test_b(perf): perf(lambda: DEVICE.spend(1))"
    )
    project.run("--save-baseline").assert_outcomes(passed=2)
    project.pytester._monkeypatch.setenv("FAIL", "1")
    project.run("--perf").assert_outcomes(passed=1, failed=1)
    project.pytester._monkeypatch.delenv("FAIL")
    ran = project.run("--perf", "--perf-strict", "--lf")
    ran.assert_outcomes(passed=1)
    ran.stdout.no_fnmatch_line("*there is no such test*")


def test_collecting_alone_writes_nothing(project):
    """Not even the folder."""
    project.test(STEP.format(seconds=0.01))
    assert 0 == project.run("--save-baseline", "--collect-only").ret
    assert not (project.path / "baselines").exists()
