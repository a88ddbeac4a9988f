"""Beside other plugins: pytest-benchmark, pytest-xdist, and whoever owns --perf already."""

import json

BENCHMARK = """
    import pytest
    from conftest import DEVICE
    {mark}
    def test_it(benchmark):
        benchmark.pedantic(lambda: DEVICE.spend(0.5), rounds=4)
    """


def test_benchmarks_on_an_accelerator_wait_for_it_and_carry_its_figures(project):
    """Under --perf pytest-benchmark's clock is read on an idle device; memory and utilization ride along."""
    project.pytester.makepyfile(BENCHMARK.format(mark=""))
    ran = project.run("--perf", "--benchmark-json=out.json")
    ran.assert_outcomes(passed=1)
    (entry,) = json.loads((project.path / "out.json").read_text())["benchmarks"]
    assert 0.5 == entry["stats"]["median"]
    assert {"device": "scripted", "utilization": 0.5, "peak_memory_bytes": 2**20} == entry["extra_info"]


def test_a_benchmark_s_first_round_is_its_warm_up(project):
    """What is allocated or compiled in it does not make the rounds after it invalid."""
    project.pytester.makepyfile(BENCHMARK.format(mark="@pytest.mark.perf"))
    project.script('invalid=[("the allocator requested memory",), ()]')
    project.run("--perf").assert_outcomes(passed=1)


def test_a_benchmark_of_one_round_has_no_warm_up(project):
    """Its only time includes the allocation, so it does not count."""
    project.pytester.makepyfile(BENCHMARK.format(mark="@pytest.mark.perf").replace("rounds=4", "rounds=1"))
    project.script('invalid=[("the allocator requested memory",), ()]')
    ran = project.run("--perf")
    ran.assert_outcomes(failed=1)
    ran.stdout.fnmatch_lines(["*the allocator requested memory*"])


def test_a_benchmark_is_watched_on_its_marker_s_device(project):
    """A host's function is not measured on the session's accelerator."""
    project.pytester.makepyfile(BENCHMARK.format(mark='@pytest.mark.perf(device="cpu")'))
    project.run("--perf", "--benchmark-json=out.json").assert_outcomes(passed=1)
    (entry,) = json.loads((project.path / "out.json").read_text())["benchmarks"]
    assert "cpu" == entry["extra_info"]["device"]


def test_without_perf_nothing_of_pytest_benchmark_changes(project):
    """Its own clock and an empty extra_info."""
    project.pytester.makepyfile(BENCHMARK.format(mark=""))
    project.run("--benchmark-json=out.json").assert_outcomes(passed=1)
    (entry,) = json.loads((project.path / "out.json").read_text())["benchmarks"]
    assert 0.5 > entry["stats"]["median"]
    assert {} == entry["extra_info"]


def test_a_marked_benchmark_is_judged_like_any_reading(project):
    """Limits and baselines work for the benchmark fixture too."""
    project.pytester.makepyfile(BENCHMARK.format(mark='@pytest.mark.perf(max_step_time="100 ms")'))
    ran = project.run("--perf")
    ran.assert_outcomes(failed=1)
    ran.stdout.fnmatch_lines(
        ["step time 500 ms is above the 100 ms expected by the perf marker (off by 400 %)"]
    )


def test_a_benchmark_that_raises_shows_its_own_error(project):
    """Watching it does not hide what went wrong."""
    project.pytester.makepyfile("def test_it(benchmark): benchmark.pedantic(lambda: 1 / 0)")
    ran = project.run("--perf")
    ran.assert_outcomes(failed=1)
    ran.stdout.fnmatch_lines(["*ZeroDivisionError*"])


def test_measuring_in_parallel_is_refused(project):
    """Two workers on one device lie; without --perf xdist is welcome."""
    project.test("perf(lambda: spend(1))")
    ran = project.pytester.runpytest_subprocess("--perf", "-n", "2")
    assert 4 == ran.ret
    ran.stderr.fnmatch_lines(["*run --perf without pytest-xdist (-n 0)"])
    project.pytester.runpytest_subprocess("-n", "2").assert_outcomes(skipped=1)


OWNER = "def pytest_addoption(parser):\n    parser.addoption('--perf', action='store_true')\n"


def test_a_conftest_that_owns_perf_is_named(project):
    """pytest says that the name is taken; we say by whom and what to do."""
    project.pytester.makeconftest(OWNER)
    project.pytester.makepyfile("def test_it(): pass")
    ran = project.pytester.runpytest_subprocess()
    assert 4 == ran.ret
    ran.stderr.fnmatch_lines(
        ["*--perf is also declared by *conftest.py. Rename it there, or *-p no:perfsuite"]
    )
    project.pytester.runpytest_subprocess("-p", "no:perfsuite", "--perf").assert_outcomes(passed=1)


def test_a_plugin_that_owns_perf_is_named(project):
    """The same where a plugin was loaded before ours, in a group of its own."""
    project.pytester.makepyfile(
        early="def pytest_addoption(parser):\n    group = parser.getgroup('early')\n"
        "    group.addoption('--perf', dest='theirs', action='store_true')\n",
        test_it="def test_it(): pass",
    )
    project.pytester.syspathinsert()
    ran = project.pytester.runpytest_subprocess("-p", "early")
    assert 4 == ran.ret
    ran.stderr.fnmatch_lines(["*--perf is also declared by *early.py. Rename it there*"])


def test_other_peoples_conflicts_are_left_to_pytest(project):
    """An option that is none of ours is none of our business."""
    project.pytester.makeconftest(
        "def pytest_addoption(parser):\n    parser.addoption('--other')\n    parser.addoption('--other')\n"
    )
    ran = project.pytester.runpytest_subprocess()
    assert 0 != ran.ret
    assert "perfsuite:" not in ran.stderr.str()
