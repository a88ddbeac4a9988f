"""The page docs/first-hour-gpu.md, command by command, in an empty folder."""

import os
import re
import shlex
import subprocess
import sys

import pytest

from tests.emulated.runs import ROOT

pytestmark = [pytest.mark.cuda_torch, pytest.mark.slow]
PAGE = ROOT / "docs" / "first-hour-gpu.md"
WHOLE = ("emulated ", "  1 at ", "  1 more ", "stored ", "  Keep ")  # lines without a time in them


def blocks(kind):
    """Return the page's fenced blocks of one kind, in their order."""
    found = re.findall(r"^```(\w*)\n(.*?)^```$", PAGE.read_text(), flags=re.MULTILINE | re.DOTALL)
    return [text for name, text in found if name == kind]


def run(command, folder):
    """Run a pytest command of the page with this interpreter."""
    program, *words = shlex.split(command)
    assert "pytest" == program
    given = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    ran = [sys.executable, "-m", "pytest", "-p", "no:logging", *words]
    return subprocess.run(ran, cwd=folder, env=given, capture_output=True, text=True, check=False)


def test_the_first_hour_goes_as_the_page_says(tmp_path):
    """The files it shows are written, its commands run, and every line of them that has no time is printed."""
    training, test, planted = blocks("python")
    (tmp_path / "tests").mkdir()
    (tmp_path / "pytest.ini").write_text("[pytest]\npythonpath = .\n")
    (tmp_path / "tests" / "test_speed.py").write_text(test)
    sources = [
        training,
        training,
        training.replace("        return loss\n", f"{planted}        return loss\n"),
    ]
    shown = [block for block in blocks("") if block.startswith("$ pytest")]
    assert [0, 0, 1] == [int("1 failed" in block) for block in shown]
    for source, block in zip(sources, shown, strict=True):
        (tmp_path / "train.py").write_text(source)
        command, *lines = block.splitlines()
        ran = run(command.removeprefix("$ "), tmp_path)
        assert int("1 failed" in block) == ran.returncode, ran.stdout + ran.stderr
        expected = [line for line in lines if line.startswith(WHOLE)]
        assert [] == [line for line in expected if line not in ran.stdout.splitlines()], ran.stdout
