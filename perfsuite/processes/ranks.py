"""Start the ranks of one test with torchrun's launcher, and read their readings."""

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
from typing import Any

from perfsuite.environment import Environment
from perfsuite.errors import RanksApart
from perfsuite.processes.fresh import REQUEST, Command, interpreter
from perfsuite.processes.world import ENDING, child_environment
from perfsuite.records import Limit, Reading

_TAIL_LINES = 25


@dataclass(frozen=True)
class Answer:
    """The readings of the ranks, or why there are none."""

    kept: list[tuple[Reading, tuple[Limit, ...]]] = field(default_factory=list)
    environment: Environment | None = None
    failure: str = ""  # of the test itself, with the failing rank's traceback
    skipped: str = ""  # the reason, if the test skipped itself

    @property
    def readings(self) -> tuple[Reading, ...]:
        """All readings."""
        return tuple(reading for reading, _ in self.kept)

    def closing(self) -> contextlib.AbstractContextManager[None]:
        """Return a context that does nothing: the ranks that held the device's memory have exited."""
        return contextlib.nullcontext()


def run_ranks(command: Command, test: str, ranks: int) -> Answer:
    """Run one test on that many ranks and return the first rank's answer."""
    with tempfile.TemporaryDirectory(prefix="perfsuite-ranks-") as name:
        folder = Path(name)
        request = folder / "request.json"
        answer = folder / "answer"
        request.write_text(json.dumps({"role": "ranks", "tests": [test], "answer": str(answer)}))
        with _started(command, ranks, folder, request) as process:
            process.wait()
        if answer.is_file():
            # Safe to unpickle: written by our rank, with the same perfsuite, into a private folder.
            unpickled: Answer = pickle.loads(answer.read_bytes())
            return unpickled
        raise RanksApart(_why_no_answer(folder, ranks, process.returncode))


@contextlib.contextmanager
def _started(command: Command, ranks: int, folder: Path, request: Path) -> Iterator[subprocess.Popen[str]]:
    """Start the ranks, and kill them at the end, whatever happens in between."""
    with (folder / "output.txt").open("w", encoding="utf-8") as output:
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
                **child_environment(os.environ, count=ranks),
                REQUEST: str(request),
                ENDING: str(folder / "ending.txt"),
            },
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,  # this process handles Ctrl-C
        )
        try:
            yield process
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _why_no_answer(folder: Path, ranks: int, status: int) -> str:
    """Return which rank failed and how, with the last output of all ranks."""
    with contextlib.suppress(OSError):
        return (folder / "ending.txt").read_text(encoding="utf-8")
    failed: list[Mapping[str, Any]] = []
    with contextlib.suppress(OSError, ValueError):
        failed = json.loads((folder / "failures.json").read_text(encoding="utf-8"))
    if not failed:
        output = _tail((folder / "output.txt").read_text(encoding="utf-8", errors="replace"))
        return f"the {ranks} ranks gave no answer (exit status {status}); their last output:\n{output}"
    first = failed[0]
    how = f"was killed by {first['signal']}" if first["signal"] else f"exited with status {first['status']}"
    output = "\n".join(
        f"  rank {rank}: {line.strip()}"
        for rank in range(ranks)
        for line in _tail(_output_of(folder, rank)).splitlines()
    )
    return f"rank {first['rank']} of {ranks} {how}; all ranks were stopped\n{output}".rstrip()


def _output_of(folder: Path, rank: int) -> str:
    logs = sorted(folder.glob(f"logs/*/attempt_0/{rank}/std*.log"))
    return "\n".join(path.read_text(encoding="utf-8", errors="replace") for path in logs)


def _tail(text: str) -> str:
    lines = [line for line in text.splitlines() if line.strip()]
    return "\n".join(f"  {line}" for line in lines[-_TAIL_LINES:])
