"""Under a real torchrun: killed, failing and hanging processes."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from social_xlstm.cli import main
from social_xlstm.data.synthetic import SyntheticOptions, synth_file
from social_xlstm.train import checkpoint

CONFIG = """
data: {loader: {batch_size: 8, num_workers: 0}}
model: {xlstm: {embedding_dim: 8, num_blocks: 1, slstm_at: [0], num_heads: 2, dropout: 0.1}}
trainer: {max_epochs: 2, limit_train_batches: 6, accumulate_grad_batches: 2, log_every_n_steps: 2,
          checkpoint_every_n_steps: 2, device: cpu}
"""

# One process of two does something on its fourth update of the first attempt, then all is as ever.
PLANTED = """
import contextlib, os, runpy, signal, socket, sys, time
from social_xlstm.train.speed import Speedometer
plain = Speedometer.on_step
def on_step(self, state, loss):
    plain(self, state, loss)
    is_first_attempt = os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
    if os.environ["RANK"] == "1" and state.batches == 9 and is_first_attempt:
        {act}
Speedometer.on_step = on_step
try:
    runpy.run_module("social_xlstm", run_name="__main__", alter_sys=True)
except ArithmeticError:
    if {dies_slowly}:
        for number in os.listdir("/dev/fd"):
            with contextlib.suppress(OSError):
                end = socket.socket(fileno=os.dup(int(number)))
                end.getpeername()  # raises for those that only listen
                end.shutdown(socket.SHUT_RDWR)
        time.sleep(2)
    raise
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Make an empty folder with data and a small configuration."""
    synth_file(tmp_path / "data.h5", SyntheticOptions(detectors=4, steps=300))
    (tmp_path / "small.yaml").write_text(CONFIG)
    return tmp_path


def torchrun(
    folder: Path, act: str, *changes: str, restarts: int = 0, dies_slowly: bool = False
) -> subprocess.CompletedProcess[str]:
    (folder / "planted.py").write_text(PLANTED.format(act=act, dies_slowly=dies_slowly))
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    options = [part for change in changes for part in ("--set", change)]
    return subprocess.run(
        [sys.executable, *launcher, "--max-restarts", str(restarts), "planted.py",
         "train", "--config", "small.yaml", "--no-plot", *options],
        cwd=folder, capture_output=True, text=True, timeout=100, check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip


@pytest.mark.slow
def test_a_killed_process_is_restarted_and_the_training_ends_as_undisturbed(folder: Path) -> None:
    """After kill -9 of one of two, torchrun starts both anew and they end bit for bit the same."""
    undisturbed = torchrun(folder, "pass")
    assert 0 == undisturbed.returncode, undisturbed.stderr[-3000:]
    killed = torchrun(folder, "os.kill(os.getpid(), signal.SIGKILL)", restarts=2)
    assert 0 == killed.returncode, killed.stderr[-3000:]
    assert "resuming runs/social-xlstm-002" in killed.stdout
    assert "continuing after epoch 1, update 1 of the next" in killed.stdout
    assert ["social-xlstm-001", "social-xlstm-002"] == sorted(p.name for p in (folder / "runs").iterdir())
    left, right = (checkpoint.load(folder / f"runs/social-xlstm-00{n}/last.pt") for n in (1, 2))
    assert left.progress["updates"] == right.progress["updates"] == 6
    assert all(torch.equal(left.model[name], right.model[name]) for name in left.model)


@pytest.mark.slow
@pytest.mark.parametrize("dies_slowly", [False, True])
def test_a_failing_process_ends_all_and_its_own_error_is_shown(folder: Path, dies_slowly: bool) -> None:
    """One process raises: torchrun's summary names its rank and its error, not that of who waited for it.

    Also if its connections close long before torchrun sees it dead: the other one fails of that first.
    """
    failed = torchrun(folder, 'raise ArithmeticError("planted in one")', dies_slowly=dies_slowly)
    assert 1 == failed.returncode
    summary = failed.stderr.rpartition("Root Cause")[2]
    assert "planted in one" in summary
    assert "rank      : 1" in summary


@pytest.mark.slow
def test_a_process_that_hangs_is_given_up(folder: Path) -> None:
    """One process stands still: after trainer.ddp_timeout the other raises, and torchrun ends both."""
    hung = torchrun(folder, "signal.pause()", "trainer.ddp_timeout=3")
    assert 1 == hung.returncode
    assert "timed out" in hung.stderr.lower().replace("timeout", "timed out")


def test_a_changed_number_of_processes_is_refused(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A checkpoint of two processes is not continued by one: the joined batch would be another."""
    monkeypatch.chdir(folder)
    assert 0 == main(["train", "--config", "small.yaml", "--no-plot", "--set", "trainer.max_epochs=1"])
    path = folder / "runs/social-xlstm-001/last.pt"
    saved = checkpoint.load(path)
    saved.random.append(saved.random[0])
    checkpoint.save(saved, path)
    assert 2 == main(["train", "--resume", "--no-plot", "--set", "trainer.max_epochs=2"])
    assert "made by 2 process(es) and 1 run now" in capsys.readouterr().err
