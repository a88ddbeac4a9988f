"""--perf-on-invalid and --perf-cooldown: what does not count is neither a pass nor a regression."""

import json

import pytest

STEP = "perf(lambda: spend(0.01), samples_per_step=10)"
ALWAYS = "invalid=[('throttled for 3.0 s of 20.0 s (too hot)',)] * 9"
ONCE = "invalid=[('another process came',)]"


def ini(project, *lines):
    project.pytester.makeini("\n".join(["[pytest]", "perf_device = scripted", *lines]))


def test_it_fails_by_default_with_the_reason(project):
    """The first line stands alone in the short summary."""
    project.script(ALWAYS)
    project.test(STEP)
    ran = project.run("--perf")
    ran.assert_outcomes(failed=1)
    ran.stdout.fnmatch_lines(
        [
            "invalid measurement: throttled for 3.0 s of 20.0 s (too hot)",
            "*it was repeated once and is neither a pass nor a regression*",
            "FAILED *invalid measurement: throttled*",
        ]
    )
    ran.stdout.fnmatch_lines(["*test_it.py::test_it*invalid"])


@pytest.mark.parametrize("how", ["flag", "ini", "marker"])
@pytest.mark.parametrize(("action", "expected"), [("skip", {"skipped": 1}), ("warn", {"passed": 1})])
def test_it_can_be_skipped_or_warned_about(project, how, action, expected):
    """Command line, marker or ini file."""
    project.script(ALWAYS)
    project.test(STEP, marker=f'on_invalid="{action}"' if how == "marker" else "")
    if how == "ini":
        ini(project, f"perf_on_invalid = {action}")
    ran = project.run("--perf", "-rs", *([f"--perf-on-invalid={action}"] if how == "flag" else []))
    ran.assert_outcomes(**expected)
    ran.stdout.fnmatch_lines(["invalid measurement: test_it.py::test_it: throttled*"])


def test_another_word_is_refused_with_the_known_ones(project):
    """Before anything runs."""
    project.test(STEP)
    ran = project.run("--perf", "--perf-on-invalid=ignore")
    assert 4 == ran.ret
    ran.stderr.fnmatch_lines(["*--perf-on-invalid: on_invalid: 'ignore' is not one of fail, skip, warn"])


@pytest.mark.parametrize(
    ("arguments", "seconds"), [([], 10), (["--perf-cooldown=3 s"], 3), (["--perf-cooldown=0"], 0)]
)
def test_it_is_repeated_once_after_a_rest(project, arguments, seconds):
    """Rested, measured again, and the second reading counts."""
    project.script(ONCE)
    project.test(
        f"{STEP}\nassert DEVICE.events.count('start') == 2\nassert 'cool {seconds}' in DEVICE.events"
    )
    ran = project.run("--perf", *arguments)
    ran.assert_outcomes(passed=1)
    ran.stdout.fnmatch_lines(["note: *measured twice: the first time did not count (another process came)"])


def test_a_third_time_is_not_tried(project):
    """Repeating until it is green would be a test of patience."""
    project.script(ALWAYS)
    project.test(f"{STEP}\nassert DEVICE.events.count('start') == 2")
    project.run("--perf", "--perf-on-invalid=skip").assert_outcomes(skipped=1)


def test_limits_are_not_judged_where_nothing_counts(project):
    """A throttled run that misses a limit is no regression, and one that keeps it no pass."""
    project.script(ALWAYS)
    project.test(STEP, marker="min_samples_per_s=1e9")
    ran = project.run("--perf", "--perf-json=run.json")
    ran.stdout.no_fnmatch_line("*samples/s*is below*")
    (entry,) = json.loads((project.path / "run.json").read_text())["benchmarks"]
    told = entry["extra_info"]["perfsuite"]
    assert ["throttled for 3.0 s of 20.0 s (too hot)"] == told["invalid"]
    assert ["invalid"] == [verdict["outcome"] for verdict in told["verdicts"]]


@pytest.mark.parametrize("action", ["fail", "skip", "warn"])
def test_it_never_becomes_a_baseline(project, action):
    """Whatever is done about the test."""
    project.script(ALWAYS)
    project.test(STEP)
    project.run("--save-baseline", f"--perf-on-invalid={action}")
    assert [] == project.stored


def test_other_tests_of_the_run_are_stored(project):
    """One measurement that does not count does not take the others with it."""
    project.script("invalid=[('hot',)] * 2")
    project.pytester.makepyfile(
        """
        from conftest import DEVICE
        def test_1(perf): perf(lambda: DEVICE.spend(0.01))
        def test_2(perf): perf(lambda: DEVICE.spend(0.01))
        """
    )
    ran = project.run("--save-baseline", "--perf-on-invalid=warn")
    assert ["test_2.json"] == [path.name for path in project.stored]
    ran.stdout.fnmatch_lines(["1 not stored: an invalid measurement never becomes a baseline"])


def test_other_clocks_than_the_baselines_do_not_count(project):
    """Conditions are stored with the reading and must not differ."""
    project.script("conditions={'sm_clock_mhz': 1400.0, 'power_limit_watts': 150.0}")
    project.test(STEP)
    project.run("--save-baseline").assert_outcomes(passed=1)
    project.run("--perf").assert_outcomes(passed=1)
    project.script("conditions={'sm_clock_mhz': 1200.0, 'power_limit_watts': 150.0}")
    ran = project.run("--perf")
    ran.assert_outcomes(failed=1)
    ran.stdout.fnmatch_lines(
        ["invalid measurement: the SM clock under load is 1200 MHz, the baseline was taken at 1400 MHz"]
    )


def test_a_baseline_without_conditions_still_gates(project):
    """Files written before conditions were stored stay valid."""
    project.test(STEP)
    project.run("--save-baseline").assert_outcomes(passed=1)
    (path,) = project.stored
    assert "conditions" not in (project.path / path).read_text()
    project.script("conditions={'sm_clock_mhz': 1200.0}")
    project.run("--perf").assert_outcomes(passed=1)


def test_conditions_that_are_no_numbers_are_refused(project):
    """A baseline is read with suspicion."""
    project.script("conditions={'sm_clock_mhz': 1400.0}")
    project.test(STEP)
    project.run("--save-baseline")
    path = project.path / project.stored[0]
    path.write_text(path.read_text().replace("1400.0", '"fast"'))
    ran = project.run("--perf")
    ran.stdout.fnmatch_lines(
        ["*cannot be used: readings.step.conditions.sm_clock_mhz is 'fast', not number*"]
    )
