"""Checkpoints that survive a kill: written beside, then put in place at once, and safe to load."""

import os
import pickle
import warnings
import zipfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from social_xlstm.errors import InputError

_FORMAT = "social-xlstm checkpoint"
_VERSION = 1
_PARTS = ("progress", "model", "optimizer", "scaler", "sums", "random", "about")


@dataclass(frozen=True)
class Checkpoint:
    """Everything a training needs to continue exactly where it was, and `about`: what it was trained on."""

    progress: dict[str, Any]
    model: dict[str, torch.Tensor]
    optimizer: dict[str, Any]
    scaler: dict[str, Any]
    sums: torch.Tensor
    random: list[dict[str, Any]]
    about: dict[str, Any] = field(default_factory=dict)


def save(checkpoint: Checkpoint, path: str | Path) -> None:
    """Write a checkpoint so that a kill at any moment leaves the old file or the new one, whole."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.part")
    content = {"format": _FORMAT, "version": _VERSION, **{part: getattr(checkpoint, part) for part in _PARTS}}
    with beside.open("wb") as file:
        torch.save(content, file)  # host sync: weights are copied from the device
        file.flush()
        os.fsync(file.fileno())
    os.replace(beside, path)
    _sync_folder(path.parent)


def load(path: str | Path) -> Checkpoint:
    """Read a checkpoint to the CPU without running any code in it, or refuse it with the reason."""
    path = Path(path)
    if not path.is_file():
        raise InputError(f"{path}: there is no checkpoint; train first, or name the run's folder")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about foreign pickles, which are refused below anyway
            content = torch.load(path, map_location="cpu", weights_only=True)
    # What torch's reader raises on truncated, foreign or hostile files.
    except (
        RuntimeError, pickle.UnpicklingError, EOFError, OSError, ValueError, KeyError, IndexError,
        TypeError, AttributeError, AssertionError, zipfile.BadZipFile, UnicodeDecodeError, MemoryError,
    ) as error:  # fmt: skip
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0][:120]
        raise InputError(
            f"{path}: is not a readable checkpoint ({reason}); take another or train anew"
        ) from None
    if not isinstance(content, dict) or content.get("format") != _FORMAT:
        raise InputError(
            f"{path}: was not written by social-xlstm train; take a file such as last.pt of a run"
        )
    if content.get("version") != _VERSION:
        raise InputError(
            f"{path}: has checkpoint version {content.get('version')}, this program reads {_VERSION}; "
            "use the program version that wrote it"
        )
    missing = [part for part in _PARTS if part not in content]
    if missing:
        raise InputError(
            f"{path}: lacks {', '.join(missing)}; the file is damaged, take another or train anew"
        )
    return Checkpoint(**{part: content[part] for part in _PARTS})


def _sync_folder(folder: Path) -> None:
    """Make the renaming itself durable where the system can."""
    if os.name == "posix":
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
