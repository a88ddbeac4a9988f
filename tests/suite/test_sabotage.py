"""Every contract of the suite can fail: with its optimization switched off inside, it does."""

import os
import re
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.perf.catalogue import CATALOGUE

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
def test_every_contract_breaks_when_it_is_sabotaged(tmp_path):
    """With every optimization off in its own contract, all are red, each for a reason the contract has."""
    ran, cases = run_suite(tmp_path, "-m", "contract", "--perf-sabotage=all", "--perf-max-time=2s")
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


def test_one_optimization_can_be_sabotaged_alone(tmp_path):
    """The others stay as they are."""
    ran, cases = run_suite(
        tmp_path, "tests/perf/test_transfer.py", "-k", "nested or resident", "--perf-sabotage=O12"
    )
    assert {"nested": True, "resident": False} == {
        word: case.find("failure") is not None
        for case in cases
        for word in ("nested", "resident")
        if word in case.get("name")
    }
    assert "sabotaged: O12; every contract of it must be broken" in ran.stdout


@pytest.mark.parametrize("asked", ["O27", "o1", "", "O"])
def test_an_unknown_optimization_is_refused(asked, tmp_path):
    """The message lists what there is."""
    command = [sys.executable, "-m", "pytest", "tests/perf", f"--perf-sabotage={asked}"]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert 4 == ran.returncode
    assert f"{asked!r} is no optimization; name one of O1, O2, O3" in ran.stderr
