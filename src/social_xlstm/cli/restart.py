"""Find the run that torchrun restarts: the folder that this torchrun's own processes began."""

import os
from collections.abc import Mapping
from pathlib import Path

import psutil

from social_xlstm.cli import run_folder as folders
from social_xlstm.cli.run_folder import RunFolder
from social_xlstm.config import Config
from social_xlstm.train.distributed import World

LAUNCHERS = "torchrun.txt"  # in a run's folder: who launched its processes, a line for each machine


def launcher(environment: Mapping[str, str] | None = None) -> str | None:
    """Name the torchrun above this process; None without one.

    It outlives the processes it restarts and no two are alike: the pid alone comes again (in a container it
    is always the same), hence the time it started.
    """
    if "TORCHELASTIC_RUN_ID" not in (os.environ if environment is None else environment):
        return None
    parent = psutil.Process(os.getppid())
    return f"{os.uname().nodename} {parent.pid} {parent.create_time():.2f}"


def find(config: Config, world: World) -> RunFolder | None:
    """Let the first process look for a run begun by any of this training's launchers, and tell all.

    Not asked is how often torchrun restarted: it does not count the restart after a machine came or went.
    """
    here = {name for name in world.gather(launcher()) if name is not None}
    found = None
    if world.is_first and here:
        for _, path in sorted(folders.numbered(config), reverse=True):
            if here & set(_read(path / LAUNCHERS)):
                found = RunFolder(path)
                break
    return world.gather(found)[0]


def note(folder: RunFolder, world: World) -> None:
    """Write down who launched this run, so that a restart finds it."""
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
