"""Who else is on a card: counted by id or by number, idle or computing, and what cannot be known."""

from types import SimpleNamespace

import pytest

from perfsuite.devices.cuda.card import Process
from perfsuite.devices.cuda.nvml import Answer
from perfsuite.devices.cuda.others import QUIET_SECONDS, OtherProcesses
from perfsuite.processes.world import hides_others

BEFORE = "busy before the measurement begins"
WAS_IDLE = "it was idle before the measurement, whether it stayed so is unknown"
HAS_CONTEXT = "another process has a context on the GPU and ran no kernel during the measurement"
COMPUTED = "another process ran kernels on the GPU during the measurement"
CAME = "another process started to use the GPU during the measurement"


class ScriptedCard:
    """A card that lists these processes, and whose utilization changes from look to look."""

    def __init__(self, pids=(), busy=(0.0,), active=()):
        self.pids, self.busy, self.computing = pids, list(busy), active
        self.stamp = 0

    def processes(self):
        return None if self.pids is None else tuple(Process(pid, 100.0) for pid in self.pids)

    def utilization(self):
        share = self.busy.pop(0) if len(self.busy) > 1 else self.busy[0]
        return Answer(why="not reported") if share is None else Answer(share)

    def activity(self, cursor):
        self.stamp += 1
        return Answer([(self.stamp, pid) for pid in self.computing])


def watched(card, *, size=1, is_hidden=False, during=None):
    """Look once before and once in the window; return the subject and the seconds it waited."""
    waited = []
    ours = SimpleNamespace(includes={1, 2}.__contains__, size=size)
    subject = OtherProcesses(card, ours, is_hidden=is_hidden)
    subject.check_before(waited.append)
    for name, value in (during or {}).items():
        setattr(card, name, value)
    subject.look()
    subject.conclude()
    return subject, sum(waited)


@pytest.mark.parametrize(
    ("pids", "size", "foreign"),
    [
        ((1,), 1, 0),
        ((1, 2), 1, 0),
        ((1, 7), 1, 1),
        ((1, 7), 2, 1),  # where ids are known, no other process is accepted
        ((7,), 1, 0),  # ids of another namespace: one of them is ours
        ((7, 8), 1, 1),
        ((7, 8), 2, 0),  # and with a fresh process of our own, two
        ((7, 8, 9), 2, 1),
        ((7,), 3, 0),
        ((1, 7, 8), 1, 2),
    ],
)
def test_foreign_processes_are_those_beyond_our_own(pids, size, foreign):
    """By id where our process is listed, by number where it is not; on a busy card they do not count."""
    subject, waited = watched(ScriptedCard(pids, [0.4]), size=size)
    who = {0: (), 1: ("another process is",), 2: ("2 other processes are",)}[foreign]
    assert tuple(f"{one} on the GPU: it is 40 % {BEFORE}" for one in who) == subject.invalid
    assert (QUIET_SECONDS if foreign else 0) == waited


@pytest.mark.parametrize(
    ("pids", "is_hidden", "why"),
    [
        ((1,), True, "NVML lists only the processes of this container"),
        ((7,), True, ""),  # ids of the host: nobody is hidden
        ((1,), False, ""),
        ((), False, "NVML lists no process, not even this one"),
        (None, False, "processes on the GPU cannot be listed here"),
    ],
)
@pytest.mark.parametrize(
    ("busy", "waits"), [([0.9, 0.5, 0.05], 0.5), ([0.9, 0.06], QUIET_SECONDS), ([None], 0)]
)
def test_where_others_are_hidden_the_idle_card_is_looked_at(pids, is_hidden, why, busy, waits):
    """Our own work is in NVML's figure for two periods; what stays is the work of others."""
    subject, waited = watched(ScriptedCard(pids, busy), is_hidden=is_hidden)
    if not why:
        assert ((), (), 0) == (subject.notes, subject.invalid, waited)
        return
    unknown = f"{why}, and how busy it is is not reported: whether the GPU is shared is unknown"
    expected = {
        0.5: ((f"{why}: {WAS_IDLE}",), ()),
        QUIET_SECONDS: ((), (f"{why}: it is 6 % {BEFORE}",)),
        0: ((unknown,), ()),
    }[waits]
    assert (*expected, waits) == (subject.notes, subject.invalid, waited)


@pytest.mark.parametrize(
    ("pids", "active", "notes", "invalid"),
    [
        ((1, 7), (1,), (HAS_CONTEXT,), ()),
        ((1, 7), (1, 7), (), (COMPUTED,)),
        ((1, 7, 8), (1, 7), (), (COMPUTED,)),
        ((1, 7), (7,), (), (COMPUTED,)),
        ((8, 9), (8,), (HAS_CONTEXT,), ()),
        ((8, 9), (8, 9), (), (COMPUTED,)),
        ((1, 7), (), (), (CAME,)),
    ],
)
def test_an_idle_context_is_a_note_and_one_that_computes_does_not_count(pids, active, notes, invalid):
    """It came during the window; without any sample of who computed, whether it did is unknown."""
    subject, _ = watched(ScriptedCard((1,)), during={"pids": pids, "computing": active})
    assert (notes, invalid) == (subject.notes, subject.invalid)


def test_who_computed_before_the_window_is_not_held_against_it():
    """A notebook that has just finished."""
    card = ScriptedCard((1, 7), active=(1, 7))
    subject, _ = watched(card, during={"computing": (1,)})
    assert ((HAS_CONTEXT,), ()) == (subject.notes, subject.invalid)


@pytest.mark.parametrize(
    ("link", "numbers", "expected"),
    [
        ("pid:[4026531836]", "4711", False),
        ("pid:[4026532801]", "7", True),
        ("pid:[4026531836]", "4711 7", True),  # looked at from outside of its container
    ],
)
def test_a_container_is_known_by_its_namespace(tmp_path, link, numbers, expected):
    """The first namespace has a number of its own; a process has one id for each namespace it is in."""
    (tmp_path / "ns").mkdir()
    (tmp_path / "ns" / "pid").symlink_to(link)
    (tmp_path / "status").write_text(f"Name:\tx\nNSpid:\t{numbers}\n")
    assert expected is hides_others(tmp_path)
    assert hides_others(tmp_path / "none") is False
