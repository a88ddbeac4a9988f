"""A small GPT that knows nothing of the emulator (.cuda(), torch.compile, pinned loader, mixed precision), gated on it."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.emulated.runs import ROOT

pytestmark = [pytest.mark.cuda_torch, pytest.mark.slow]
PROJECT = Path(__file__).parent / "gpt"
PLANTED = {
    "an .item()": ("train.py", "return loss.detach()", "return loss.item()"),
    "a lost fusion": ("train.py", "self.forward = torch.compile(self.model)", "self.forward = self.model"),
    "a pageable copy": ("train.py", "batch_size=8, pin_memory=True", "batch_size=8"),
    "a doubled activation": (
        "model.py",
        "h = F.gelu(self.up(self.norm2(x)))",
        "h = F.gelu(self.up(self.norm2(x)).repeat(2, 1, 1))[:b]",
    ),
}
RED = {  # what is said first, and of which line: its file, function and the beginning of its text
    "an .item()": ("emulated host syncs per step 1 ", ("train.py", "step", "return loss.item()")),
    "a lost fusion": (
        "emulated kernels per step 153 is 15.0 % above the baseline 133",
        ("model.py", "forward", "h = F.gelu("),
    ),
    "a pageable copy": (
        "emulated blocking copies per step 1 ",
        ("train.py", "step", "tokens = batch[0].cuda(non_blocking=True)"),
    ),
    "a doubled activation": (
        "emulated peak memory ",
        ("model.py", "forward", "h = F.gelu(self.up(self.norm2(x)).repeat(2, 1, 1))[:b]"),
    ),
}


def run(folder, *flags):
    # A cache of its own: compiled code remembers the folder of the project it was first compiled in.
    given = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "OMP_NUM_THREADS": "1",
        "TORCHINDUCTOR_CACHE_DIR": f"{folder}-compiled",
    }
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-m",
        "gpu",
        "--perf-device=emulated:a10",
        "-p",
        "no:logging",
        *flags,
    ]
    return subprocess.run(command, cwd=folder, env=given, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    """The project with a baseline stored by its own first run."""
    folder = tmp_path_factory.mktemp("gpt") / "project"
    shutil.copytree(PROJECT, folder, ignore=shutil.ignore_patterns("__pycache__"))
    (folder / "check_training.py").rename(folder / "test_training.py")
    (folder / "pytest.ini").write_text("[pytest]\npythonpath = .\n")
    ran = run(folder, "--save-baseline")
    assert 0 == ran.returncode, ran.stdout + ran.stderr
    assert "stored 1 baseline" in ran.stdout
    return folder


def test_an_unchanged_project_runs_and_repeats_its_counts(project):
    """The second run, in another process, counts exactly what the first did, and everything says «emulated»."""
    ran = run(project, "--perf", "--perf-json=readings.json")
    assert 0 == ran.returncode, ran.stdout
    assert "perfsuite: emulated:a10 (NVIDIA A10 emulated)" in ran.stdout
    assert "key: emulated-a10_nvidia-a10-emulated_cuda" in ran.stdout
    assert " emulated " in next(line for line in ran.stdout.splitlines() if line.rstrip().endswith(" ok"))
    told = json.loads((project / "readings.json").read_text())["benchmarks"][0]["extra_info"]["perfsuite"]
    assert "emulated" == told["origin"]
    assert any(name.startswith("triton_") for name in told["launched"])
    lines = [count for at in told["launched"].values() for count in at.values()]
    assert sum(lines) == told["metrics"]["kernels"]["value"]


@pytest.mark.parametrize("planted", PLANTED)
def test_what_is_planted_turns_red_with_its_line(planted, project, tmp_path):
    """Each of the four, named by file, line and text."""
    file, text, worse = PLANTED[planted]
    folder = tmp_path / "project"
    shutil.copytree(project, folder)
    source = (folder / file).read_text()
    assert text in source
    (folder / file).write_text(source.replace(text, worse))
    ran = run(folder, "--perf")
    first, (where, function, words) = RED[planted]
    lines = (folder / where).read_text().splitlines()
    number = next(i for i, one in enumerate(lines, 1) if words in one)
    assert 1 == ran.returncode, ran.stdout
    assert first in ran.stdout
    assert f"at {where}:{number} in {function}: {words}" in ran.stdout
