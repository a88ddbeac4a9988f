"""`make loaded`: the rounds beside burning cores, with scripted runs of pytest."""

import subprocess
import sys

import pytest

from benchmarks import loaded


@pytest.fixture
def rounds(monkeypatch, tmp_path):
    """Run the command with pytest replaced by scripts, one for each run."""
    monkeypatch.chdir(tmp_path)

    def run(*scripts, arguments=()):
        left, seen = list(scripts), []

        def scripted(command, **options):
            seen.append(command[3:])
            return subprocess.CompletedProcess(
                command, real([sys.executable, "-c", left.pop(0)], **options).returncode
            )

        real = subprocess.run
        monkeypatch.setattr(loaded.subprocess, "run", scripted)
        monkeypatch.setattr(sys, "argv", ["loaded", *arguments])
        with pytest.raises(SystemExit) as end:
            loaded.main()
        return end.value.code, seen

    return run


GREEN = "print('43 passed in 1.0s')"
RED = "print('FAILED tests/perf/test_x.py::test_y[cpu] - no\\n1 failed in 1.0s'); raise SystemExit(1)"


def test_each_round_runs_the_contracts_as_they_are_and_sabotaged(rounds, capsys):
    """And says how long and with what result."""
    code, seen = rounds(GREEN, GREEN, GREEN, GREEN, arguments=["--rounds=2"])
    assert 0 == code
    assert ["--perf", "tests/suite/test_sabotage.py"] * 2 == [arguments[0] for arguments in seen]
    assert 4 == capsys.readouterr().out.count("as expected, 0 s: 43 passed in 1.0s")


def test_a_failure_is_named_and_the_rounds_go_on(rounds, capsys):
    """The exit code tells it."""
    code, seen = rounds(RED, GREEN, arguments=["--rounds=1"])
    assert (1, 2) == (code, len(seen))
    told = capsys.readouterr().out
    assert "round 1, as they are: NOT AS EXPECTED" in told
    assert "tests/perf/test_x.py::test_y[cpu], see .benchmarks/loaded/round-1-as-they-are.txt" in told


def test_what_burns_burns_until_the_end_and_is_put_out(monkeypatch):
    """A run beside nothing would prove nothing."""
    started = []
    real = subprocess.Popen
    monkeypatch.setattr(
        loaded.subprocess, "Popen", lambda *a, **k: started.append(real(*a, **k)) or started[-1]
    )
    with loaded.burning(2):
        assert [None, None] == [fire.poll() for fire in started]
    assert all(fire.returncode for fire in started)

    def smothered():
        with loaded.burning(1):
            started[-1].kill()
            started[-1].wait()

    with pytest.raises(SystemExit, match="1 of 1 burning processes ended before the run"):
        smothered()
