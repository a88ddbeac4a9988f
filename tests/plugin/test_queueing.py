"""Two runs on one device: the second waits and says for whom; children and runs inside a run do not."""

import os
import signal
import subprocess
import sys

import pytest

from tests.plugin.test_against import CONFTEST as COMPARED
from tests.plugin.test_against import TEST, Repository

pytest.importorskip("fcntl", reason="Windows has no locks")

CONFTEST = """
from perfsuite.devices.scripted import ScriptedDevice
DEVICE = ScriptedDevice()
DEVICE.locks = ("a-card",)
def pytest_perf_device(config, name):
    return DEVICE if name == "scripted" else None
"""
BODY = """
import os, sys
if "BLOCKED" in os.environ:
    print("measuring", flush=True)
    sys.stdin.readline()
perf(lambda: spend(1))
"""


class Runs:
    """Start pytest processes side by side, and talk to them through their input and output."""

    def __init__(self, project):
        self.project, self.started = project, []
        project.pytester.makeconftest(CONFTEST)
        project.test(BODY.strip())

    def start(self, *arguments, **more):
        child = subprocess.Popen(
            [sys.executable, "-m", "pytest", "--perf", "-s", *arguments],
            cwd=self.project.path,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, **more},
        )
        self.started.append(child)
        return child

    def blocked(self, *arguments):
        """Return a run that is in the middle of its test until it gets a line."""
        child = self.start(*arguments, BLOCKED="1")
        wait_for(child, "measuring")
        return child


def wait_for(child, words):
    """Read what a process says up to a line with these words and return that line."""
    said = []
    for line in child.stdout:
        said.append(line)
        if words in line:
            return line
    raise AssertionError("".join(said))


def rest(child, line=""):
    """Give a process its line, let it end, and return what it said since; communicate() would lose some."""
    child.stdin.write(line)
    child.stdin.close()
    said = child.stdout.read()
    child.wait()
    return said


@pytest.fixture
def runs(project):
    runs = Runs(project)
    yield runs
    for child in runs.started:
        child.kill()
        child.wait()
        child.stdin.close()
        child.stdout.close()


@pytest.mark.parametrize("device", ["scripted", "cpu"])
def test_the_second_run_waits_for_the_first_and_both_pass(runs, device):
    """It says who is measuring, and begins when that run is over."""
    arguments = (f"--perf-device={device}", "--perf-min-time=0.05", "--perf-max-time=0.1")
    first = runs.blocked(*arguments)
    second = runs.start(*arguments)
    line = wait_for(second, "waiting for")
    name = "a-card" if device == "scripted" else "cpu"
    assert f"waiting for {name}, in use by pid {first.pid} of " in line
    assert f"(pytest --perf -s --perf-device={device} " in line
    assert "1 passed" in rest(first, "\n")
    wait_for(second, f"{name} is free, measuring")
    assert "1 passed" in rest(second)
    assert (0, 0) == (first.returncode, second.returncode)


def test_a_killed_run_blocks_nobody(runs):
    """The kernel unlocks; the name it left is nobody's."""
    first = runs.blocked()
    first.send_signal(signal.SIGKILL)
    first.wait()
    ran = runs.start("--perf-lock-timeout=0")
    assert "1 passed" in rest(ran)


@pytest.mark.parametrize(
    ("timeout", "told"), [("0", "not waited for (--perf-lock-timeout=0 s)"), ("0.5 s", "waited 0.5")]
)
def test_a_device_that_is_not_free_in_time_is_wrong_use(runs, timeout, told):
    """Nothing was measured; holder and remedy are named."""
    first = runs.blocked()
    second = runs.start(f"--perf-lock-timeout={timeout}")
    said = rest(second)
    assert 4 == second.returncode
    assert f"ERROR: perfsuite: a-card is in use by another performance run: pid {first.pid} of " in said
    assert told in said
    assert "with --perf-lock-timeout, or measure on another device" in said


def test_ctrl_c_ends_the_waiting(runs):
    """As it ends everything else."""
    runs.blocked()
    second = runs.start()
    wait_for(second, "waiting for a-card")
    second.send_signal(signal.SIGINT)
    assert "KeyboardInterrupt" in rest(second)
    assert 2 == second.returncode


@pytest.mark.parametrize(
    "arguments",
    [["--collect-only"], ["-k", "plain"], ["-k", "skipped"], ["--perf-device=model:a10"]],
    ids=["collecting", "other tests", "skipped tests", "modelled"],
)
def test_who_measures_nothing_waits_for_nobody(runs, arguments):
    """Nothing selected, everything skipped, or modelled: there is nothing to disturb."""
    runs.blocked()
    (runs.project.path / "test_more.py").write_text(
        "import pytest\ndef test_plain(): pass\n@pytest.mark.skip\ndef test_skipped(perf): perf(int)\n"
    )
    (runs.project.path / "test_it.py").write_text("def test_it(perf): perf(int)\n")
    second = runs.start("--perf-lock-timeout=0", *arguments)
    said = rest(second)
    assert "in use" not in said
    assert 4 != second.returncode


def test_fresh_processes_of_a_run_do_not_wait_for_it(runs):
    """A baseline's sessions are children of the holder."""
    ran = runs.start("--save-baseline", "--perf-sessions=2", "--perf-lock-timeout=0")
    said = rest(ran)
    assert "stored 1 baseline" in said, said
    assert 0 == ran.returncode


def test_a_run_inside_a_test_does_not_wait_for_the_outer_one(runs):
    """The right to the device is handed down by the environment."""
    inner = "[sys.executable, '-m', 'pytest', '--perf', '--perf-lock-timeout=0', 'inner_test.py']"
    (runs.project.path / "inner_test.py").write_text(
        "from conftest import DEVICE\ndef test_it(perf): perf(lambda: DEVICE.spend(1))\n"
    )
    runs.project.test(f"import subprocess, sys\nsubprocess.run({inner}, check=True)\nperf(lambda: spend(1))")
    said = rest(runs.start("test_it.py"))
    assert 2 == said.count("1 passed"), said


def test_both_sides_of_a_comparison_do_not_wait_for_it(pytester, monkeypatch, tmp_path_factory):
    """The comparing process holds the device for them, and would not get it itself if it were held."""
    repository = Repository(pytester, monkeypatch, tmp_path_factory)
    asking = f"{COMPARED}\nDEVICE.locks = ('a-card',)\n"
    repository.write("conftest.py", asking)
    repository.write("test_it.py", TEST)
    repository.commit()
    repository.run("--perf-lock-timeout=0").assert_outcomes(passed=1)
