"""Measure tests again in fresh processes: the same pytest command, which returns readings without judging."""

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from perfsuite.errors import SessionFailed
from perfsuite.processes.world import child_environment
from perfsuite.records import Session, SessionReading

REQUEST = "PERFSUITE_REQUEST"  # the path of the request file; removed by the process that executes it
# Options of pytest that would change what a child does, or let two processes write to one place.
_LEFT_OUT = {
    "--pdb",
    "--trace",
    "-x",
    "--exitfirst",
    "--lf",
    "--last-failed",
    "--ff",
    "--failed-first",
    "--nf",
}
_LEFT_OUT |= {"--new-first", "--sw", "--stepwise"}
_LEFT_OUT_WITH_VALUE = ("--basetemp", "--junitxml", "--junit-xml", "--maxfail")
_TAIL_LINES = 15
_WORKERS = ("--numprocesses", "--maxprocesses", "--dist", "--tx", "--max-worker-restart", "--maxschedchunk")
_WORKERS_JOINED = re.compile(rf"-n(\d+|auto|logical)$|({'|'.join(_WORKERS)})=")


@dataclass(frozen=True)
class Command:
    """How this run was started, so that it can be started again."""

    arguments: tuple[str, ...]
    folder: Path
    has_cache: bool = True  # whether pytest's cache plugin is active: some switch it off

    @classmethod
    def from_arguments(
        cls,
        arguments: Sequence[object],
        folder: Path | str,
        *,
        has_cache: bool = True,
        left_out: Collection[str] = (),
        left_out_with_value: Collection[str] = (),
    ) -> "Command":
        """Keep options that select and configure tests, drop those that write, stop or judge.

        `left_out` and `left_out_with_value` are the calling plugin's options to drop.
        """
        flags, with_value = {*_LEFT_OUT, *left_out}, (*_LEFT_OUT_WITH_VALUE, *left_out_with_value)
        kept: list[str] = []
        words = iter(str(word) for word in arguments)
        for word in words:
            if word in with_value:
                next(words, None)
            elif word not in flags and not word.startswith(tuple(f"{name}=" for name in with_value)):
                kept.append(word)
        return cls(tuple(kept), Path(folder), has_cache)

    def pytest(self, scratch: Path, arguments: Sequence[str] | None = None) -> list[str]:
        """Return pytest's arguments for a fresh process, which measures all tests and has a private cache."""
        kept = self.arguments if arguments is None else arguments
        cache = ["-o", f"cache_dir={scratch / 'cache'}"] if self.has_cache else []
        return [*kept, "--perf", "--maxfail=0", *cache]  # at the end, to override an ini file


def interpreter() -> list[str]:
    """Return the Python command of this run: only `python -m pytest` puts the working folder on sys.path."""
    return [sys.executable] if Path(sys.argv[0]).name == "__main__.py" else [sys.executable, "-P"]


def without_workers(arguments: Sequence[str]) -> list[str]:
    """Return the arguments without those that start workers of pytest-xdist."""
    kept, words = [], iter(arguments)
    for word in words:
        if word == "-n" or word in _WORKERS:
            next(words, None)
        elif word != "-d" and not _WORKERS_JOINED.match(word):
            kept.append(word)
    return kept


def take_session(command: Command, tests: Sequence[str]) -> Session:
    """Measure these tests in one fresh process and return its readings."""
    with tempfile.TemporaryDirectory(prefix="perfsuite-session-") as name:
        request, answer = Path(name, "request.json"), Path(name, "answer.json")
        request.write_text(json.dumps({"role": "session", "tests": list(tests), "answer": str(answer)}))
        ran = subprocess.run(
            [*interpreter(), "-m", "pytest", *command.pytest(Path(name))],
            cwd=command.folder,
            env={**child_environment(os.environ), REQUEST: str(request)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            check=False,
        )
        if not answer.is_file():
            output = "\n".join(f"  {line}" for line in ran.stdout.splitlines()[-_TAIL_LINES:])
            raise SessionFailed(
                f"a fresh process measured nothing (exit status {ran.returncode}); its last output:\n{output}"
            )
        return _read(json.loads(answer.read_text(encoding="utf-8")))


def _read(answer: Mapping[str, Any]) -> Session:
    readings = {
        test: {
            name: SessionReading(taken["values"], tuple(taken["invalid"]), tuple(taken["rounds"]))
            for name, taken in entry["readings"].items()
        }
        for test, entry in answer.items()
    }
    return Session(readings, {test: entry["error"] for test, entry in answer.items() if entry["error"]})
