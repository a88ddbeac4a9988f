"""Contract of several processes (O25): they train as one, and what that gains."""

import subprocess
import sys

import pytest
import torch

from tests.perf.contract import contract
from tests.perf.second_process import SIZE, mean_gradients
from tests.perf.subject import training


class Processes:
    """Two processes that train together, driven from here."""

    def __init__(self, rendezvous, how: str) -> None:
        command = [sys.executable, "-m", "tests.perf.second_process"]
        self._all = [
            subprocess.Popen(
                [*command, str(rank), f"file://{rendezvous}", how],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            for rank in (0, 1)
        ]

    def tell(self, command: str) -> None:
        """Let both do something and wait until it is done."""
        first = self._all[0]
        first.stdin.write(f"{command}\n")
        first.stdin.flush()
        answer = first.stdout.readline().strip()
        assert answer == command.partition(" ")[0], (
            f"a process ended instead of answering {command!r}: {answer!r}"
        )

    def close(self) -> None:
        """End both, whatever state they are in."""
        for process in self._all:
            process.kill()
            process.communicate()


@pytest.fixture
def processes(case, tmp_path):
    """Two joined processes; sabotaged, each trains alone."""
    started = Processes(tmp_path / "rendezvous", case.optimized("joined", "alone"))
    yield started
    started.close()


@contract("O25", "cpu")
def test_two_processes_train_as_one_on_the_joined_batch(case, processes, tmp_path):
    """Half a batch in each of two processes gives the whole batch's gradient; the speed-up is reported."""
    alone = training("cpu", SIZE)
    expected = mean_gradients(alone)
    processes.tell(f"gradients {tmp_path / 'gradients.pt'}")
    found = torch.load(tmp_path / "gradients.pt", weights_only=True)
    assert expected.keys() == found.keys()
    reading = case.compare(without=alone.step, with_=lambda: processes.tell("step"), samples=SIZE.windows)
    case.tell(f"efficiency {reading.speedup / 2:.0%} of two processes on this machine's cores")
    for name in expected:
        case.agree(f"the joined gradient of {name}", expected[name], found[name], 1e-3)
    processes.tell("stop")
