"""A rank exits when another stops sending heartbeats or ends the run, wherever it hangs, not otherwise."""

import subprocess
import sys

import pytest

pytestmark = pytest.mark.slow

# Rank 0 of two hangs for some seconds; the test decides what the other does in the store.
HANGING = """
import threading, time
import torch.distributed as dist
from perfsuite.devices.ranks.group import RankWatch
from perfsuite.processes.world import Place

store = dist.HashStore()

def beat(seconds, end=""):
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        store.set("beat/1", str(time.monotonic()))
        time.sleep(0.1)
    if end:
        store.set("beat/1", end)

threading.Thread(target=lambda: ({other}), daemon=True).start()
watch = RankWatch(Place(0, 2, 0, 2), store, 1.2)
time.sleep(3.5)
watch.stop()
print("ended by itself", store.get("beat/0").decode(), flush=True)
"""
SILENT = "rank 1 has sent no heartbeat for 1.2 s"


def hanging(tmp_path, other):
    ending = tmp_path / "ending.txt"
    ran = subprocess.run(
        [sys.executable, "-c", HANGING.format(other=other)],
        env={"PERFSUITE_ENDING": str(ending), "PATH": ""},
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    return ran, ending.read_text() if ending.exists() else ""


@pytest.mark.parametrize("other", ["None", "beat(1.0)"], ids=["never heard of", "heard of for a while"])
def test_silence_ends_a_rank_that_hangs(other, tmp_path):
    """With pytest's code for an internal error, and the reason for the process that started it."""
    ran, why = hanging(tmp_path, other)
    assert (3, "") == (ran.returncode, ran.stdout)
    assert SILENT == why
    assert f"{SILENT}\nperfsuite: all 2 ranks stop here; no baseline was stored" in ran.stderr


@pytest.mark.parametrize("other", ["beat(60)", "beat(1.0, end='gone')"], ids=["it lives", "it said goodbye"])
def test_a_rank_that_lives_or_left_in_order_ends_nobody(other, tmp_path):
    """And it signs off for the others."""
    ran, why = hanging(tmp_path, other)
    assert (0, "ended by itself gone\n", "") == (ran.returncode, ran.stdout, why), ran.stderr


def test_a_rank_that_ends_all_ends_this_one_without_a_word(tmp_path):
    """The rank that ended the run has shown its reason."""
    ran, why = hanging(tmp_path, "(store.set('end', '1'), beat(60))")
    assert (3, "", "", "") == (ran.returncode, ran.stdout, ran.stderr, why)
