"""On a terminal: a line of progress while a test is measured, gone when it is over."""

import os
import subprocess
import sys

import pytest

pty = pytest.importorskip("pty", reason="needs a Unix terminal")


def run_on_a_terminal(project, *arguments):
    """Run pytest with a pseudo-terminal for its output and return all that was written to it."""
    ours, theirs = pty.openpty()
    environment = {**os.environ, "COLUMNS": "100", "TERM": "xterm"}
    child = subprocess.Popen(
        [sys.executable, "-m", "pytest", *arguments],
        stdout=theirs,
        stderr=theirs,
        cwd=project.path,
        env=environment,
    )
    os.close(theirs)
    written = b""
    try:
        while chunk := os.read(ours, 4096):
            written += chunk
    except OSError:  # Linux reports the end of the other side as an error
        pass
    os.close(ours)
    assert 0 == child.wait()
    return written.decode()


def test_progress_is_shown_and_removed(project):
    """Phase, steps and seconds stand behind the file's name; the cursor returns to where it was."""
    project.test("perf(lambda: sum(range(1000)))")
    seen = run_on_a_terminal(
        project, "--perf", "--perf-device=cpu", "--perf-min-time=0.7", "--perf-max-time=1"
    )
    assert "\x1b7\x1b[K warm-up: 0 steps, 0.0 s\x1b8" in seen
    assert "\x1b7\x1b[K measuring: " in seen
    assert seen.split("\x1b7\x1b[K")[-1].startswith("\x1b8")


def test_quiet_lines_leave_no_room_and_get_no_progress(project):
    """Where the name fills the line nothing is written over it."""
    project.test("perf(lambda: sum(range(1000)))", name="test_" + "x" * 120)
    seen = run_on_a_terminal(
        project, "--perf", "--perf-device=cpu", "--perf-min-time=0.1", "--perf-max-time=0.2", "-v"
    )
    assert "measuring: " not in seen
