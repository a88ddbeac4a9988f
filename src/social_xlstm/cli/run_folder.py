"""A run's folder: its files, its name, which one a restart continues, and whether data still fit it."""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from social_xlstm import config_file
from social_xlstm.config import Config
from social_xlstm.data.prepare import Prepared
from social_xlstm.errors import InputError
from social_xlstm.train.checkpoint import Checkpoint
from social_xlstm.train.distributed import World

CONFIG, LAST, BEST = "config.yaml", "last.pt", "best.pt"
EPOCHS, RESULTS, PLOT = "epochs.csv", "results.json", "forecast.png"

# What a resumed training may change; everything else decides what was learnt so far and must stay.
CHANGEABLE = re.compile(
    r"trainer\.(?!precision|accumulate_grad_batches|limit_train_batches).*"
    r"|optimizer\.(lr|weight_decay|schedule|warmup_share)"
    r"|data\.(path|storage|cache_dir|loader\.(?!batch_size|drop_last).*)"
    r"|experiment\.(name|output_dir)"
)
LAUNCHERS = "torchrun.txt"  # in a run's folder: who launched its processes, a line for each machine


@dataclass(frozen=True)
class RunFolder:
    """The files of one run."""

    path: Path

    @classmethod
    def create(cls, config: Config) -> "RunFolder":
        """Make the next free folder, such as runs/social-xlstm-001."""
        parent = Path(config.experiment.output_dir)
        number = 1 + max((number for number, _ in numbered(config)), default=0)
        while True:
            path = parent / f"{config.experiment.name}-{number:03d}"
            try:
                path.mkdir(parents=True)
            except FileExistsError:
                number += 1  # another process was faster
                continue
            return cls(path)

    @classmethod
    def latest(cls, config: Config) -> "RunFolder":
        """Find the newest run of this name."""
        found = max(numbered(config), default=None)
        if found is None:
            where = f"{config.experiment.output_dir}/{config.experiment.name}-…"
            raise InputError(f"there is no run to resume at {where}; train first, or name a run's folder")
        return cls(found[1])

    @classmethod
    def from_name(cls, name: str) -> "RunFolder":
        """Take a folder, or a checkpoint inside it, by its path."""
        path = Path(name)
        if path.suffix == ".pt":
            path = path.parent
        if not (path / CONFIG).is_file():
            raise InputError(
                f"{name}: is no run's folder (no config.yaml in it); name one such as runs/social-xlstm-001"
            )
        return cls(path)


def numbered(config: Config) -> list[tuple[int, Path]]:
    """List this experiment's runs with their numbers."""
    pattern = re.compile(re.escape(config.experiment.name) + r"-(\d{3,9})")
    parent = Path(config.experiment.output_dir)
    if not parent.is_dir():
        return []
    matches = ((pattern.fullmatch(path.name), path) for path in parent.iterdir())
    return [(int(match.group(1)), path) for match, path in matches if match]


def about(config: Config, prepared: Prepared) -> dict[str, Any]:
    """Describe configuration and data for the checkpoints."""
    return {
        "config": config_file.dump(config),
        "vdids": list(prepared.vdids),
        "feature_names": list(prepared.feature_names),
        "scaler": prepared.scaler.state_dict(),
    }


def check_unchanged(saved: Config, config: Config) -> None:
    """Refuse to resume with a key changed that decides what was learnt so far."""
    changed = [
        change
        for change in config_file.differences(saved, config)
        if not CHANGEABLE.fullmatch(change.partition(":")[0])
    ]
    if changed:
        listed = "\n  ".join(changed)
        raise InputError(
            f"a resumed run cannot change\n  {listed}\nstart a new run for that (without --resume)"
        )


def check_same_detectors(checkpoint: Checkpoint, prepared: Prepared) -> None:
    """Refuse data whose detectors or features are not those of the checkpoint, in the same order."""
    for name, words in (("vdids", "detectors"), ("feature_names", "features")):
        if checkpoint.about.get(name) != list(getattr(prepared, name)):
            raise InputError(
                f"the data has other {words} than the run was trained on; name data with the same, or choose "
                f"them with data.selected_{name}"
            )


def check_same_data(checkpoint: Checkpoint, prepared: Prepared) -> None:
    """Refuse data whose detectors, features or training part are not those of the checkpoint."""
    check_same_detectors(checkpoint, prepared)
    if checkpoint.about.get("scaler") != prepared.scaler.state_dict():
        raise InputError(
            "the data's training part is not the one the run was trained on; name the run's data with --data"
        )


def launcher(environment: Mapping[str, str] | None = None) -> str | None:
    """Return a name of the torchrun above this process; None without one.

    It outlives the processes it restarts and no two are alike: a pid alone is reused (in a container it
    is always the same), hence the time it started.
    """
    if "TORCHELASTIC_RUN_ID" not in (os.environ if environment is None else environment):
        return None
    parent = psutil.Process(os.getppid())
    return f"{os.uname().nodename} {parent.pid} {parent.create_time():.2f}"


def find_restarted(config: Config, world: World) -> RunFolder | None:
    """Find the run that was started by any of this training's launchers, in the first process for all.

    torchrun's restart count is not used: it leaves out the restart after a machine came or went.
    """
    here = {name for name in world.gather(launcher()) if name is not None}
    found = None
    if world.is_first and here:
        for _, path in sorted(numbered(config), reverse=True):
            if here & set(_read(path / LAUNCHERS)):
                found = RunFolder(path)
                break
    return world.gather(found)[0]


def note_launchers(folder: RunFolder, world: World) -> None:
    """Record who launched this run, so that a restart finds it."""
    names = sorted({name for name in world.gather(launcher()) if name is not None})
    if world.is_first and names:
        beside = folder.path / f".{LAUNCHERS}.part"
        beside.write_text("\n".join(names) + "\n", encoding="utf-8")
        os.replace(beside, folder.path / LAUNCHERS)


def _read(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return []
