"""Tests for several ranks in a plain pytest run: start the ranks by torchrun's engine, take their answer."""

import contextlib
import json
import os
import pickle
import signal
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from perfsuite.environment import Environment
from perfsuite.errors import RanksApart
from perfsuite.plugin import selection
from perfsuite.processes.family import for_children
from perfsuite.processes.fresh import REQUEST, Command, interpreter
from perfsuite.processes.world import ENDING
from perfsuite.records import Limit, Reading

if TYPE_CHECKING:
    from perfsuite.plugin.run import PerfRun

_TAIL_LINES = 25


@dataclass(frozen=True)
class Answer:
    """What the ranks found."""

    kept: list[tuple[Reading, tuple[Limit, ...]]] = field(default_factory=list)
    environment: Environment | None = None
    failure: str = ""  # of the test itself, with the failing rank's traceback
    skipped: str = ""  # why, where the test skipped itself

    @property
    def readings(self) -> tuple[Reading, ...]:
        """All readings."""
        return tuple(reading for reading, _ in self.kept)

    def release(self) -> None:
        """Give nothing back: the ranks had it, and are gone."""

    def close(self) -> None:
        """Nothing is open here: the ranks measured."""


class RankedItem(pytest.Item):
    """A multi_gpu test as the starting process sees it: its fixtures are made by the ranks alone."""

    def __init__(self, *, original: pytest.Item, **given: Any) -> None:
        super().__init__(**given)
        self.original = original
        self.own_markers = list(original.own_markers)
        self.keywords.update(original.keywords)
        self.extra_keyword_matches = original.extra_keyword_matches
        for name in ("fixturenames", "_fixtureinfo", "callspec"):
            if hasattr(original, name):
                setattr(self, name, getattr(original, name))

    def runtest(self) -> None:
        """Let the ranks run the test; their readings are judged here."""
        from perfsuite.plugin import RUN

        ranks = selection.accelerators_needed(self)
        answer = run_ranks(Command.from_config(self.config), self.nodeid, ranks)
        if answer.skipped:
            pytest.skip(answer.skipped)
        self.config.stash[RUN].take(self, answer)
        if answer.failure:
            pytest.fail(answer.failure, pytrace=False)

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException]) -> Any:  # type: ignore[override]
        """Show what the ranks said, not how it came here."""
        return self.original.repr_failure(excinfo)

    def reportinfo(self) -> tuple[os.PathLike[str] | str, int | None, str]:
        """Return where the test is written."""
        return self.original.reportinfo()


def for_ranks(item: pytest.Item, run: "PerfRun") -> pytest.Item:
    """Return what runs a test: the ranks, where it asks for several and nobody has started them."""
    is_here = run.ranks is not None or not selection.is_ranked(item) or run.device_of(item).modelled
    if is_here or item.get_closest_marker("skip") is not None or item.parent is None:
        return item
    if run.is_conducted:
        item.add_marker(pytest.mark.skip(reason="measured by several processes; --against compares one"))
        return item
    return RankedItem.from_parent(item.parent, name=item.name, original=item)


def run_ranks(command: Command, test: str, ranks: int) -> Answer:
    """Run one test on so many ranks and return what the first of them answers."""
    with tempfile.TemporaryDirectory(prefix="perfsuite-ranks-") as name:
        folder = Path(name)
        request = folder / "request.json"
        answer = folder / "answer"
        request.write_text(json.dumps({"role": "ranks", "tests": [test], "answer": str(answer)}))
        with _started(command, ranks, folder, request) as process:
            process.wait()
        if answer.is_file():
            # Written by our own rank, of this very version, into a folder that is ours alone.
            found: Answer = pickle.loads(answer.read_bytes())
            return found
        raise RanksApart(_last_words(folder, ranks, process.returncode))


@contextlib.contextmanager
def _started(command: Command, ranks: int, folder: Path, request: Path) -> Iterator[subprocess.Popen[str]]:
    """Start the ranks; whatever happens here, none of them is left behind."""
    with (folder / "said.txt").open("w", encoding="utf-8") as said:
        process = subprocess.Popen(
            [
                *interpreter(),
                "-m",
                "perfsuite.devices.ranks.launch",
                str(ranks),
                str(folder),
                *interpreter()[1:],
                "-m",
                "pytest",
                *command.pytest(folder),
                "--capture=fd",
            ],
            cwd=command.folder,
            env={
                "OMP_NUM_THREADS": "1",  # as torchrun sets it
                **for_children(os.environ, count=ranks),
                REQUEST: str(request),
                ENDING: str(folder / "ending.txt"),
            },
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,  # Ctrl-C is ours to handle
        )
        try:
            yield process
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _last_words(folder: Path, ranks: int, status: int) -> str:
    """Say which rank ended how, and what it said last."""
    with contextlib.suppress(OSError):
        return (folder / "ending.txt").read_text(encoding="utf-8")
    failed: list[Mapping[str, Any]] = []
    with contextlib.suppress(OSError, ValueError):
        failed = json.loads((folder / "failures.json").read_text(encoding="utf-8"))
    if not failed:
        said = _tail((folder / "said.txt").read_text(encoding="utf-8", errors="replace"))
        return f"the {ranks} ranks gave no answer (exit status {status}); they said:\n{said}"
    first = failed[0]
    how = (
        f"was killed by {first['signal']}" if first["signal"] else f"left with exit status {first['status']}"
    )
    said = "\n".join(
        f"  rank {rank}: {line.strip()}"
        for rank in range(ranks)
        for line in _tail(_said_by(folder, rank)).splitlines()
    )
    return f"rank {first['rank']} of {ranks} {how}; all ranks were ended\n{said}".rstrip()


def _said_by(folder: Path, rank: int) -> str:
    found = sorted(folder.glob(f"logs/*/attempt_0/{rank}/std*.log"))
    return "\n".join(path.read_text(encoding="utf-8", errors="replace") for path in found)


def _tail(text: str) -> str:
    lines = [line for line in text.splitlines() if line.strip()]
    return "\n".join(f"  {line}" for line in lines[-_TAIL_LINES:])
