"""The perf fixture: step, loop, compare, and clear messages about steps that cannot be measured."""

import pytest

SETUP = "from types import SimpleNamespace as Box\n"


def test_a_loop_shows_its_data_wait(project):
    """The wait for batches is shown in the table and can be limited."""
    project.test(
        "def loader():\n    for _ in range(20):\n        spend(0.03)\n        yield [0] * 4\n"
        "class Loader:\n    def __iter__(self): return loader()\n"
        "reading = perf.loop(Loader(), lambda batch: spend(0.01), samples_per_step=len)\n"
        "assert reading.samples_per_s == pytest.approx(100)",
        marker='max_data_wait="20 %"',
    )
    ran = project.run("--perf")
    ran.assert_outcomes(failed=1)
    ran.stdout.fnmatch_lines(
        [
            "data wait 75.0 % is above the 20.0 % expected by the perf marker (off by 275 %)",
            "  where the step's time went: data wait 75.0 %, other 25.0 %",
            "  likely cause: data-bound: the loader (data wait 75.0 %; on one resident batch a step takes*",
            "  Try num_workers=2 (now 0), or data that is prepared beforehand; more: *explain data-bound",
        ]
    )


def test_a_comparison_shows_its_speed_up_and_asserts_it(project):
    """The returned reading carries the speed-up and its interval."""
    project.test(
        "seen = perf.compare(without=lambda: spend(0.03), with_=lambda: spend(0.01), samples_per_step=4)\n"
        "assert seen.speedup == pytest.approx(3) and seen.speedup_low < 3.01 and seen.speedup_high > 2.99",
        marker="min_speedup=2.9",
    )
    ran = project.run("--perf")
    ran.assert_outcomes(passed=1)
    ran.stdout.fnmatch_lines(["*3.00×*ok"])


def test_variants_with_different_results_fail(project):
    """Faster and wrong is not faster."""
    project.test(
        "perf.compare(without=lambda: (spend(0.03), 1.0)[1], with_=lambda: (spend(0.01), 1.5)[1], "
        "result=lambda out: out)"
    )
    ran = project.run("--perf")
    ran.assert_outcomes(failed=1)
    ran.stdout.fnmatch_lines(["difference of results 0.50× is above the 1.0e-04 expected by perf.compare*"])


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ("perf(3)", "step must be callable, got int; pass the function itself"),
        (
            "perf(lambda: spend(1), samples_per_step=0)",
            "samples_per_step must be a whole number of at least 1*",
        ),
        ("perf.loop(3, lambda batch: None)", "perf.loop needs a loader to iterate over, got int"),
        ("perf.loop([], lambda batch: None)", "the loader gave no batch: *"),
        ("perf.compare(without=1, with_=lambda: 1)", "without must be callable*"),
    ],
)
def test_wrong_use_is_told_in_one_line(project, body, told):
    """No traceback from inside the plugin."""
    project.test(body)
    ran = project.run("--perf")
    ran.assert_outcomes(failed=1)
    ran.stdout.fnmatch_lines([told])
    ran.stdout.no_fnmatch_line("*meter.py*")


def test_the_memorys_zero_is_taken_once_per_test(project):
    """Memory that a test allocates before its first step counts, too."""
    project.pytester.makepyfile(
        """
        from conftest import DEVICE
        def test_1(perf):
            perf(lambda: DEVICE.spend(1))
            perf(lambda: DEVICE.spend(1))
            assert 1 == DEVICE.events.count("begin")
        def test_2(perf):
            perf(lambda: DEVICE.spend(1))
            assert 2 == DEVICE.events.count("begin")
        """
    )
    project.run("--perf").assert_outcomes(passed=2)


def test_nothing_is_printed_to_a_pipe_while_measuring(project):
    """The progress line is for terminals only."""
    project.test("perf(lambda: spend(0.01))")
    ran = project.pytester.runpytest_subprocess("--perf")
    assert "\x1b" not in ran.stdout.str()
    assert "warm-up" not in ran.stdout.str()


TOO_SLOW = 'perf(lambda: DEVICE.spend(1), max_step_time="1 ms")'


@pytest.mark.parametrize(
    "test",
    [
        f"@pytest.fixture\ndef perf(perf):\n    return perf\ndef test_it(perf):\n    {TOO_SLOW}",
        f"def test_it(request):\n    perf = request.getfixturevalue('perf')\n    {TOO_SLOW}",
        f"@pytest.fixture\ndef timed(perf):\n    return perf\n"
        f"def test_it(timed):\n    perf = timed\n    {TOO_SLOW}",
    ],
    ids=["extended", "requested while it runs", "behind another"],
)
def test_whatever_way_the_fixture_comes_its_limits_hold(project, test):
    """What was measured is judged; without the flag the test is skipped."""
    project.pytester.makepyfile(f"import pytest\nfrom conftest import DEVICE\n{test}")
    project.run().assert_outcomes(skipped=1)
    ran = project.run("--perf")
    ran.assert_outcomes(failed=1)
    ran.stdout.fnmatch_lines(["step time 1 s is above the 1 ms expected by the perf call*"])
    ran.stdout.fnmatch_lines(["* 1 s *failed"])


def test_a_limit_that_a_call_cannot_carry_fails(project):
    """Never a pass: neither a step nor a comparison has a data wait."""
    project.test(
        "perf(lambda: spend(1), max_data_wait='1 %', min_speedup=2, name='a')\n"
        "perf.compare(without=lambda: spend(1), with_=lambda: spend(1), max_data_wait='1 %', name='b')"
    )
    ran = project.run("--perf")
    ran.assert_outcomes(failed=1)
    unmeasured = "was not measured, but the perf call expects at most 1.0 %: only perf.loop measures it"
    ran.stdout.fnmatch_lines(
        [
            "a: speed-up was not*only perf.compare measures it",
            f"a: data wait {unmeasured}",
            f"b: *{unmeasured}",
        ]
    )
