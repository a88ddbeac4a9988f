"""The routine check from the command line, and the micro-benchmarks beside it."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def run(*arguments):
    """Run pytest at the project's root, as a person would."""
    command = [sys.executable, "-m", "pytest", "--perf", "-p", "no:cacheprovider", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_the_first_steps_are_shared_out_and_add_up():
    """As many steps as asked for, seven shares that make the whole, and every item of the checklist."""
    ran = run("--perf-steps=20", "-m", "routine", "--perf-max-time=2s")
    assert 0 == ran.returncode, ran.stdout
    line = re.search(r"^20 steps on \S+, synthetic data: (.*)$", ran.stdout, re.MULTILINE)[1]
    shares = dict(re.findall(r"(\w+) ([\d.]+) %", line))
    assert ["loader", "transfer", "forward", "backward", "optimizer", "logging", "other"] == list(shares)
    assert 100 == pytest.approx(sum(map(float, shares.values())), abs=0.4)
    assert 10 == len(re.findall(r"^  \[[x ]\] ", ran.stdout, re.MULTILINE))


@pytest.mark.parametrize("steps", ["9", "0", "-5", "many", "1.5"])
def test_a_number_of_steps_that_says_nothing_is_refused(steps):
    """Shares of a handful of steps are none."""
    ran = run(f"--perf-steps={steps}", "-m", "routine")
    assert 4 == ran.returncode
    assert f"{steps!r} is no number of steps; give a whole number of at least 10" in ran.stderr
