"""Checkpoints are whole or absent, safe to load, and refused in words when they are not ours."""

import os
import pickle
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from social_xlstm.errors import InputError
from social_xlstm.train import checkpoint, seeds, state


def example() -> checkpoint.Checkpoint:
    return checkpoint.Checkpoint(
        progress=state.FitState(epoch=2, history=[{"epoch": 1, "train_loss": 0.5}]).to_plain(),
        model={"w": torch.arange(3.0)},
        optimizer={"state": {0: {"step": torch.tensor(1.0)}}, "param_groups": [{"lr": 0.1, "params": [0]}]},
        scaler={},
        sums=torch.zeros(2, dtype=torch.float64),
        random=[seeds.random_state()],
        about={"config": "data: {}", "vdids": ["a", "b"]},
    )


def test_what_is_saved_is_loaded(tmp_path: Path) -> None:
    """Every part comes back equal."""
    saved = example()
    checkpoint.save(saved, tmp_path / "deep" / "last.pt")
    loaded = checkpoint.load(tmp_path / "deep" / "last.pt")
    assert (saved.progress, saved.about) == (loaded.progress, loaded.about)
    assert torch.equal(saved.model["w"], loaded.model["w"])
    assert torch.equal(saved.random[0]["torch"], loaded.random[0]["torch"])
    assert ["last.pt"] == os.listdir(tmp_path / "deep"), "nothing is left beside it"


@pytest.mark.parametrize("where", ["save", "replace"])
def test_a_failed_write_leaves_the_old_file(
    where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed or out of disk at any moment, the file is the old one, whole."""
    path = tmp_path / "last.pt"
    checkpoint.save(example(), path)
    before = path.read_bytes()

    def torn(content: Any, file: Any) -> None:
        file.write(b"half")
        raise OSError("No space left on device")

    def refused(*args: Any) -> None:
        raise OSError("No space left on device")

    if where == "save":
        monkeypatch.setattr(torch, "save", torn)
    else:
        monkeypatch.setattr(os, "replace", refused)
    with pytest.raises(OSError, match="No space"):
        checkpoint.save(example(), path)
    assert before == path.read_bytes()


def test_the_file_is_on_disk_before_it_takes_the_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Write, flush to disk, then rename, then flush the folder: in this order."""
    events: list[str] = []
    for name in ("fsync", "replace"):
        original = getattr(os, name)
        monkeypatch.setattr(os, name, lambda *a, n=name, o=original: (events.append(n), o(*a))[1])
    checkpoint.save(example(), tmp_path / "last.pt")
    assert ["fsync", "replace", "fsync"] == events


class Attack:
    def __reduce__(self) -> Any:
        return os.system, ("echo attacked > attacked.txt",)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "there is no checkpoint"),
        (b"", "not a readable checkpoint"),
        (b"hello", "not a readable checkpoint"),
        (pickle.dumps(Attack()), "not a readable checkpoint"),
        ({"w": torch.ones(1)}, "not written by social-xlstm train"),
        (torch.ones(1), "not written by social-xlstm train"),
        ({"format": "social-xlstm checkpoint", "version": 99}, "version 99, this program reads 1"),
        ({"format": "social-xlstm checkpoint", "version": 1}, "lacks progress, model"),
    ],
)
def test_foreign_files_are_refused(
    content: Any, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is no checkpoint of ours ends in one clear error, and no code in it runs."""
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "x.pt"
    if isinstance(content, bytes):
        path.write_bytes(content)
    elif content is not None:
        torch.save(content, path)
    with pytest.raises(InputError, match=said):
        checkpoint.load(path)
    assert not (tmp_path / "attacked.txt").exists()


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_damaged_files_are_refused_or_whole(tmp_path: Path, data: st.DataObject) -> None:
    """Cut off or overwritten anywhere, a checkpoint loads or ends in an InputError, nothing else."""
    checkpoint.save(example(), tmp_path / "good.pt")
    content = bytearray((tmp_path / "good.pt").read_bytes())
    if data.draw(st.booleans()):
        content = content[: data.draw(st.integers(0, len(content) - 1))]
    else:
        start = data.draw(st.integers(0, len(content) - 1))
        patch = data.draw(st.binary(min_size=1, max_size=64))
        content[start : start + len(patch)] = patch
    (tmp_path / "bad.pt").write_bytes(content)
    try:
        loaded = checkpoint.load(tmp_path / "bad.pt")
        state.FitState.from_plain(loaded.progress)
    except InputError:
        return


@pytest.mark.parametrize("plain", [None, {}, {"epoch": 1}, {**state.FitState().to_plain(), "epoch": "x"}])
def test_a_damaged_progress_is_refused(plain: Any) -> None:
    """A position that is not one is not trained from."""
    with pytest.raises(InputError, match="progress"):
        state.FitState.from_plain(plain)


def test_random_states_come_back() -> None:
    """Python's, NumPy's and torch's generators continue where they were."""
    draw = lambda: (random.random(), np.random.rand(), torch.rand(()).item(), random.gauss(0, 1))  # noqa: E731
    seeds.seed_everything(4)
    draw()
    taken = seeds.random_state()
    expected = draw()
    draw()
    seeds.restore_random_state(taken)
    assert expected == draw()


def test_seeds_repeat_and_ranks_differ() -> None:
    """The same seed gives the same numbers; another process draws others."""
    draws = []
    for seed, rank in ((1, 0), (1, 0), (1, 1), (2, 0)):
        seeds.seed_everything(seed, rank)
        draws.append((torch.rand(()).item(), random.random(), np.random.rand()))
    assert draws[0] == draws[1]
    assert [3, 3, 3] == [len(set(kind)) for kind in zip(*draws, strict=True)]


@pytest.mark.parametrize(
    ("losses", "best", "waited"),
    [
        ([1.0, 0.5, 0.7], (2, 0.5), 1),
        ([float("nan"), 1.0], (2, 1.0), 0),
        ([1.0, 1.0], (1, 1.0), 1),
        ([None], (None, None), 1),
    ],
)
def test_the_best_epoch_is_the_first_lowest(losses: list, best: tuple, waited: int) -> None:
    """Equal is no gain, and neither NaN nor nothing is ever best."""
    fit = state.FitState()
    for epoch, loss in enumerate(losses, start=1):
        fit.judge(loss, epoch)
    assert (best, waited) == ((fit.best_epoch, fit.best_loss), fit.epochs_without_gain)
