"""Measure tests again in fresh processes: the same pytest command, told to answer instead of to judge."""

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from perfsuite.errors import SessionFailed
from perfsuite.processes.family import for_children

REQUEST = "PERFSUITE_REQUEST"  # names the file with the request; taken away by the process that obeys it
# Flags that would change what a child does, or let two processes write to one place.
_LEFT_OUT = {"--perf", "--save-baseline", "--perf-strict", "--pdb", "--trace", "-x", "--exitfirst", "--lf"}
_LEFT_OUT |= {"--last-failed", "--ff", "--failed-first", "--nf", "--new-first", "--sw", "--stepwise"}
_LEFT_OUT_WITH_VALUE = (
    "--basetemp",
    "--junitxml",
    "--junit-xml",
    "--perf-json",
    "--perf-history",
    "--perf-html",
    "--perf-export",
    "--perf-patch",
    "--against",
    "--maxfail",
)
_TAIL_LINES = 15
_WORKERS = ("--numprocesses", "--maxprocesses", "--dist", "--tx", "--max-worker-restart", "--maxschedchunk")
_WORKERS_JOINED = re.compile(rf"-n(\d+|auto|logical)$|({'|'.join(_WORKERS)})=")


@dataclass(frozen=True)
class Taken:
    """One reading of one session: the figures, and why they do not count."""

    values: Mapping[str, float]
    invalid: tuple[str, ...] = ()
    rounds: tuple[float, ...] = ()  # seconds a step, thinned out where they are many


@dataclass(frozen=True)
class Session:
    """What one fresh process found: test → reading → figures, and the tests that failed there."""

    readings: Mapping[str, Mapping[str, Taken]]
    errors: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Command:
    """How this run was started, so that it can be started again."""

    arguments: tuple[str, ...]
    folder: Path
    has_cache: bool = True  # pytest's own; some switch it off

    @classmethod
    def from_config(cls, config: Any) -> "Command":
        """Read how pytest was started."""
        given, has_cache = config.invocation_params, config.pluginmanager.hasplugin("cacheprovider")
        return cls.from_given(given.args, given.dir, has_cache=has_cache)

    @classmethod
    def from_given(cls, given: Sequence[object], folder: Path | str, *, has_cache: bool = True) -> "Command":
        """Keep what selects and configures tests, leave out what writes, stops or judges."""
        kept: list[str] = []
        words = iter(str(word) for word in given)
        for word in words:
            if word in _LEFT_OUT_WITH_VALUE:
                next(words, None)
            elif word not in _LEFT_OUT and not word.startswith(tuple(f"{n}=" for n in _LEFT_OUT_WITH_VALUE)):
                kept.append(word)
        return cls(tuple(kept), Path(folder), has_cache)

    def pytest(self, scratch: Path, arguments: Sequence[str] | None = None) -> list[str]:
        """Return pytest's arguments in a fresh process, which measures all and keeps its cache to itself."""
        given = self.arguments if arguments is None else arguments
        cache = ["-o", f"cache_dir={scratch / 'cache'}"] if self.has_cache else []
        return [*given, "--perf", "--maxfail=0", *cache]  # last: an ini file may say otherwise


def interpreter() -> list[str]:
    """Return Python as this run has it: `python -m pytest` looks into the working folder first."""
    return [sys.executable] if Path(sys.argv[0]).name == "__main__.py" else [sys.executable, "-P"]


def without_workers(given: Sequence[str]) -> list[str]:
    """Leave out what would start workers of pytest-xdist."""
    kept, words = [], iter(given)
    for word in words:
        if word == "-n" or word in _WORKERS:
            next(words, None)
        elif word != "-d" and not _WORKERS_JOINED.match(word):
            kept.append(word)
    return kept


def take_session(command: Command, tests: Sequence[str]) -> Session:
    """Measure these tests in one fresh process and return what it found."""
    with tempfile.TemporaryDirectory(prefix="perfsuite-session-") as name:
        request, answer = Path(name, "request.json"), Path(name, "answer.json")
        request.write_text(json.dumps({"role": "session", "tests": list(tests), "answer": str(answer)}))
        ran = subprocess.run(
            [*interpreter(), "-m", "pytest", *command.pytest(Path(name))],
            cwd=command.folder,
            env={**for_children(os.environ), REQUEST: str(request)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            check=False,
        )
        if not answer.is_file():
            said = "\n".join(f"  {line}" for line in ran.stdout.splitlines()[-_TAIL_LINES:])
            raise SessionFailed(
                f"a fresh process measured nothing (exit status {ran.returncode}); it said:\n{said}"
            )
        return _read(json.loads(answer.read_text(encoding="utf-8")))


def _read(answer: Mapping[str, Any]) -> Session:
    readings = {
        test: {
            name: Taken(taken["values"], tuple(taken["invalid"]), tuple(taken["rounds"]))
            for name, taken in entry["readings"].items()
        }
        for test, entry in answer.items()
    }
    return Session(readings, {test: entry["error"] for test, entry in answer.items() if entry["error"]})
