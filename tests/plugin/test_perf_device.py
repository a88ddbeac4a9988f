"""--perf-device: a device asked for by name and not there is an error, never a silent other one."""

import subprocess
import sys

import pytest

STEP = "perf(lambda: spend(0.01))"


def available_apart():
    """Ask torch for CUDA devices without loading it here."""
    code = "import torch; print(torch.cuda.is_available())"
    return (
        "True"
        in subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    )


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("cuda", "*device cuda was requested, but torch*"),
        ("cuda:3", "*device cuda:3 was requested, but torch*"),
        (
            "tpu",
            "*unknown device 'tpu'; known: auto, cpu, cuda, cuda:N, emulated:CARD, emulated:NxCARD, "
            "model:CARD, model:NxCARD@LINK",
        ),
    ],
)
def test_a_missing_device_is_a_usage_error(project, name, told):
    """A runner whose driver died cannot go green."""
    if available_apart() and name != "tpu":
        pytest.skip("this machine has the device")
    project.test(STEP)
    ran = project.run_apart("--perf", f"--perf-device={name}")
    assert 4 == ran.ret
    ran.stderr.fnmatch_lines([told])


def test_the_command_line_beats_the_marker_and_the_marker_the_ini(project):
    """Precedence: command line > marker > ini."""
    project.test("assert perf.device == 'cpu'\nperf(lambda: None)", marker='device="cpu"')
    project.run_apart("--perf", "--perf-min-time=1ms", "--perf-max-time=50 ms").assert_outcomes(passed=1)
    project.test("assert perf.device == 'scripted'\nperf(lambda: spend(1))", marker='device="cpu"')
    project.run("--perf", "--perf-device=scripted").assert_outcomes(passed=1)


def test_a_markers_missing_device_fails_that_test_only(project):
    """One test that wants what is not there does not take the others down."""
    project.pytester.makepyfile(
        """
        import pytest
        from conftest import DEVICE
        @pytest.mark.perf(device="nowhere")
        def test_1(perf): perf(lambda: DEVICE.spend(1))
        def test_2(perf): perf(lambda: DEVICE.spend(1))
        """
    )
    ran = project.run("--perf")
    ran.assert_outcomes(errors=1, passed=1)
    ran.stdout.fnmatch_lines(["*unknown device 'nowhere'*"])


def test_gpu_tests_run_on_an_accelerator_and_are_skipped_elsewhere(project):
    """The marker needs an accelerator; the reason names the device that is none."""
    project.pytester.makepyfile(
        """
        import pytest
        from conftest import DEVICE
        @pytest.mark.gpu
        def test_1(perf): perf(lambda: DEVICE.spend(1))
        @pytest.mark.multi_gpu(4)
        def test_2(perf): perf(lambda: DEVICE.spend(1))
        """
    )
    ran = project.run("--perf", "-rs")
    ran.assert_outcomes(passed=1, skipped=1)
    ran.stdout.fnmatch_lines(["SKIPPED*needs 4 accelerators, there are 1"])
    project.script("is_accelerator=False")
    project.run("--perf").assert_outcomes(skipped=2)


def test_gpu_tests_that_measure_nothing_need_no_flag_but_a_gpu(project):
    """The marker works for plain tests too, and asks torch only then."""
    project.pytester.makepyfile("import pytest\n@pytest.mark.gpu\ndef test_it(): pass")
    expected = {"passed": 1} if available_apart() else {"skipped": 1}
    ran = project.run_apart("-rs")
    ran.assert_outcomes(**expected)


def test_the_cpu_measures_for_real(project):
    """On the CPU a real step gives figures on a real clock."""
    project.test("reading = perf(lambda: sum(range(10000)))\nassert 0 < reading.utilization <= 1")
    ran = project.run_apart("--perf", "--perf-device=cpu", "--perf-min-time=10 ms", "--perf-max-time=0.2")
    ran.assert_outcomes(passed=1)
    ran.stdout.fnmatch_lines(["perfsuite: cpu (*, * thread*), clock: perf_counter, *key: cpu_*"])
