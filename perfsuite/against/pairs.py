"""Let two versions run the same tests in turns: short alternating blocks, several pairs of processes."""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from perfsuite.errors import RefUnusable
from perfsuite.metrics import Kind
from perfsuite.processes.side import ArmProcess
from perfsuite.statistics import mean

_TRIMMED = 0.1  # of the turns at each end: a hiccup hits one block, not its neighbour
_LEAST_TURNS = 4

Open = Callable[[bool], ArmProcess]  # is it the other version? → its process


@dataclass
class Compared:
    """What is known of one reading on both sides so far."""

    kind: Kind
    device: str
    modelled: bool
    old: dict[str, float]
    new: dict[str, float]
    invalid: list[str] = field(default_factory=list)
    differences: list[float] = field(default_factory=list)  # one logarithm of new over old for each pair
    costs: list[tuple[float, float]] = field(default_factory=list)  # old, new: their means by pair
    turns: list[list[float]] = field(default_factory=list)  # every turn's logarithm, by pair


@dataclass
class Findings:
    """All that the pairs told: readings by test, and why a test has none."""

    readings: dict[str, dict[str, Compared]] = field(default_factory=dict)
    apart: dict[str, str] = field(default_factory=dict)  # test → why it was not compared
    failed: dict[str, str] = field(default_factory=dict)  # test → how it failed on the new side
    skipped: dict[str, str] = field(default_factory=dict)
    only_old: list[str] = field(default_factory=list)

    def is_settled(self, test: str) -> bool:
        """Tell whether a further pair could say nothing more about a test."""
        return test in self.apart or test in self.failed or test in self.skipped


def duel(
    open_arm: Open,
    tests: Sequence[str],
    *,
    pairs: int,
    seconds: float,
    ref: str,
    say: Callable[[str], None] = lambda _: None,
) -> Findings:
    """Compare the tests in `pairs` pairs of processes, `seconds` of measuring for each reading in all."""
    findings = Findings()
    for number in range(pairs):
        say(f"pair {number + 1} of {pairs}: two fresh processes in turns")
        with _arms(open_arm, number) as (old, new):
            common = _meet(old, new, tests, findings, ref)
            for test in common:
                _Bout(test, (old, new), findings, Turn(number, seconds / pairs, ref)).fight()
        if all(one.modelled for found in findings.readings.values() for one in found.values()):
            break  # counted, not timed: a second pair would say the same
    return findings


@dataclass(frozen=True)
class Turn:
    """Which pair it is, how long it measures each reading, and what the old version is called."""

    number: int
    seconds: float
    ref: str


@contextmanager
def _arms(open_arm: Open, number: int) -> Iterator[tuple[ArmProcess, ArmProcess]]:
    opened: list[ArmProcess] = []
    try:
        # Who is first gets the quieter memory; so they take turns in that, too.
        for is_other in (True, False) if number % 2 == 0 else (False, True):
            opened.append(open_arm(is_other))  # noqa: PERF401  each must be known before the next may fail
        old, new = opened if number % 2 == 0 else reversed(opened)
        yield old, new
    finally:
        for arm in opened:
            arm.close()


def _meet(old: ArmProcess, new: ArmProcess, tests: Sequence[str], findings: Findings, ref: str) -> list[str]:
    """Agree on the tests both sides have, and tell the others."""
    there, here = old.receive(), new.receive()
    errors = there["errors"]
    common = [test for test in tests if test in there["tests"] and test in here["tests"]]
    common = [test for test in common if not findings.is_settled(test)]
    if not common and errors and not findings.readings:
        where, why = next(iter(errors.items()))
        raise RefUnusable(f"{ref} cannot be compared with: {where} does not import there:\n{why}")
    for test in tests:
        if test not in there["tests"]:
            broken = next((error for file, error in errors.items() if test.startswith(file)), "")
            last = broken.strip().splitlines()[-1] if broken.strip() else ""
            why = (
                f"its file does not import at {ref}: {last}"
                if broken
                else f"it is not in {ref}: new or renamed"
            )
            findings.apart.setdefault(test, why)
    findings.only_old = (
        sorted(set(there["tests"]) - set(tests)) if not findings.only_old else findings.only_old
    )
    for arm in (old, new):
        arm.tell(tests=common)
    return common


class _Bout:
    """One test in one pair of processes."""

    def __init__(
        self, test: str, sides: tuple[ArmProcess, ArmProcess], findings: Findings, turn: Turn
    ) -> None:
        self._test, self._sides, self._findings, self._turn = test, sides, findings, turn

    def fight(self) -> None:
        """Run the test on both sides, reading by reading; whoever ends first ends it for both."""
        for side in self._sides:
            side.receive()  # it stands at the test's beginning
        said = [side.ask(do="go") for side in self._sides]  # one after the other: warm-ups do not collide
        while all(one["event"] == "ready" for one in said):
            self._take_turns(said[0], said[1])
            said = [side.ask(do="next") for side in self._sides]
        ends = []
        for side, one in zip(self._sides, said, strict=True):
            while one["event"] != "end":  # one side takes readings the other does not
                one = side.ask(do="next")  # noqa: PLW2901
            ends.append(one)
        self._note_ends(ends[0], ends[1])

    def _take_turns(self, there: dict[str, Any], here: dict[str, Any]) -> None:
        if (there["reading"], there["kind"]) != (here["reading"], here["kind"]):
            now, then = (f"{one['reading']} ({one['kind']})" for one in (here, there))
            self._findings.apart[self._test] = f"it takes {now} here, {then} at {self._turn.ref}"
            return
        known = self._findings.readings.setdefault(self._test, {}).setdefault(
            here["reading"],
            Compared(here["kind"], here["device"], here["modelled"], there["values"], here["values"]),
        )
        known.invalid += [reason for one in (there, here) for reason in one["invalid"]]
        if here["has_blocks"] and there["has_blocks"]:
            self._measure(known, float(here["block_seconds"]))

    def _measure(self, known: Compared, seconds: float) -> None:
        """Alternate blocks, the order swapped from turn to turn and its beginning from pair to pair."""
        logs: list[float] = []
        costs: tuple[list[float], list[float]] = ([], [])
        measured = 0.0
        while len(logs) < _LEAST_TURNS or measured < self._turn.seconds:
            order = (0, 1) if (len(logs) + self._turn.number) % 2 == 0 else (1, 0)
            for side in order:
                spent = self._sides[side].ask(do="block", seconds=seconds)
                costs[side].append(spent["cost"])
                measured += spent["seconds"]
            logs.append(math.log(costs[1][-1] / costs[0][-1]))
        known.differences.append(trimmed_mean(logs))
        known.costs.append((mean(costs[0]), mean(costs[1])))
        known.turns.append(logs)

    def _note_ends(self, there: dict[str, Any], here: dict[str, Any]) -> None:
        if there["foreign"]:
            raise RefUnusable(
                f"{self._turn.ref} would be compared with itself: {', '.join(there['foreign'])} still come "
                "from the project. Install it editable, or put its folder on sys.path"
            )
        if here["outcome"] == "failed":
            self._findings.failed[self._test] = here["text"]
        elif here["outcome"] == "skipped":
            self._findings.skipped[self._test] = here["text"]
        elif there["outcome"] != "passed":
            last = there["text"].strip().splitlines()[-1:] or [""]
            self._findings.apart[self._test] = f"it {there['outcome']} at {self._turn.ref}: {last[0]}"
        elif not self._findings.readings.get(self._test):
            self._findings.apart.setdefault(self._test, "it took no reading that can be compared")


def trimmed_mean(logs: Sequence[float]) -> float:
    """Return the mean without the extremes at both ends."""
    ordered = sorted(logs)
    cut = int(_TRIMMED * len(ordered))
    return mean(ordered[cut : len(ordered) - cut])
