"""A pull request that makes the encoder loop again turns ci.yml's own command red, with cause and line."""

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit.test_workflows import command

ROOT = Path(__file__).parents[2]
TEST = """
import pytest, torch
from social_xlstm.config import ModelConfig, PoolingConfig, XLSTMConfig
from social_xlstm.model.social_xlstm import SocialXLSTM


@pytest.mark.gpu
@pytest.mark.perf
def test_training_step(perf):
    torch.manual_seed(0)
    sizes = XLSTMConfig(embedding_dim=32, num_blocks=2, slstm_at=(1,), context_length=6)
    model = SocialXLSTM(
        ModelConfig(sizes), PoolingConfig(enabled=False), n_detectors=60, n_features=1, prediction_length=3
    ).to(perf.device)
    features = torch.randn(16, 6, 60, 1, device=perf.device)

    def step():
        model(features).sum().backward()

    perf(step, samples_per_step=16)
"""
LOOPING = '''
    def forward(self, x: Tensor, identity: Tensor | None = None) -> Tensor:
        """Encode one detector after the other."""
        return torch.cat([self._all(x[:, i : i + 1], None) for i in range(x.shape[1])], dim=1)

    def _all('''


@pytest.mark.slow
def test_a_loop_over_detectors_is_found_before_it_is_merged(tmp_path):
    """Green as it is; red with the loop, and the summary says launch-bound and where."""
    shutil.copytree(ROOT / "src", tmp_path / "src", ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "pytest.ini").write_text("[pytest]\npythonpath = src\n")
    (tmp_path / "tests" / "perf").mkdir(parents=True)
    (tmp_path / "tests" / "perf" / "test_encoder.py").write_text(TEST)
    script = command(".venv/bin/python -m pytest --perf tests/perf -m gpu --perf-device=model")
    arguments = shlex.split(script)[1:]

    def run(*more):
        return subprocess.run(
            [sys.executable, *arguments, *more],
            cwd=tmp_path,
            env={**os.environ, "GITHUB_STEP_SUMMARY": str(tmp_path / "summary.md"), "GITHUB_ACTIONS": "true"},
            capture_output=True,
            text=True,
            check=False,
        )

    assert 0 == run("--save-baseline").returncode
    assert 0 == run().returncode
    encoder = tmp_path / "src/social_xlstm/model/encoder.py"
    text = encoder.read_text()
    start = "    def forward(self, x: Tensor, identity: Tensor | None = None) -> Tensor:"
    encoder.write_text(text.replace(start, LOOPING.strip("\n") + start.partition("forward(")[2], 1))
    (tmp_path / "summary.md").unlink()
    ran = run()
    assert 1 == ran.returncode, ran.stdout + ran.stderr
    summary = (tmp_path / "summary.md").read_text()
    assert "1 test, 1 failed" in summary
    assert "modelled kernels per step" in summary
    assert "likely cause: launch-bound: the same kernel is called" in summary
    assert "src/social_xlstm/model/" in summary
    assert "::error file=tests/perf/test_encoder.py" in ran.stdout
