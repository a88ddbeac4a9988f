"""Record how a machine measures code: sessions in fresh processes, pairs in turns, within a time budget."""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from perfsuite.against.pairs import Compared, duel
from perfsuite.errors import SessionFailed
from perfsuite.processes.checkout import Checkout
from perfsuite.processes.fresh import Command, Taken, take_session
from perfsuite.processes.side import ArmProcess

SLOWDOWN = "PERFSUITE_SLOWDOWN"  # a share; the recorded test does that much more work in each step


@dataclass(frozen=True)
class Workload:
    """The one test that is recorded, and how pytest is told to run it."""

    folder: Path
    test: str
    arguments: tuple[str, ...] = field(default=())

    @property
    def command(self) -> Command:
        """Return the command that measures it."""
        return Command((*self.arguments, self.test), self.folder)


class Span:
    """A stretch of time that is kept: nothing is begun that would not end in it."""

    def __init__(self, seconds: float, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._ends = now() + seconds
        self._longest = 0.0
        self._last: float | None = None

    def has_room(self) -> bool:
        """Tell whether one more as long as the longest so far fits; the first always does."""
        now = self._now()
        if self._last is not None:
            self._longest = max(self._longest, now - self._last)
        is_first, self._last = self._last is None, now
        return is_first or now + self._longest <= self._ends


def record_sessions(workload: Workload, seconds: float, slowdown: float = 0.0) -> list[Taken]:
    """Measure in fresh processes, one after the other, for so long."""
    taken: list[Taken] = []
    span = Span(seconds)
    with _slower(slowdown):
        while span.has_room():
            session = take_session(workload.command, [workload.test])
            if session.errors:
                raise SessionFailed(f"the recorded test failed: {next(iter(session.errors.values()))}")
            taken += [one for readings in session.readings.values() for one in readings.values()]
    return taken


def record_pairs(
    workload: Workload, seconds: float, slowdown: float = 0.0, pair_seconds: float = 7.5
) -> list[Compared]:
    """Compare the test with itself or its slower self, pair by pair, for so long."""
    found: list[Compared] = []
    span = Span(seconds)
    with tempfile.TemporaryDirectory(prefix="perfsuite-recording-") as name:
        beside = Checkout(Path(name).resolve(), workload.folder, workload.folder, "")

        def open_arm(is_other: bool) -> ArmProcess:
            with _slower(0.0 if is_other else slowdown):
                side = "the old side" if is_other else "the new side"
                return ArmProcess(side, workload.command, beside, is_other=False)

        while span.has_room():
            findings = duel(open_arm, [workload.test], pairs=1, seconds=pair_seconds, ref="the old side")
            if findings.failed or findings.apart:
                why = next(iter({**findings.failed, **findings.apart}.values()))
                raise SessionFailed(f"the recorded test could not be compared: {why}")
            found += [one for readings in findings.readings.values() for one in readings.values()]
    return found


def differences(recorded: Sequence[Compared]) -> list[float]:
    """Return one logarithm of new over old for each recorded pair."""
    return [one.differences[0] for one in recorded if one.differences]


def figures(recorded: Sequence[Taken]) -> list[Mapping[str, float]]:
    """Return every valid session's figures."""
    return [one.values for one in recorded if not one.invalid]


@contextmanager
def busy_core() -> Iterator[None]:
    """Burn one core beside what is measured."""
    burner = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        yield
    finally:
        burner.kill()
        burner.wait()


@contextmanager
def _slower(slowdown: float) -> Iterator[None]:
    """Let processes started here inherit the slowdown."""
    before = os.environ.get(SLOWDOWN)
    os.environ[SLOWDOWN] = str(slowdown)
    try:
        yield
    finally:
        if before is None:
            del os.environ[SLOWDOWN]
        else:
            os.environ[SLOWDOWN] = before
