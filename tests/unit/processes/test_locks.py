"""Locks on devices: one holder at a time, with its name, gone with its process, inherited by children."""

import json
import os
import signal
import stat
import subprocess
import sys

import pytest

from perfsuite.errors import DeviceBusy
from perfsuite.processes.locks import HELD, Holder, LockFile, lock_devices, lock_folder

pytest.importorskip("fcntl", reason="Windows has no locks")

HOLDING = """
import sys
from perfsuite.processes.locks import lock_devices
held = lock_devices(sys.argv[1:], timeout=0, command="pytest --perf", say=print)
{then}
print("holding", flush=True)
sys.stdin.readline()
"""


@pytest.fixture
def environment(tmp_path):
    return {"PERFSUITE_LOCK_DIR": str(tmp_path / "locks")}


@pytest.fixture
def other_run(environment):
    """Start processes that lock devices until they are requested to end."""
    started = []

    def start(*names, then="", **more):
        child = subprocess.Popen(
            [sys.executable, "-c", HOLDING.format(then=then), *names],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **environment, **more},
        )
        started.append(child)
        assert "holding\n" == child.stdout.readline()
        return child

    yield start
    for child in started:
        child.kill()
        child.communicate()


def take(environment, *names, timeout=0.0, said=None):
    return lock_devices(
        names,
        timeout=timeout,
        command="pytest",
        say=(said if said is not None else []).append,
        environment=environment,
    )


def test_a_held_device_is_refused_with_its_holders_name(environment, other_run):
    """Process, user, command, start time, and what to do."""
    child = other_run("cpu")
    with pytest.raises(
        DeviceBusy, match=rf"cpu is in use .*: pid {child.pid} of \S+ since .* \(pytest --perf\)"
    ):
        take(environment, "cpu")
    assert HELD not in environment
    take(environment, "GPU-1").release()


def test_the_lock_of_a_killed_process_is_free(environment, other_run):
    """Even while a process that it forked is still alive."""
    forked = "os.write(there, b'x'), os.read(0, 1), os._exit(0)"
    then = f"import os; here, there = os.pipe(); os.fork() or ({forked}); os.read(here, 1)"
    child = other_run("cpu", then=then)
    child.send_signal(signal.SIGKILL)
    child.wait()
    take(environment, "cpu").release()


def test_waiting_is_told_and_ends_when_the_other_run_does(environment, other_run):
    """The message appears while the other process still holds the lock: it ends only on request."""
    child, said = other_run("cpu"), []

    def say(text):
        said.append(text)
        if child.poll() is None:
            child.communicate("\n")

    held = lock_devices(["cpu"], timeout=60, command="pytest", say=say, environment=environment)
    assert [
        f"perfsuite: waiting for cpu, in use by pid {child.pid} of",
        "perfsuite: cpu is free, measuring",
    ] == [said[0].partition(" since")[0].rpartition(" ")[0], said[1]]
    held.release()


def test_when_the_time_is_up_nothing_stays_held(environment, other_run):
    """Locks taken before the busy one are released again."""
    other_run("b")
    with pytest.raises(DeviceBusy, match=r"b is in use .*; waited 0\.\d+ s \(--perf-lock-timeout=0\.3 s\)"):
        take(environment, "b", "a", timeout=0.3)
    take(environment, "a").release()


def test_an_ancestors_device_is_ours_and_stays_the_ancestors(environment):
    """Children, and runs inside a run, neither wait for nor release a lock that is not theirs."""
    outer = take(environment, "cpu")
    assert {"cpu": os.getpid()} == json.loads(environment[HELD])
    inner = take(environment, "cpu", "GPU-1")
    inner.release()
    assert {"cpu": os.getpid()} == json.loads(environment[HELD])
    with pytest.raises(DeviceBusy):
        take({**environment, HELD: "{}"}, "cpu")
    outer.release()
    assert HELD not in environment


@pytest.mark.parametrize("stale", ['{"cpu": 1}', "nonsense", "[1]"])
def test_a_claim_that_outlived_its_run_is_not_believed(environment, other_run, stale):
    """The file names another holder, so this process must wait."""
    other_run("cpu")
    with pytest.raises(DeviceBusy):
        take({**environment, HELD: stale}, "cpu")


def test_all_users_share_the_files_whatever_the_umask(environment, tmp_path):
    """A folder like /tmp, files that everybody may lock."""
    before = os.umask(0o077)
    try:
        take(environment, "GPU-1/7:0").release()
    finally:
        os.umask(before)
    (file,) = (tmp_path / "locks").iterdir()
    assert "GPU-1_7_0.lock" == file.name
    assert 0o666 == stat.S_IMODE(file.stat().st_mode)
    assert 0o1777 == stat.S_IMODE((tmp_path / "locks").stat().st_mode)


@pytest.mark.parametrize("kind", ["symlink", "hard link", "fifo", "folder"])
def test_what_somebody_put_in_the_files_place_is_left_alone(environment, tmp_path, kind):
    """Measured without a lock, with a message; the file it links to is not changed."""
    (tmp_path / "locks").mkdir()
    victim, place = tmp_path / "victim", tmp_path / "locks" / "cpu.lock"
    victim.write_text("precious")
    {
        "symlink": lambda: place.symlink_to(victim),
        "hard link": lambda: os.link(victim, place),
        "fifo": lambda: os.mkfifo(place),
        "folder": place.mkdir,
    }[kind]()
    said = []
    take(environment, "cpu", said=said).release()
    assert ["perfsuite: cpu is measured without a lock, other runs may disturb it"] == [
        text.partition(": /")[0] for text in said
    ]
    assert "precious" == victim.read_text()


def test_a_file_that_was_cleaned_away_is_made_anew(environment):
    """Two runs must not hold two files of one name."""
    folder = lock_folder(environment)
    file = LockFile(folder, "cpu")
    file.path.unlink()
    assert file.try_lock()
    assert not LockFile(folder, "cpu").try_lock()
    file.close()


def test_a_holders_text_cannot_steer_the_terminal():
    """Other users may write anything into a file that all share."""
    text = json.dumps({"pid": 7, "user": "\x1b[2Jx", "command": "a\nb" + "c" * 999, "since": "now"})
    told = Holder.from_text(text).describe()
    assert told.startswith("pid 7 of ?[2Jx since now (a?bccc")
    assert 300 > len(told)
    for broken in ("", "{", "[]", "{}", '{"pid": "x"}', "null"):
        assert Holder.from_text(broken) is None


def test_the_folder_is_the_machines_not_the_jobs(monkeypatch):
    """CI gives every job a different TMPDIR."""
    monkeypatch.setenv("TMPDIR", "/somewhere")
    assert "/tmp/perfsuite-locks" == str(lock_folder({"TMPDIR": "/somewhere"}))
