"""On real traffic the model learns: a short form of what docs/accuracy.md reports."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DATA = ROOT.parent / "shared" / "data"


@pytest.mark.slow
@pytest.mark.skipif(not (DATA / "los_loop").is_dir(), reason="needs los_loop/ in ../shared/data")
def test_a_short_training_beats_copying_and_regression() -> None:
    """Sixty updates with pooling are better than copy-last and AR(12), which come out as published."""
    command = [
        sys.executable,
        str(ROOT / "scripts/los_loop.py"),
        "--data",
        str(DATA),
        "--quick",
        "--jobs",
        "1",
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert 0 == done.returncode, done.stderr
    rmse = {
        name: float(value) for name, value in re.findall(r"^\| ([^|]+) \| \**([\d.]+)", done.stdout, re.M)
    }
    assert pytest.approx(5.543, abs=0.01) == rmse["copying the last value, measured here"]
    assert pytest.approx(5.338, abs=0.01) == rmse["linear AR(12), measured here"]
    assert rmse["Social-xLSTM, pooled"] < 5.338
