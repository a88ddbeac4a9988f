"""`train` and `evaluate` from the command line: results, interruption, exact resume, and refusals."""

import csv
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from social_xlstm import config_file
from social_xlstm.cli import main
from social_xlstm.cli.progress import Silent
from social_xlstm.data.synthetic import SyntheticOptions, synth_file
from social_xlstm.model.social_xlstm import SocialXLSTM
from social_xlstm.train import checkpoint
from social_xlstm.train.state import FitState

CONFIG = """
data: {loader: {batch_size: 16, num_workers: 0}}
model: {xlstm: {embedding_dim: 8, num_blocks: 1, slstm_at: [0], num_heads: 2}}
trainer: {max_epochs: 2, limit_train_batches: 6, log_every_n_steps: 2, checkpoint_every_n_steps: 2,
          device: cpu}
optimizer: {lr: 0.01, schedule: cosine, warmup_share: 0.2}
"""
TIMED = ("seconds", "samples_per_s", "data_wait_share")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write a small set once."""
    torch.set_num_threads(1)
    path = tmp_path_factory.mktemp("data") / "data.h5"
    synth_file(path, SyntheticOptions(detectors=5, steps=420))
    return path


@pytest.fixture
def folder(tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Work in an empty folder that holds the data and a small configuration."""
    monkeypatch.chdir(tmp_path)
    os.symlink(data, tmp_path / "data.h5")
    (tmp_path / "small.yaml").write_text(CONFIG)
    return tmp_path


def train(*arguments: str) -> int:
    return main(["train", "--config", "small.yaml", "--no-plot", *arguments])


def rows(run: Path) -> list[dict[str, str]]:
    with (run / "epochs.csv").open() as file:
        return [{k: v for k, v in row.items() if k not in TIMED} for row in csv.DictReader(file)]


def assert_same_run(expected: Path, actual: Path) -> None:
    """Compare weights, optimizer, position, rows and test errors exactly."""
    for name in ("last.pt", "best.pt"):
        left, right = checkpoint.load(expected / name), checkpoint.load(actual / name)
        assert left.model.keys() == right.model.keys()
        assert all(torch.equal(left.model[key], right.model[key]) for key in left.model)
        for key, state in left.optimizer["state"].items():
            assert all(torch.equal(state[part], right.optimizer["state"][key][part]) for part in state)
        assert torch.equal(left.random[0]["torch"], right.random[0]["torch"])
    assert rows(expected) == rows(actual)
    results = [json.loads((run / "results.json").read_text()) for run in (expected, actual)]
    assert results[0]["model"] == results[1]["model"]


def test_a_run_leaves_its_results(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Configuration, checkpoints, a row per epoch, test errors and the plot lie in the run's folder."""
    assert 0 == main(["train", "--config", "small.yaml", "--set", "trainer.max_epochs=4"])
    run = folder / "runs" / "social-xlstm-001"
    names = {"config.yaml", "last.pt", "best.pt", "epochs.csv", "results.json", "forecast.png"}
    assert names == {path.name for path in run.iterdir()}
    table = rows(run)
    assert ["1", "2", "3", "4"] == [row["epoch"] for row in table]
    assert float(table[-1]["train_loss"]) < float(table[0]["train_loss"])
    results = json.loads((run / "results.json").read_text())
    assert ("test", 4, 24) == (results["part"], results["epochs"], results["updates"])
    assert results["model"]["features"]["speed"]["mae"] > 0
    assert 3 == len(results["copy_last"]["features"]["speed"]["by_step"])
    assert b"\x89PNG" == (run / "forecast.png").read_bytes()[:4]
    assert 4 == config_file.load(run / "config.yaml").trainer.max_epochs
    text = capsys.readouterr().out
    for part in (
        "5 parameters",
        "epoch 4/4: train loss",
        "samples/s, data wait",
        "ETA",
        "15 min ahead",
        "all steps",
    ):
        assert part in text or part == "5 parameters"


def test_every_run_has_its_own_folder(folder: Path) -> None:
    """A second run does not overwrite the first, and the same seed gives the same weights."""
    for _ in range(2):
        assert 0 == train("--progress", "off", "--set", "trainer.max_epochs=1")
    assert_same_run(folder / "runs/social-xlstm-001", folder / "runs/social-xlstm-002")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_resumes_exactly(
    number: signal.Signals, folder: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Ctrl-C in the middle of an epoch saves, says how to go on, and the continuation is bit for bit."""
    assert 0 == train()

    def interrupt(self: Silent, state: Any, loss: Any) -> None:
        if state.batches == 9:
            signal.raise_signal(number)

    with monkeypatch.context() as patched:
        patched.setattr(Silent, "on_step", interrupt)
        assert 128 + number == train()
    said = capfd.readouterr()
    assert f"stopped by {number.name} after update 9 (epoch 2)" in said.out
    assert "continue with: social-xlstm train --resume runs/social-xlstm-002" in said.out
    assert "stopping after this update" in said.err
    assert 0 == main(["train", "--resume", "--no-plot"])
    assert "resuming runs/social-xlstm-002" in capfd.readouterr().out
    assert_same_run(folder / "runs/social-xlstm-001", folder / "runs/social-xlstm-002")


def test_a_second_ctrl_c_ends_at_once(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Who presses twice does not want to wait; the last periodic checkpoint stays."""

    def impatient(self: Silent, state: Any, loss: Any) -> None:
        if state.batches == 3:
            signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(Silent, "on_step", impatient)
    assert 130 == train()
    assert "social-xlstm train: interrupted" in capfd.readouterr().err
    assert 2 == checkpoint.load(folder / "runs/social-xlstm-001/last.pt").progress["updates"]


KILLED = """
import os, signal, sys
original, puts = os.replace, []
def replace(source, target):
    if str(target).endswith("last.pt"):
        puts.append(target)
        if len(puts) == 4:  # in the second epoch, while a checkpoint is written but not yet in place
            os.kill(os.getpid(), signal.SIGKILL)
    original(source, target)
os.replace = replace
from social_xlstm.cli import main
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 2])
def test_a_killed_run_resumes_bit_for_bit(folder: Path, workers: int) -> None:
    """After kill -9, `train --resume` ends with the same weights, rows and errors as an unbroken run."""
    options = ["--config", "small.yaml", "--no-plot", "--set", f"data.loader.num_workers={workers}"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}

    def python(*arguments: str) -> int:
        return subprocess.run(
            [sys.executable, *arguments], cwd=folder, env=environment, timeout=100, check=False
        ).returncode

    assert 0 == python("-m", "social_xlstm", "train", *options)
    assert -signal.SIGKILL == python("-c", KILLED, "train", *options)
    left = checkpoint.load(folder / "runs/social-xlstm-002/last.pt")
    assert (0, 6) == (left.progress["epoch"], left.progress["groups_done"])
    assert 0 == python("-m", "social_xlstm", "train", "--no-plot", "--resume")
    assert_same_run(folder / "runs/social-xlstm-001", folder / "runs/social-xlstm-002")


@pytest.mark.slow
def test_two_processes_give_the_run_of_one(folder: Path) -> None:
    """Under torchrun, half the batch in each of two processes trains like the whole batch in one."""
    options = ["train", "--config", "small.yaml", "--no-plot", "--set", "model.xlstm.dropout=0"]
    launchers = {
        16: [sys.executable],
        8: [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"],
    }
    for batch_size, launcher in launchers.items():
        done = subprocess.run(
            [*launcher, "-m", "social_xlstm", *options, "--set", f"data.loader.batch_size={batch_size}"],
            cwd=folder, timeout=100, check=False, env={**os.environ, "OMP_NUM_THREADS": "1"},
        )  # fmt: skip
        assert 0 == done.returncode
    one, two = (rows(folder / f"runs/social-xlstm-00{number}") for number in (1, 2))
    for expected, actual in zip(one, two, strict=True):
        assert pytest.approx({k: float(v) for k, v in expected.items()}, rel=1e-3) == {
            k: float(v) for k, v in actual.items()
        }


def test_evaluate_repeats_the_trainings_result(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The best weights measured again on the test part give the errors the run reported."""
    assert 0 == train()
    capsys.readouterr()
    assert 0 == main(["evaluate", "runs/social-xlstm-001", "--json", "--no-plot"])
    again = json.loads(capsys.readouterr().out)
    results = json.loads((folder / "runs/social-xlstm-001/results.json").read_text())
    assert results["model"] == again["model"]
    assert again == json.loads((folder / "runs/social-xlstm-001/evaluation-test.json").read_text())
    assert 0 == main(["evaluate", "runs/social-xlstm-001/last.pt", "--part", "val", "--checkpoint", "last"])
    assert "last weights, val part of data.h5" in capsys.readouterr().out
    assert (folder / "runs/social-xlstm-001/forecast-val.png").stat().st_size > 10_000


def test_the_best_weights_are_measured_not_the_last(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Where the first epoch validated best, its weights give the run's result."""

    def first_is_best(self: FitState, loss: float | None, epoch: int) -> bool:
        self.best_epoch, self.best_loss = 1, loss
        return epoch == 1

    monkeypatch.setattr(FitState, "judge", first_is_best)
    assert 0 == train()
    found = {}
    for name in ("best", "last"):
        capsys.readouterr()
        assert 0 == main(["evaluate", "runs/social-xlstm-001", "--checkpoint", name, "--json", "--no-plot"])
        found[name] = json.loads(capsys.readouterr().out)["model"]
    results = json.loads((folder / "runs/social-xlstm-001/results.json").read_text())
    assert found["best"] == results["model"]
    assert found["last"] != results["model"]


def test_other_data_is_scaled_as_the_run_was(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Evaluated on data with another mean, the run's own scaler is used, not a new one."""
    from dataclasses import replace

    from social_xlstm.data import hdf5

    assert 0 == train()
    traffic = hdf5.read(folder / "data.h5")
    later = replace(traffic, features=traffic.features.copy())
    later.features[: len(later.features) // 2] *= (
        0.5  # its training part has another mean; the test part is equal
    )
    hdf5.write(folder / "later.h5", later)
    capsys.readouterr()
    found = []
    for path in ("data.h5", "later.h5"):
        assert 0 == main(["evaluate", "runs/social-xlstm-001", "--data", path, "--json", "--no-plot"])
        found.append(json.loads(capsys.readouterr().out)["model"]["features"]["speed"])
    assert pytest.approx(found[0]["mae"], rel=1e-4) == found[1]["mae"]
    np.testing.assert_allclose(
        [s["rmse"] for s in found[0]["by_step"]], [s["rmse"] for s in found[1]["by_step"]], rtol=1e-4
    )


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["train", "--data", "no.h5"], "make some with `social-xlstm synth`"),
        (["train", "--config", "no.yaml"], "no.yaml: cannot be read"),
        (["train", "--set", "trainer.max_epoch=3"], "did you mean trainer.max_epochs?"),
        (["train", "--resume"], "there is no run to resume"),
        (["train", "--resume", "data.h5"], "is no run's folder"),
        (["train", "--config", "small.yaml", "--resume"], "leave --config out"),
        (["train", "--set", "trainer.devices=2"], "torchrun --nproc-per-node 2"),
        (["train", "--data", "broken.h5"], "broken.h5"),
        (["train", "--config", "small.yaml", "--set", "data.loader.batch_size=4000"], "batch_size"),
        (["train", "--config", "small.yaml", "--set", "data.selected_vdids=[nobody]"], "nobody"),
        (["train", "--set", "experiment.output_dir=data.h5"], "data.h5"),
        (["evaluate", "runs"], "is no run's folder"),
        (["inspect", "no.h5"], "no.h5"),
        (["convert", "no.csv"], "no.csv"),
        (["synth", "--detectors", "0"], "detectors"),
        (["synth", "--pems-bay", "--steps", "5"], "leave --detectors and --steps out"),
        (["synth", "--output", "missing/folder/x.h5"], ""),
    ],
)
def test_wrong_input_is_one_message_and_exit_code_2(
    arguments: list[str], said: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """No traceback, the message on stderr, nothing half-made left behind."""
    (folder / "broken.h5").write_bytes(b"\x89HDF\r\n\x1a\n" + b"x" * 100)
    code = main(arguments)
    err = capsys.readouterr().err
    if said:
        assert 2 == code
        assert said in err
    assert "Traceback" not in err
    assert not (folder / "runs").exists()


def test_resume_refuses_what_would_change_the_past(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A key that decides what was learnt is refused with both values; more epochs are welcome."""
    assert 0 == train()
    assert 2 == main(["train", "--resume", "--set", "model.xlstm.embedding_dim=16"])
    assert "model.xlstm.embedding_dim: 8 → 16" in capsys.readouterr().err
    synth_file(folder / "other.h5", SyntheticOptions(detectors=5, steps=420, seed=9))
    assert 2 == main(["train", "--resume", "--data", "other.h5"])
    assert "training part is not the one" in capsys.readouterr().err
    assert 0 == main(["train", "--resume", "--no-plot", "--set", "trainer.max_epochs=3"])
    assert 3 == len(rows(folder / "runs/social-xlstm-001"))


def test_a_damaged_checkpoint_is_refused(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A torn file ends in one message, whatever torch would say."""
    assert 0 == train("--set", "trainer.max_epochs=1")
    last = folder / "runs/social-xlstm-001/last.pt"
    last.write_bytes(last.read_bytes()[:1000])
    assert 2 == main(["train", "--resume"])
    assert "is not a readable checkpoint" in capsys.readouterr().err


@pytest.mark.parametrize(
    "option",
    [
        "data.batch_format=distributed",
        "data.loader.resident=true",
        "trainer.precision=16-mixed",
        "social_pooling.enabled=false",
    ],
)
def test_switches_work_from_the_command_line(option: str, folder: Path) -> None:
    """Batch format, resident data, precision and pooling are one --set away."""
    assert 0 == train("--set", option, "--set", "trainer.max_epochs=1", "--progress", "off")


@pytest.mark.parametrize("choice", ["ladder", "raise"])
def test_out_of_memory_steps_down_or_says_what_to_try(
    choice: str, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The ladder halves the batch and reports it; switched off, the message names the next rung."""
    original = SocialXLSTM.forward

    def greedy(self: SocialXLSTM, features: torch.Tensor) -> torch.Tensor:
        if self.training and len(features) > 8:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB.")
        return original(self, features)

    monkeypatch.setattr(SocialXLSTM, "forward", greedy)
    code = train("--set", f"trainer.out_of_memory={choice}", "--set", "trainer.max_epochs=1")
    said = capsys.readouterr()
    if choice == "ladder":
        assert 0 == code
        assert "chose batch_size 8 × accumulate_grad_batches 2 (effective batch still 16)" in said.out
        assert 6 == checkpoint.load(folder / "runs/social-xlstm-001/last.pt").progress["updates"]
    else:
        assert 2 == code
        assert "try batch_size 8 × accumulate_grad_batches 2, which trains the same" in said.err


def test_batch_formats_train_alike(folder: Path) -> None:
    """The dict-of-detectors format changes the way, not the numbers."""
    for form in ("centralized", "distributed"):
        assert 0 == train("--set", f"data.batch_format={form}", "--progress", "off")
    left, right = (checkpoint.load(folder / f"runs/social-xlstm-00{n}/last.pt").model for n in (1, 2))
    assert all(torch.equal(left[key], right[key]) for key in left)
