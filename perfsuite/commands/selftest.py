"""Measure what the gate can detect on this machine: record identical and slower code many times."""

import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from perfsuite.against.pairs import ComparedReading, compare_versions
from perfsuite.collect.limits import steadiest_timing
from perfsuite.commands.trials import Gate, Rates, against_rates, stored_rates
from perfsuite.devices.open import resolve
from perfsuite.errors import SessionFailed
from perfsuite.metrics import METRICS
from perfsuite.processes.checkout import Checkout
from perfsuite.processes.fresh import Command, take_session
from perfsuite.processes.side import SideProcess
from perfsuite.records import SessionReading
from perfsuite.statistics import mean

SLOWDOWN = "PERFSUITE_SLOWDOWN"  # a share; the recorded test does that much more work in each step
SLOWDOWNS = (0.02, 0.05, 0.10)
LEAST_BUDGET_SECONDS = 300.0
_MIN_SESSIONS = 12  # five for a baseline, one to judge, five to confirm, and one to choose from
_LEAST_PAIRS = 6
_REAL = 0.05  # the slowdown that is really built in, to check that it is measured as large as it is
_TRIALS = 2000
_SHARES = {"sessions": 0.40, "slow sessions": 0.10, "pairs": 0.38, "slow pairs": 0.12}  # of the budget
# One hundred equal units a step, so that a share of slowdown is that many units more.
_TEST = '''
"""A training step of a hundred equal units, plus as many more as the slowdown requires."""
import os
import torch

UNITS = 100
EXTRA = round(UNITS * float(os.environ["PERFSUITE_SLOWDOWN"]))


def test_step(perf):
    torch.manual_seed(0)
    layers = (torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 1))
    model = torch.nn.Sequential(*layers).to(perf.device)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    batch = torch.ones(8, 16, device=perf.device)

    def step():
        optimizer.zero_grad()
        for _ in range(UNITS + EXTRA):
            model(batch).square().mean().backward()
        optimizer.step()

    perf(step)
'''


@dataclass(frozen=True)
class Workload:
    """The test that is recorded, and how pytest runs it."""

    folder: Path
    test: str
    arguments: tuple[str, ...] = field(default=())

    @property
    def command(self) -> Command:
        """Return the command that measures the test."""
        return Command((*self.arguments, self.test), self.folder)


class Span:
    """A time budget: nothing is started that would not end within it."""

    def __init__(self, seconds: float, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._ends = now() + seconds
        self._longest = 0.0
        self._last: float | None = None

    def has_room(self) -> bool:
        """Return whether one more measurement, as long as the longest so far, fits; the first always does."""
        now = self._now()
        if self._last is not None:
            self._longest = max(self._longest, now - self._last)
        is_first, self._last = self._last is None, now
        return is_first or now + self._longest <= self._ends


def record_sessions(workload: Workload, seconds: float, slowdown: float = 0.0) -> list[SessionReading]:
    """Measure in fresh processes, one after the other, until the time is used up."""
    recorded: list[SessionReading] = []
    span = Span(seconds)
    with _slower(slowdown):
        while span.has_room():
            session = take_session(workload.command, [workload.test])
            if session.errors:
                raise SessionFailed(f"the recorded test failed: {next(iter(session.errors.values()))}")
            recorded += [reading for readings in session.readings.values() for reading in readings.values()]
    return recorded


def record_pairs(
    workload: Workload, seconds: float, slowdown: float = 0.0, pair_seconds: float = 7.5
) -> list[ComparedReading]:
    """Compare the test with itself or a slower version, pair by pair, until the time is used up."""
    recorded: list[ComparedReading] = []
    span = Span(seconds)
    with tempfile.TemporaryDirectory(prefix="perfsuite-recording-") as name:
        checkout = Checkout(Path(name).resolve(), workload.folder, workload.folder, "")

        def open_side(is_ref: bool) -> SideProcess:
            with _slower(0.0 if is_ref else slowdown):
                side = "the old side" if is_ref else "the new side"
                return SideProcess(side, workload.command, checkout, is_ref=False)

        while span.has_room():
            findings = compare_versions(
                open_side, [workload.test], pairs=1, seconds=pair_seconds, ref="the old side"
            )
            if findings.failed or findings.not_compared:
                why = next(iter({**findings.failed, **findings.not_compared}.values()))
                raise SessionFailed(f"the recorded test could not be compared: {why}")
            recorded += [reading for readings in findings.readings.values() for reading in readings.values()]
    return recorded


def differences(recorded: Sequence[ComparedReading]) -> list[float]:
    """Return one logarithm of new over old for each recorded pair."""
    return [reading.differences[0] for reading in recorded if reading.differences]


def figures(recorded: Sequence[SessionReading]) -> list[Mapping[str, float]]:
    """Return the figures of every valid session."""
    return [reading.values for reading in recorded if not reading.invalid]


@contextmanager
def busy_core() -> Iterator[None]:
    """Keep one core busy while something else is measured."""
    burner = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        yield
    finally:
        burner.kill()
        burner.wait()


@contextmanager
def _slower(slowdown: float) -> Iterator[None]:
    """Set the slowdown for processes that are started inside."""
    previous = os.environ.get(SLOWDOWN)
    os.environ[SLOWDOWN] = str(slowdown)
    try:
        yield
    finally:
        if previous is None:
            del os.environ[SLOWDOWN]
        else:
            os.environ[SLOWDOWN] = previous


def self_test(budget_seconds: float, device: str, say: Callable[[str], None]) -> str:
    """Record within the budget, run the gate on the recorded readings, and return the rates as text."""
    if budget_seconds < LEAST_BUDGET_SECONDS:
        raise SessionFailed(
            f"a self-test needs at least {LEAST_BUDGET_SECONDS / 60:.0f} minutes, "
            f"got {budget_seconds:.0f} s; give it more with --budget"
        )
    kind, _ = resolve(device)
    if kind is not None and kind.is_modelled:
        raise SessionFailed(f"{device} predicts its times, which have no noise to test; choose cpu or cuda")
    with tempfile.TemporaryDirectory(prefix="perfsuite-self-test-") as name:
        folder = Path(name).resolve()
        (folder / "test_self.py").write_text(_TEST)
        (folder / "pytest.ini").write_text("[pytest]\n")
        workload = Workload(
            folder, "test_self.py::test_step", (f"--perf-device={device}", "--perf-max-time=1 s")
        )
        spans = {kind: budget_seconds * share for kind, share in _SHARES.items()}
        say("identical code in fresh processes")
        sessions = figures(record_sessions(workload, spans["sessions"]))
        say("really slower code in fresh processes")
        slow = figures(record_sessions(workload, spans["slow sessions"], _REAL))
        say("identical code against itself, in turns")
        pairs = differences(record_pairs(workload, spans["pairs"]))
        say("really slower code against the original, in turns")
        slow_pairs = differences(record_pairs(workload, spans["slow pairs"], _REAL))
    if len(sessions) < _MIN_SESSIONS or len(pairs) < _LEAST_PAIRS:
        raise SessionFailed(
            f"only {len(sessions)} sessions and {len(pairs)} pairs fitted into "
            f"{budget_seconds / 60:.0f} minutes, {_MIN_SESSIONS} and {_LEAST_PAIRS} are needed; "
            "give it more with --budget"
        )
    return render(sessions, slow, pairs, slow_pairs)


def render(
    sessions: Sequence[Mapping[str, float]],
    slow: Sequence[Mapping[str, float]],
    pairs: Sequence[float],
    slow_pairs: Sequence[float],
) -> str:
    """Return the table of rates and how they were determined."""
    gate = Gate()
    rows = [
        ("stored baseline", [stored_rates(sessions, s, _TRIALS, gate) for s in (0.0, *SLOWDOWNS)]),
        ("--against", [against_rates(pairs, s, _TRIALS, gate) for s in (0.0, *SLOWDOWNS)]),
    ]
    heads = ["false alarms", *(f"{100 * s:.0f} % found" for s in SLOWDOWNS), "undecided"]
    lines = [f"{'':16}  {'  '.join(head.rjust(12) for head in heads)}"]
    for name, rates in rows:
        cells = [*(f"{100 * rate.failed:.1f} %" for rate in rates), _undecided(rates)]
        lines.append(f"{name:16}  {'  '.join(cell.rjust(12) for cell in cells)}")
    notes = [
        f"{_TRIALS} trials each, drawn from {len(sessions)} sessions and {len(pairs)} pairs of identical "
        "code; a slowdown is the recorded time made longer.",
        f"Really slower code ({100 * _REAL:.0f} %) measured {_measured(sessions, slow)} in {len(slow)} "
        f"sessions and {_percent(mean(slow_pairs))} in {len(slow_pairs)} pairs.",
        _promise(rows[0][1], rows[1][1]),
    ]
    return "\n".join([*lines, *notes])


def _undecided(rates: Sequence[Rates]) -> str:
    return f"{100 * max(rate.undecided for rate in rates):.1f} %"


def _measured(sessions: Sequence[Mapping[str, float]], slow: Sequence[Mapping[str, float]]) -> str:
    """Return the real slowdown in the timing that the gate would judge by."""
    columns = {name: [session[name] for session in sessions if name in session] for name in sessions[0]}
    timing = steadiest_timing({name: values for name, values in columns.items() if METRICS[name].is_timing})

    def centre(group: Sequence[Mapping[str, float]]) -> float:
        return mean([math.log(session[timing]) for session in group])

    return _percent(centre(slow) - centre(sessions))


def _percent(effect: float) -> str:
    return f"{100 * math.expm1(effect):+.1f} %"


def _promise(stored: Sequence[Rates], against: Sequence[Rates]) -> str:
    """Return the smallest tried slowdown that each gate finds nine times out of ten."""

    def least(rates: Sequence[Rates]) -> str:
        detected = [s for s, rate in zip(SLOWDOWNS, rates[1:], strict=True) if rate.failed >= 0.9]
        return f"{100 * detected[0]:.0f} %" if detected else f"nothing up to {100 * SLOWDOWNS[-1]:.0f} %"

    return (
        f"This machine can promise to find: with a stored baseline {least(stored)}, "
        f"with --against {least(against)} (nine times out of ten)."
    )
