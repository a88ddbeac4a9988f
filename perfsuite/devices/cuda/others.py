"""Other processes on the card: who is listed, who computed, and what cannot be known."""

from collections.abc import Callable, Sequence

from perfsuite.devices.cuda.card import Card, Process
from perfsuite.processes.world import ProcessSet

# NVML's utilization is that of its last whole period of at most a second: after two, our own work is over.
QUIET_SECONDS = 2.25
_LOOK_SECONDS = 0.25
IDLE = 0.05  # share of a period; a desktop or a monitor that wakes up now and then takes less


class OtherProcesses:
    """Watch who else uses a card, before and during a window."""

    def __init__(self, card: Card, ours: ProcessSet, *, is_hidden: bool = False) -> None:
        self._card, self._ours = card, ours
        self._is_hidden = is_hidden  # processes outside of this container are not listed
        self._cursor = 0
        self._has_ids = False  # our own processes are listed, so that ids can be compared
        self._first = 0  # foreign processes before the window
        self._most = 0
        self._computing: set[int] = set()  # ids that ran kernels in the window, ours too
        self.own_bytes = 0.0  # held by this run's processes, as far as they are listed
        self.notes: tuple[str, ...] = ()
        self.invalid: tuple[str, ...] = ()

    def check_before(self, wait: Callable[[float], object]) -> None:
        """Look at the card while this run waits: what it computes then is the work of others."""
        processes = self._card.processes()
        self._first = self._most = self._count(processes or ())
        known = [process for process in processes or () if self._ours.includes(process.pid)]
        self.own_bytes = sum(process.used_bytes or 0.0 for process in known)
        unknown = self._unknown(processes)
        if self._first or unknown:
            self._check_idle(unknown or f"{_who(self._first, 'is', 'are')} on the GPU", wait)
        self._look()
        self._computing.clear()  # before the window

    def _unknown(self, processes: Sequence[Process] | None) -> str:
        """Return why the list of processes does not show whether the card is shared, "" if it does."""
        if processes is None:
            return "processes on the GPU cannot be listed here"
        if not processes:
            return "NVML lists no process, not even this one"
        if self._has_ids and self._is_hidden:
            return "NVML lists only the processes of this container"
        return ""

    def _check_idle(self, why: str, wait: Callable[[float], object]) -> None:
        waited, rate = 0.0, self._card.utilization()
        while not rate.why and rate.value > IDLE and waited < QUIET_SECONDS:
            wait(_LOOK_SECONDS)
            waited += _LOOK_SECONDS
            rate = self._card.utilization()
        if rate.why:
            self.notes += (
                f"{why}, and how busy it is is not reported: whether the GPU is shared is unknown",
            )
        elif rate.value > IDLE:
            self.invalid += (f"{why}: it is {100 * rate.value:.0f} % busy before the measurement begins",)
        else:
            self.notes += (f"{why}: it was idle before the measurement, whether it stayed so is unknown",)

    def look(self) -> None:
        """Look at the card once, in the window; asks who computed only where others are listed."""
        foreign = self._count(self._card.processes() or ())
        self._most = max(self._most, foreign)
        if foreign:
            self._look()

    def _look(self) -> None:
        answer = self._card.activity(self._cursor)
        for stamp, pid in () if answer.why else answer.value:
            self._cursor = max(self._cursor, stamp)
            self._computing.add(pid)

    def conclude(self) -> None:
        """Judge the window: others that computed in it make it invalid, others that did not are a note."""
        if not self._most:
            return
        if not self._computing:  # not even our own kernels are reported: nothing is known of others either
            arrived = self._most - self._first
            if arrived:
                who = _who(arrived, "", "")
                self.invalid += (f"{who} started to use the GPU during the measurement",)
            return
        active = self._beyond_ours(self._computing)
        if active:
            self.invalid += (f"{_who(active, '', '')} ran kernels on the GPU during the measurement",)
        else:
            who = _who(self._most, "has", "have")
            self.notes = (f"{who} a context on the GPU and ran no kernel during the measurement",)

    def _count(self, processes: Sequence[Process]) -> int:
        self._has_ids = any(self._ours.includes(process.pid) for process in processes)
        return self._beyond_ours({process.pid for process in processes})

    def _beyond_ours(self, ids: set[int]) -> int:
        """Count processes that are not this run's; ids of another namespace can only be counted."""
        if self._has_ids:
            return sum(not self._ours.includes(pid) for pid in ids)
        return max(len(ids) - self._ours.size, 0)


def _who(count: int, single: str, several: str) -> str:
    who, verb = ("another process", single) if count == 1 else (f"{count} other processes", several)
    return f"{who} {verb}".strip()
