"""Markers: mistakes are refused at collection, all at once, and help teaches the right ones."""

import pytest


def test_mistakes_are_refused_before_anything_runs_with_or_without_the_flag(project):
    """Two wrong tests are told in one go, with the known names, and the right one does not run."""
    project.pytester.makepyfile(
        """
        import pytest
        @pytest.mark.perf(min_utilisation="85 %")
        def test_1(perf): pass
        @pytest.mark.perf(85)
        def test_2(perf): pass
        @pytest.mark.perf(max_step_time="2 parsec")
        def test_4(perf): pass
        def test_3(): raise SystemError("it ran")
        """
    )
    for flags in ([], ["--perf"]):
        ran = project.run(*flags)
        assert 4 == ran.ret
        ran.stderr.fnmatch_lines(
            [
                "*wrong markers:",
                "*test_1: unknown argument 'min_utilisation' (did you mean 'min_utilization'?)*Known: min_*",
                "*test_2: perf takes named arguments only, got 85; known: min_samples_per_s*",
                "*test_4: max_step_time: '2 parsec' is not a duration; write *or a number of seconds",
            ]
        )
        ran.stdout.no_fnmatch_line("*SystemError*")


@pytest.mark.parametrize("value", ['"two"', "0", "True"])
def test_multi_gpu_takes_a_number(project, value):
    """A count that is none is refused."""
    project.pytester.makepyfile(f"import pytest\n@pytest.mark.multi_gpu({value})\ndef test_1(perf): pass")
    ran = project.run("--perf")
    assert 4 == ran.ret
    ran.stderr.fnmatch_lines(["*multi_gpu takes a whole number of devices*"])


@pytest.mark.parametrize("arguments", ["count=4", "2, 4", "2, n=4, m=1"])
def test_multi_gpu_takes_nothing_else(project, arguments):
    """A name that is not known must not be measured on two."""
    marked = f"@pytest.mark.multi_gpu({arguments})\ndef test_1(perf): pass"
    project.pytester.makepyfile(f"import pytest\n{marked}")
    ran = project.run("--perf")
    assert 4 == ran.ret
    ran.stderr.fnmatch_lines(
        ["*multi_gpu takes the number of devices and nothing else, such as multi_gpu(4)"]
    )


def test_limits_may_also_be_given_at_the_call(project):
    """perf(step, max_step_time=…) limits that reading alone, and typing mistakes there are told too."""
    project.test("perf(lambda: spend(0.01), max_step_time='1 ms')")
    ran = project.run("--perf")
    ran.assert_outcomes(failed=1)
    ran.stdout.fnmatch_lines(["step time 10 ms is above the 1 ms expected by the perf call (off by 900 %)"])
    project.test("perf(lambda: spend(0.01), max_steptime='1 ms')")
    project.run("--perf").stdout.fnmatch_lines(["unknown argument 'max_steptime' (did you mean*"])


def test_markers_fixtures_and_help_teach_the_plugin(project):
    """One line each, with an example for perf."""
    markers = project.run("--markers").stdout
    markers.fnmatch_lines(
        [
            '@pytest.mark.perf(min_samples_per_s=,*Example: @pytest.mark.perf(*"12 GiB")',
            "@pytest.mark.gpu: needs an accelerator*",
            "@pytest.mark.multi_gpu(n=2): needs n accelerators*",
        ]
    )
    project.run("--fixtures").stdout.fnmatch_lines(
        [
            "perf -- *plugin/__init__.py:*",
            "*Measure: perf(step, samples_per_step=64), perf.loop(loader, step), *",
        ]
    )
    project.run("--help").stdout.fnmatch_lines(
        [
            "performance of trainings (perfsuite):",
            "*--perf *run performance tests*",
            "*--save-baseline *",
            "*--perf-device=NAME*",
            "*--perf-tolerance=SHARE*",
            "*perf_device (string)*",
        ]
    )


def test_strict_markers_know_ours(project):
    """--strict-markers does not stumble over perf, gpu and multi_gpu."""
    project.pytester.makepyfile(
        "import pytest\n@pytest.mark.perf\n@pytest.mark.gpu\n@pytest.mark.multi_gpu\ndef test_1(perf): pass"
    )
    project.run("--strict-markers").assert_outcomes(skipped=1)
