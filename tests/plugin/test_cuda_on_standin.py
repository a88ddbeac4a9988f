"""The whole line on the CUDA device: scripted torch, real plugin, real binding, stand-in library."""

import pytest

from tests.nvml import standin
from tests.nvml.standin import script, square_wave

CONFTEST = """
from perfsuite.devices.cuda import device as cuda
from tests.nvml.watch import ScriptClock, wait_for_end
from tests.unit.devices.cuda.test_device import RecordingTorch

torch, clocks, samplers = RecordingTorch(), [], []

def sampler(nvml, **settings):
    clock = ScriptClock(0.0)
    clock.end = clock.now() + SECONDS
    clocks.append(clock)
    samplers.append(REAL(nvml, clock=clock, **settings))
    return samplers[-1]

SECONDS, REAL = {seconds}, cuda.Sampler
cuda.Sampler = sampler

def pytest_perf_device(config, name):
    device = cuda.CudaDevice(torch, 0)
    device.now = lambda: torch.clock
    return device

def step():
    torch.clock += 0.5
    if samplers:
        wait_for_end(samplers[-1], clocks[-1])
"""
TEST = """
import pytest
from conftest import step

@pytest.mark.perf({marker})
def test_it(perf):
    perf(step, samples_per_step=8)
"""


@pytest.fixture
def run(project, library, monkeypatch):
    """Run one test on a scripted card."""

    def run(lines, marker="", *arguments, seconds=20.0, more=""):
        path = project.path / "script.txt"
        path.write_text(script("at 0 processes 99:1", *lines))
        for name, value in standin.environment(library, path).items():
            monkeypatch.setenv(name, value)
        project.pytester.makeini("[pytest]\nperf_device = cuda\nperf_cooldown = 0\nperf_min_time = 1")
        project.pytester.makeconftest(CONFTEST.format(seconds=seconds) + more)
        project.pytester.makepyfile(test_it=TEST.format(marker=marker))
        return project.run_apart("--perf", *arguments)

    return run


def test_a_steady_card_keeps_its_limits(run):
    """Utilization, swing, idle stretch and kernel-busy share are all available to assertions."""
    limits = (
        'min_utilization="85 %", max_utilization_swing="5 %", max_idle_stretch="1 s", min_kernel_busy=0.5'
    )
    run(["at 0 utilization 87"], limits).assert_outcomes(passed=1)


def test_kernels_and_waits_of_the_profile_can_be_limited(run):
    """One kernel in three profiled steps, and no wait."""
    ran = run(["at 0 utilization 87"], "max_kernels=0.2, max_syncs=0, max_blocking_copies=0, max_flops=9")
    ran.assert_outcomes(failed=1)
    ran.stdout.fnmatch_lines(
        [
            "kernels per step 0.33 is above the 0.20 expected by the perf marker (*",
            "FLOPs per step was not measured, but the perf marker expects *: cuda:0 does not measure it",
        ]
    )
    ran.stdout.no_fnmatch_line("*per step 0 is above*")


def test_a_wave_misses_its_limits(run):
    """The mean alone would pass."""
    limits = 'min_utilization="40 %", max_utilization_swing="30 %"'
    ran = run(square_wave(9, 90, 9.5, 100), limits, seconds=40.0)
    ran.assert_outcomes(failed=1)
    ran.stdout.fnmatch_lines(["utilization swing 81.0 % is above the 30.0 % expected by the perf marker (*"])


def test_too_short_a_window_fails_a_limit_with_advice(run):
    """Never a guess."""
    lines = ["at 0 utilization 87", "at 0 sample_ms 1000"]
    ran = run(lines, 'max_utilization_swing="30 %"', seconds=5.0)
    ran.assert_outcomes(failed=1)
    ran.stdout.fnmatch_lines(["utilization swing was not measured*too short to judge*(--perf-min-time=10s)"])


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("at 3 reasons 0x20", "throttled for * s of 20.0 s (too hot)"),
        ("at 0 processes 98:1 99:1\nat 0 active 98:50 99:37", "*another process ran kernels on the GPU *"),
        ("fail nvmlDeviceGetSamples 15 9", "the GPU is lost: *"),
        ("fail nvmlInitWithFlags 18", "driver and NVIDIA library have different versions: *"),
    ],
)
def test_what_does_not_count_fails_as_invalid(run, line, reason):
    """Both times, so the limit is not even judged."""
    ran = run(["at 0 utilization 87", line], "max_step_time=1e-9")
    ran.assert_outcomes(failed=1)
    ran.stdout.fnmatch_lines([f"invalid measurement: {reason}"])
    ran.stdout.no_fnmatch_line("*step time*is above*")


def test_a_card_that_has_cooled_down_counts(run):
    """Throttled in the first window only."""
    ran = run(["at 0 utilization 87", "at 8 reasons 0x20", "at 11 reasons 0"])
    ran.assert_outcomes(passed=1)
    ran.stdout.fnmatch_lines(["note: *measured twice: *did not count (throttled for 3.0 s of 20.0 s*"])


def test_other_clocks_than_the_baselines_do_not_count(run, project):
    """Stored with one clock and power limit, measured at others."""
    run(["at 0 utilization 87"], "", "--save-baseline").assert_outcomes(passed=1)
    assert '"power_limit_watts": 150.0' in (project.path / project.stored[0]).read_text()
    ran = run(["at 0 utilization 87", "at 0 sm_clock 1200", "at 0 power_limit 120"])
    ran.assert_outcomes(failed=1)
    ran.stdout.fnmatch_lines(
        ["invalid measurement: the SM clock under load is 1200 MHz, *the power limit is 120 W*"]
    )


def test_a_regression_at_the_power_limit_is_not_excused_by_its_clock(run):
    """A change that heats the card lowers its clock: the limit is judged, and the clock is a note."""
    run(["at 0 utilization 87"], "", "--save-baseline").assert_outcomes(passed=1)
    ran = run(["at 0 utilization 87", "at 0 reasons 0x4", "at 0 sm_clock 1200"], "max_step_time=0.1")
    ran.assert_outcomes(failed=1)
    ran.stdout.fnmatch_lines(["step time 500 ms is above the 100 ms expected by the perf marker*"])
    ran.stdout.fnmatch_lines(
        ["*SM clock under load is 1200 MHz, the baseline was taken at 1695 MHz (at the *"]
    )


OTHER_CARD = """
from tests.unit.devices.cuda import test_device
test_device.UUID = "87654321-1234-1234-1234-123456789abc"
"""


def test_another_card_of_the_kind_is_gated_with_a_margin(run, project):
    """Its baseline lies in a folder of the first card; the second one says whose it is compared with."""
    run(["at 0 utilization 87"], "", "--save-baseline").assert_outcomes(passed=1)
    assert project.stored[0].parts[1].endswith("_gpu-12345678")
    lines = ["at 0 utilization 87", "card GPU-87654321-1234-1234-1234-123456789abc"]
    ran = run(lines, "", "--perf-strict", more=OTHER_CARD)
    ran.assert_outcomes(passed=1)
    ran.stdout.fnmatch_lines(
        [
            "perfsuite: * baselines: baselines (1 stored, by other cards of this kind), key: *_gpu-87654321",
            "note: *the baseline is of another card of this kind: its margin allows for what cards*",
        ]
    )


# Every process of the run appears on the card and stays there while it lives, as a CUDA context does.
ARRIVAL = """
import os
from pathlib import Path
import psutil

seen = Path(__file__).with_name("pids.txt")
with seen.open("a") as file:
    file.write(f"{os.getpid()}\\n")
here = [pid for pid in seen.read_text().split() if psutil.pid_exists(int(pid))]
with Path(os.environ["NVML_SCRIPT"]).open("a") as file:
    file.write("at 0 processes " + " ".join(f"{pid}:1" for pid in here) + "\\n")
"""
FIXTURE = """
import pytest
from pathlib import Path

@pytest.fixture(autouse=True)
def model(perf):
    yield
    torch.calls.append("fixture gone")

def pytest_sessionfinish():
    Path(__file__).with_name("calls.txt").write_text("\\n".join(torch.calls))
"""


def test_fresh_processes_do_not_disturb_each_other(run, project):
    """The run that waits for them is on the card too, and counts as one of its own processes."""
    ran = run(["at 0 utilization 87"], "", "--save-baseline", "--perf-sessions=3", more=ARRIVAL)
    ran.assert_outcomes(passed=1)
    assert 3 == len((project.path / "pids.txt").read_text().split())
    ran.stdout.fnmatch_lines(["stored 1 baseline*"])


def test_memory_is_given_back_when_a_test_is_over(run, project):
    """Cached blocks of this process would be missing in a fresh one; the test's fixtures go first."""
    run(["at 0 utilization 87"], more=FIXTURE).assert_outcomes(passed=1)
    assert ["fixture gone", "empty_cache"] == (project.path / "calls.txt").read_text().split("\n")[-2:]
