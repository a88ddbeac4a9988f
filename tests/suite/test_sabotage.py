"""Every contract of the suite can fail: with its optimization switched off inside, it does."""

import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.perf import table
from tests.perf.catalogue import CATALOGUE
from tests.perf.contract import Case
from tests.perf.switches import sabotage_of
from tests.readings import make_reading

ROOT = Path(__file__).parents[2]
# How a contract breaks: by a limit, a ratio, a difference or a baseline. Anything else is an accident.
_REASONS = re.compile(
    r"expected by (the perf call|the table|perf\.compare)|tests\.perf\.contract\.Broken|"
    r"(above|below) the baseline|^assert |AssertionError",
    re.MULTILINE,
)


def run_suite(tmp_path, *arguments):
    """Run the contracts in a process of their own and return its output and the tests it ran."""
    report = tmp_path / "report.xml"
    command = [sys.executable, "-m", "pytest", "--perf", "tests/perf", "-q", "-p", "no:cacheprovider"]
    ran = subprocess.run(
        [*command, f"--junitxml={report}", "-o", "addopts=--import-mode=importlib", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert report.exists(), ran.stdout + ran.stderr
    return ran, [case for case in ElementTree.parse(report).iter("testcase") if case.find("skipped") is None]


@pytest.mark.slow
@pytest.mark.skipif("PERFSUITE_SABOTAGE" not in os.environ, reason="takes minutes: run `make sabotage`")
@pytest.mark.parametrize("asked", ["all", "all:half"])
def test_every_contract_breaks_when_it_is_sabotaged(tmp_path, asked):
    """With every optimization off in its own contract, all are red, each for a reason the contract has."""
    ran, cases = run_suite(tmp_path, "-m", "contract", f"--perf-sabotage={asked}", "--perf-max-time=2s")
    green = [case.get("name") for case in cases if case.find("failure") is None]
    assert [] == green, "these hold without their optimization"
    accidents = {
        case.get("name"): (case.find("failure").text or "")[-600:]
        for case in cases
        if not _REASONS.search(f"{case.find('failure').get('message')}\n{case.find('failure').text}")
    }
    assert {} == accidents
    broken = set(re.findall(r"^(O\d+) .* BROKEN", ran.stdout, re.MULTILINE))
    assert set(CATALOGUE) == broken


@pytest.mark.parametrize("asked", ["O12", "O12:half"])
def test_one_optimization_can_be_sabotaged_alone(tmp_path, asked):
    """The others stay as they are."""
    ran, cases = run_suite(
        tmp_path, "tests/perf/test_transfer.py", "-k", "nested or resident", f"--perf-sabotage={asked}"
    )
    assert {"nested": True, "resident": False} == {
        word: case.find("failure") is not None
        for case in cases
        for word in ("nested", "resident")
        if word in case.get("name")
    }
    assert f"sabotaged: {asked}; every contract of it must be broken" in ran.stdout


@pytest.mark.parametrize("asked", ["O27", "o1", "", "O"])
def test_an_unknown_optimization_is_refused(asked, tmp_path):
    """The message lists what there is."""
    command = [sys.executable, "-m", "pytest", "tests/perf", f"--perf-sabotage={asked}"]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert 4 == ran.returncode
    assert f"{asked!r} is no optimization; name one of O1, O2, O3" in ran.stderr


def test_only_the_whole_or_half_can_be_taken_away():
    """A third would be nobody's definition."""
    command = [sys.executable, "-m", "pytest", "tests/perf", "--perf-sabotage=O6:third"]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert 4 == ran.returncode
    assert "'O6:third': an optimization is lost wholly (O6) or by half (O6:half)" in ran.stderr


@pytest.mark.parametrize(
    ("asked", "number", "expected"),
    [
        (None, "O6", ""),
        ("O6", "O6", "whole"),
        ("O6:half", "O6", "half"),
        ("O6:half", "O16", ""),
        ("all", "O6", "whole"),
        ("all:half", "O6", "half"),
    ],
)
def test_which_part_of_an_optimization_is_lost(asked, number, expected):
    """By its number, or all at once."""
    assert expected == sabotage_of(asked, number)


@pytest.mark.parametrize(
    ("sabotage", "without", "with_", "samples"),
    [
        ("", ["slow"], ["fast"], 4),
        ("whole", ["slow"], ["slow"], 4),
        ("half", ["slow", "slow"], ["slow", "fast"], 8),
    ],
)
def test_half_of_a_sabotaged_step_is_done_in_the_slow_way(sabotage, without, with_, samples):
    """Against twice the slow way, with twice the samples: ratios are those of half the steps."""
    done, seen = [], []

    class Compared:
        """Stand in for the perf fixture."""

        device_name = "cpu"

        def compare(self, *, without, with_, samples_per_step, **_):
            """Note what each variant does."""
            for variant in (without, with_):
                variant()
                seen.append([*done])
                done.clear()
            seen.append(samples_per_step)
            reading = make_reading("x", "comparison", "cpu", 1, 1, 1, 1.0, (1.0,))
            return replace(reading, without=reading)

    case = Case("O1", Compared(), table.Row("test", "cpu", {}), sabotage)
    case.compare(without=lambda: done.append("slow"), with_=lambda: done.append("fast"), samples=4)
    assert [without, with_, samples] == seen
