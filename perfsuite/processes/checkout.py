"""Check out another version of the project into a temporary folder that git does not track.

A git worktree would have to be unregistered again, which a killed process cannot do. Files checked out from
a private index leave nothing but a temporary folder, and the next run removes those of killed runs.
"""

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

from perfsuite.errors import RefUnusable

_PREFIX = "perfsuite-against-"
_GIT_SECONDS = 300


@dataclass(frozen=True)
class Checkout:
    """The folders of a checked-out version, and how paths of the project map to it."""

    scratch: Path  # removed at the end with everything in it
    project: Path  # git's top-level folder
    tree: Path  # the same folder at the ref
    commit: str

    def at_ref(self, path: Path) -> Path:
        """Return the checkout's path for a path of the project; paths outside of it are left as they are."""
        path = path.resolve()
        return self.tree / path.relative_to(self.project) if path.is_relative_to(self.project) else path


@contextmanager
def checked_out(ref: str, root: Path) -> Iterator[Checkout]:
    """Check out the files of a ref, and remove them at the end."""
    _remove_leftovers()
    project = Path(_git(root, "rev-parse", "--show-toplevel", ref=ref)).resolve()
    commit = _git(project, "rev-parse", "--verify", "--end-of-options", f"{ref}^{{commit}}", ref=ref)
    scratch = Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{os.getpid()}-")).resolve()
    try:
        tree = scratch / project.name
        tree.mkdir()
        index = {"GIT_INDEX_FILE": str(scratch / "index")}
        _git(project, "read-tree", commit, ref=ref, extra=index)
        _git(project, "checkout-index", "--all", f"--prefix={tree}/", ref=ref, extra=index)
        yield Checkout(scratch, project, tree, commit)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _git(folder: Path, *arguments: str, ref: str, extra: dict[str, str] | None = None) -> str:
    try:
        ran = subprocess.run(
            ["git", *arguments],
            cwd=folder,
            env={**os.environ, **(extra or {})},
            capture_output=True,
            text=True,
            timeout=_GIT_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise RefUnusable(f"--against={ref}: git did not run: {error}") from None
    if ran.returncode:
        last_line = ran.stderr.strip().splitlines()[-1:] or ["git failed without a message"]
        raise RefUnusable(
            f"--against={ref}: {last_line[0]}. Name a commit, branch or tag of this repository; "
            "in a shallow clone fetch it first: git fetch origin main"
        )
    return ran.stdout.strip()


def _remove_leftovers() -> None:
    """Remove the checkouts of killed runs, and none of a run that is alive."""
    for folder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        owner = re.match(rf"{_PREFIX}(\d+)-", folder.name)
        if owner and not psutil.pid_exists(int(owner[1])):
            shutil.rmtree(folder, ignore_errors=True)
