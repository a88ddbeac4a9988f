"""The processes of one run: those that measure for it are no strangers on its card."""

import os
import subprocess
import sys

import pytest

from perfsuite.processes.world import RUN, RunProcesses, child_environment

NOBODY = 2**22 + 1  # no system counts that far
# A process that a run started to measure for it, and a second one: what do they think of each other?
CHILD = """
import os, sys
from perfsuite.processes.world import RunProcesses
told = RunProcesses.from_environment()
print(told.root, told.size, *(int(told.includes(int(pid))) for pid in (os.getpid(), *sys.argv[1:])))
"""


def test_alone_a_process_and_its_children_are_the_family():
    """Neither who started it, nor ids that do not exist."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        alone = RunProcesses.from_environment({})
        assert RunProcesses(os.getpid(), 1) == alone
        assert alone.includes(os.getpid())
        assert alone.includes(child.pid)
        assert not alone.includes(NOBODY)
        assert not alone.includes(os.getppid())
        child.communicate(b"\n")


def test_fresh_processes_know_the_run_and_each_other():
    """The run itself and the other side of a comparison keep a context on the card."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as other:
        ran = subprocess.run(
            [sys.executable, "-c", CHILD, *map(str, (os.getpid(), other.pid, os.getppid(), NOBODY))],
            env=child_environment(os.environ, count=2),
            capture_output=True,
            text=True,
            check=True,
        )
        other.communicate(b"\n")
    assert [os.getpid(), 3, 1, 1, 1, 0, 0] == [int(word) for word in ran.stdout.split()]


def test_a_fresh_process_that_starts_ranks_counts_them_to_the_same_run():
    """The first process stays the root, however deep."""
    environment = child_environment(child_environment({"RANK": "1"}), count=4)
    assert {RUN: f"{os.getpid()}:6"} == environment


@pytest.mark.parametrize("said", ["", "x:2", "4711", f"{NOBODY}:2", "-1:2", ":"])
def test_what_does_not_make_sense_is_not_believed(said):
    """Nor a run that is no ancestor: the variable outlived it."""
    assert RunProcesses(os.getpid()) == RunProcesses.from_environment({RUN: said})
