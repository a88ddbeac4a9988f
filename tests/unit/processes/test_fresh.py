"""Fresh processes: which part of the command line they inherit, and how their answer is read."""

import json
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from perfsuite.errors import SessionFailed
from perfsuite.plugin.ledger import Ledger
from perfsuite.processes import fresh
from perfsuite.processes.fresh import Command, take_session


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        (["--save-baseline", "tests/perf", "-k", "step"], ["tests/perf", "-k", "step"]),
        (["--perf", "-x", "--lf", "--pdb", "a.py::test"], ["a.py::test"]),
        (["--junitxml", "out.xml", "--perf-json=x.json", "--basetemp", "/tmp/b", "-q"], ["-q"]),
        (["--perf-history=h", "--against", "main", "--perf-device=cpu"], ["--perf-device=cpu"]),
        (["--perf-patch=p", "--perf-html", "h", "--perf-export=e", "--maxfail=1", "-v"], ["-v"]),
        (
            ["--perf-tolerance=5 %", "-o", "perf_strict=true"],
            ["--perf-tolerance=5 %", "-o", "perf_strict=true"],
        ),
    ],
)
def test_what_selects_is_kept_and_what_writes_or_judges_is_not(given, kept, tmp_path):
    """Two processes must not write one file, and a session must not stop at the first failure."""
    config = SimpleNamespace(
        invocation_params=SimpleNamespace(args=given, dir=tmp_path),
        pluginmanager=SimpleNamespace(hasplugin=lambda _: True),
    )
    assert tuple(kept) == Ledger(config, None).command().arguments


def test_a_fresh_process_measures_all_and_keeps_its_cache_to_itself(tmp_path):
    """Whatever an ini file sets: the last argument counts. Without pytest's cache there is nothing to set."""
    command = Command.from_arguments(["-q", "a.py"], tmp_path)
    cache = f"cache_dir={tmp_path / 'cache'}"
    assert ["-q", "a.py", "--perf", "--maxfail=0", "-o", cache] == command.pytest(tmp_path)
    assert ["--perf", "--maxfail=0"] == Command((), tmp_path, has_cache=False).pytest(tmp_path)


@pytest.mark.parametrize(
    ("started", "flags"), [("/usr/lib/pytest/__main__.py", []), ("/usr/bin/pytest", ["-P"])]
)
def test_a_fresh_process_looks_for_modules_as_this_one(started, flags, monkeypatch):
    """Only `python -m pytest` finds a statistics.py in the working folder."""
    monkeypatch.setattr(sys, "argv", [started])
    assert [sys.executable, *flags] == fresh.interpreter()


def test_a_process_without_an_answer_is_an_error_with_its_last_words(tmp_path):
    """A typo in the command is shown as pytest shows it."""
    with pytest.raises(SessionFailed, match=r"exit status 4.*\n(.*\n)*.*--no-such-option"):
        take_session(Command(("--no-such-option",), tmp_path), ["t"])


def test_an_answer_becomes_a_session(tmp_path, monkeypatch):
    """Figures, reasons of invalid readings, rounds and errors come back unchanged."""
    answer = {
        "a": {
            "error": "",
            "readings": {"step": {"values": {"step_time": 1.0}, "invalid": ["hot"], "rounds": [1]}},
        },
        "b": {"error": "ZeroDivisionError()", "readings": {}},
    }

    def run(command, env, **_):
        assert sys.executable == command[0]
        request = json.loads(Path(env[fresh.REQUEST]).read_text())
        assert ["a", "b"] == request["tests"]
        Path(request["answer"]).write_text(json.dumps(answer))

    monkeypatch.setattr(fresh.subprocess, "run", run)
    session = take_session(Command((), tmp_path), ["a", "b"])
    taken = session.readings["a"]["step"]
    assert ({"step_time": 1.0}, ("hot",), (1,)) == (taken.values, taken.invalid, taken.rounds)
    assert {"b": "ZeroDivisionError()"} == session.errors
