"""--perf: performance tests run with it, are skipped without it, and nothing measured is not green."""

import re

import pytest

STEP = "perf(lambda: spend(0.01), samples_per_step=10)"


def test_without_the_flag_performance_tests_are_skipped_with_its_name(project):
    """The skip reason says what to type."""
    project.test(STEP)
    ran = project.run("-rs")
    ran.assert_outcomes(skipped=1)
    ran.stdout.fnmatch_lines(["SKIPPED*test_it.py*performance test: run with --perf"])
    ran.stdout.no_fnmatch_line("perfsuite: *")


def test_a_marked_test_without_the_fixture_is_skipped_too(project):
    """The marker alone makes a performance test."""
    project.test("pass", marker="min_samples_per_s=1", signature="")
    project.run().assert_outcomes(skipped=1)


def test_a_fixture_asked_for_at_run_time_is_skipped_as_well(project):
    """getfixturevalue cannot be seen at collection."""
    project.test('request.getfixturevalue("perf")', signature="request")
    ran = project.run("-rs")
    ran.assert_outcomes(skipped=1)
    ran.stdout.fnmatch_lines(["*run with --perf"])


def test_a_projects_own_perf_fixture_is_left_alone(project):
    """Whoever has a perf fixture already loses no test by installing perfsuite, with the flag or without."""
    project.test("assert perf == 3")
    with (project.path / "conftest.py").open("a") as file:
        file.write("\nimport pytest\n@pytest.fixture\ndef perf():\n    return 3\n")
    project.run().assert_outcomes(passed=1)
    project.run("--perf").assert_outcomes(passed=1)


def test_a_passing_threshold_passes_and_the_table_shows_the_figures(project):
    """1,000 samples/s are enough where 900 are asked."""
    project.test(STEP, marker="min_samples_per_s=900")
    ran = project.run("--perf")
    ran.assert_outcomes(passed=1)
    ran.stdout.fnmatch_lines(
        [
            "perfsuite: scripted (scripted), clock: script, baselines: baselines (0 stored), key: scripted*",
            "*= performance =*",
            "*test_it.py::test_it*1,000*50.0 %*1 MiB*10 ms*none*ok",
            "1 test has no baseline for this machine; store one with: pytest --save-baseline",
        ]
    )


@pytest.mark.parametrize(
    ("marker", "argument", "enough"),
    [
        ('min_utilization="10 %"', "", True),
        (
            'max_idle_stretch="1 h"',
            "",
            False,
        ),  # not measured by this device, and still what the window is for
        ("", ', min_utilization="10 %"', True),
        ("", "", None),
    ],
)
def test_a_limit_on_utilization_measures_as_long_as_the_device_needs(project, marker, argument, enough):
    """Whether a marker or the call has it; a test without one is not made longer."""
    project.test(f"print('wall', perf(lambda: spend(0.01){argument}).wall_seconds)", marker)
    with (project.path / "conftest.py").open("a") as file:
        file.write("\nDEVICE.utilization_seconds = lambda: 7.0\n")
    ran = project.run("--perf", "-s")
    ran.assert_outcomes(failed=int(enough is False), passed=int(enough is not False))
    (wall,) = (float(line.split()[-1]) for line in ran.outlines if "wall" in line)
    assert (7.0 <= wall < 8.0) is (enough is not None)


def test_the_command_that_stores_selects_the_same_and_writes_nothing_else(project):
    """What writes files or stops early is left out; what selects and configures stays."""
    project.test("perf(lambda: spend(1))")
    ran = project.run("--perf", "--perf-html=page.html", "--perf-json", "out.json", "-x", "-k", "test_it")
    ran.stdout.fnmatch_lines(["*; store one with: pytest --save-baseline -k test_it"])


def test_a_missed_threshold_fails_the_test_with_one_clear_line(project):
    """The message stands alone in the short summary, without a traceback."""
    project.test(STEP, marker='min_samples_per_s=2000, min_utilization="85 %"')
    ran = project.run("--perf")
    ran.assert_outcomes(failed=1)
    ran.stdout.fnmatch_lines(
        [
            "samples/s 1,000 is below the 2,000 expected by the perf marker (off by 50 %)",
            "SCRIPTED utilization 50.0 % is below the 85.0 % expected by the perf marker (off by 41 %)",
            "FAILED test_it.py::test_it - *samples/s 1,000 is below*",
        ]
    )
    ran.stdout.no_fnmatch_line("*Traceback*")
    ran.stdout.no_fnmatch_line("*fixture.py*")


def test_a_limit_on_what_the_device_cannot_measure_fails_and_says_so(project):
    """Unmeasured is never passed."""
    project.script('peak_memory_bytes=None, notes=("peak_memory: no counter here",)')
    project.test(STEP, marker='max_peak_memory="1 GiB"')
    ran = project.run("--perf")
    ran.assert_outcomes(failed=1)
    ran.stdout.fnmatch_lines(["peak memory was not measured, *at most 1 GiB: no counter here"])


def test_nothing_measured_is_not_green(project):
    """A run of --perf without a single reading says so and does not exit 0."""
    project.pytester.makepyfile("def test_plain(): pass")
    ran = project.run("--perf")
    assert 5 == ran.ret
    ran.stdout.fnmatch_lines(["nothing was measured: *"])


def test_only_skipped_performance_tests_are_not_green_either(project):
    """A runner without a GPU cannot go green by skipping everything."""
    project.script("is_accelerator=False")
    project.pytester.makepyfile("import pytest\n@pytest.mark.gpu\ndef test_it(perf): pass")
    ran = project.run("--perf", "-rs")
    assert 5 == ran.ret
    ran.stdout.fnmatch_lines(["SKIPPED*needs an accelerator, --perf-device is scripted*"])


def test_collecting_only_measures_nothing_and_is_fine(project):
    """--collect-only is not a measuring run."""
    project.test(STEP)
    assert 0 == project.run("--perf", "--collect-only").ret


def test_a_performance_test_that_never_measures_fails(project):
    """A check that cannot fail is a defect; the message says what to call."""
    project.test("pass", marker="tolerance=0.1")
    ran = project.run("--perf")
    ran.assert_outcomes(failed=1)
    ran.stdout.fnmatch_lines(["the test measured nothing: call perf(step), perf.loop or perf.compare in it"])


def test_a_step_that_raises_shows_its_own_error(project):
    """The user's traceback is the user's."""
    project.test(
        "def step():\n    raise ZeroDivisionError('in the step')\nperf(step)", marker="min_samples_per_s=1"
    )
    ran = project.run("--perf")
    ran.assert_outcomes(failed=1)
    ran.stdout.fnmatch_lines(["*ZeroDivisionError: in the step"])
    ran.stdout.no_fnmatch_line("*was not measured*")


def test_plain_tests_run_beside_performance_tests(project):
    """--perf adds tests, it takes none away."""
    project.pytester.makepyfile(
        "from conftest import DEVICE\n"
        "def test_plain(): pass\n"
        "def test_perf(perf): perf(lambda: DEVICE.spend(1))"
    )
    project.run("--perf").assert_outcomes(passed=2)


def test_a_run_without_a_terminal_measures_too(project):
    """-p no:terminal leaves nobody to tell, and the verdict stands."""
    project.test(STEP, marker="min_samples_per_s=900")
    assert 0 == project.run("--perf", "-p", "no:terminal").ret


def test_skip_xfail_and_x_work_as_ever(project):
    """A performance test is a test: skips are skips, expected failures expected, -x stops."""
    project.pytester.makepyfile(
        """
        import pytest
        from conftest import DEVICE
        @pytest.mark.perf(min_samples_per_s=1e9)
        @pytest.mark.xfail(strict=True)
        def test_1(perf): perf(lambda: DEVICE.spend(1))
        def test_2(perf): pytest.skip("today not")
        @pytest.mark.perf(min_samples_per_s=1e9)
        def test_3(perf): perf(lambda: DEVICE.spend(1))
        def test_4(perf): perf(lambda: DEVICE.spend(1))
        """
    )
    project.run("--perf", "-x").assert_outcomes(xfailed=1, skipped=1, failed=1)


def test_last_failed_reruns_the_regressed_test(project):
    """--lf finds it, since the test itself failed."""
    project.test(STEP, marker="min_samples_per_s=2000")
    project.pytester.makeini("[pytest]\nperf_device = scripted")
    project.run("--perf")
    project.run("--perf", "--lf").assert_outcomes(failed=1)


def test_junitxml_carries_the_figures(project):
    """CI systems see samples/s beside the test."""
    project.test(STEP)
    project.run("--perf", "--junitxml=out.xml", "-o", "junit_family=xunit1")
    text = (project.path / "out.xml").read_text()
    value = re.search(r'<property name="perf.samples_per_s" value="([0-9.]+)"', text)[1]
    assert 1000 == pytest.approx(float(value))
