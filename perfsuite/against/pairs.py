"""Run the same tests on two versions in turns: short alternating blocks, in several pairs of processes."""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from perfsuite.errors import RefUnusable
from perfsuite.processes.side import SideProcess, unpack
from perfsuite.records import Reading
from perfsuite.statistics import mean

_TRIMMED = 0.1  # the share of turns cut at each end: a hiccup hits one block, not its neighbour
_LEAST_TURNS = 4

OpenSide = Callable[[bool], SideProcess]  # whether it is the ref's version → its process


@dataclass
class ComparedReading:
    """One reading on both sides, with the pairs measured so far."""

    old: Reading
    new: Reading
    invalid: list[str] = field(default_factory=list)
    differences: list[float] = field(default_factory=list)  # one logarithm of new over old per pair
    costs: list[tuple[float, float]] = field(default_factory=list)  # mean costs (old, new) per pair
    turns: list[list[float]] = field(default_factory=list)  # per pair, the logarithm of every turn


@dataclass
class Findings:
    """The results of all pairs: readings by test, and why a test has none."""

    readings: dict[str, dict[str, ComparedReading]] = field(default_factory=dict)
    not_compared: dict[str, str] = field(default_factory=dict)  # test → reason
    failed: dict[str, str] = field(default_factory=dict)  # test → how it failed on the new side
    skipped: dict[str, str] = field(default_factory=dict)
    only_old: list[str] = field(default_factory=list)

    def is_settled(self, test: str) -> bool:
        """Return whether further pairs would add nothing about a test."""
        return test in self.not_compared or test in self.failed or test in self.skipped


def compare_versions(
    open_side: OpenSide,
    tests: Sequence[str],
    *,
    pairs: int,
    seconds: float,
    ref: str,
    say: Callable[[str], None] = lambda _: None,
) -> Findings:
    """Compare the tests in `pairs` pairs of processes, measuring each reading for `seconds` in total."""
    findings = Findings()
    for number in range(pairs):
        say(f"pair {number + 1} of {pairs}: two fresh processes in turns")
        with _both_sides(open_side, number) as (old, new):
            common = _agree_on_tests(old, new, tests, findings, ref)
            for test in common:
                _TestInTurns(test, (old, new), findings, Pair(number, seconds / pairs, ref)).run()
        compared = [reading for by_name in findings.readings.values() for reading in by_name.values()]
        if all(reading.new.modelled for reading in compared):
            break  # counted, not timed: a second pair would give the same
    return findings


@dataclass(frozen=True)
class Pair:
    """The pair's number, how long it measures each reading, and the name of the old version."""

    number: int
    seconds: float
    ref: str


@contextmanager
def _both_sides(open_side: OpenSide, number: int) -> Iterator[tuple[SideProcess, SideProcess]]:
    opened: list[SideProcess] = []
    try:
        # The process started first gets the quieter memory, so the sides alternate in starting first.
        for is_ref in (True, False) if number % 2 == 0 else (False, True):
            opened.append(open_side(is_ref))  # noqa: PERF401  close the first even if the second fails
        old, new = opened if number % 2 == 0 else reversed(opened)
        yield old, new
    finally:
        for side in opened:
            side.close()


def _agree_on_tests(
    old: SideProcess, new: SideProcess, tests: Sequence[str], findings: Findings, ref: str
) -> list[str]:
    """Send both sides the tests that they have in common, and record why others are not compared."""
    old_side, new_side = old.receive(), new.receive()
    errors = old_side["errors"]
    common = [test for test in tests if test in old_side["tests"] and test in new_side["tests"]]
    common = [test for test in common if not findings.is_settled(test)]
    if not common and errors and not findings.readings:
        where, why = next(iter(errors.items()))
        raise RefUnusable(f"{ref} cannot be compared with: {where} does not import there:\n{why}")
    for test in tests:
        if test not in old_side["tests"]:
            import_error = next((error for file, error in errors.items() if test.startswith(file)), "")
            last_line = import_error.strip().splitlines()[-1] if import_error.strip() else ""
            why = (
                f"its file does not import at {ref}: {last_line}"
                if import_error
                else f"it is not in {ref}: new or renamed"
            )
            findings.not_compared.setdefault(test, why)
    findings.only_old = (
        sorted(set(old_side["tests"]) - set(tests)) if not findings.only_old else findings.only_old
    )
    for side in (old, new):
        side.send(tests=common)
    return common


class _TestInTurns:
    """One test in one pair of processes."""

    def __init__(
        self, test: str, sides: tuple[SideProcess, SideProcess], findings: Findings, pair: Pair
    ) -> None:
        self._test, self._sides, self._findings, self._pair = test, sides, findings, pair

    def run(self) -> None:
        """Run the test on both sides, reading by reading, until it ends on either side."""
        for side in self._sides:
            side.receive()  # the side has reached the test
        messages = [side.request(do="go") for side in self._sides]  # one by one: warm-ups do not collide
        while all(message["event"] == "ready" for message in messages):
            self._take_turns(messages[0], messages[1])
            messages = [side.request(do="next") for side in self._sides]
        ends = []
        for side, message in zip(self._sides, messages, strict=True):
            while message["event"] != "end":  # this side takes readings that the other does not
                message = side.request(do="next")  # noqa: PLW2901
            ends.append(message)
        self._note_ends(ends[0], ends[1])

    def _take_turns(self, old_ready: dict[str, Any], new_ready: dict[str, Any]) -> None:
        old, new = unpack(old_ready["reading"]), unpack(new_ready["reading"])
        if (old.name, old.kind) != (new.name, new.kind):
            now, then = (f"{reading.name} ({reading.kind})" for reading in (new, old))
            self._findings.not_compared[self._test] = f"it takes {now} here, {then} at {self._pair.ref}"
            return
        by_name = self._findings.readings.setdefault(self._test, {})
        compared = by_name.setdefault(new.name, ComparedReading(old, new))
        compared.invalid += [*old.invalid, *new.invalid]
        if new_ready["has_blocks"] and old_ready["has_blocks"]:
            self._measure(compared, float(new_ready["block_seconds"]))

    def _measure(self, compared: ComparedReading, seconds: float) -> None:
        """Alternate blocks; the order changes from turn to turn, and the first turn's from pair to pair."""
        logs: list[float] = []
        costs: tuple[list[float], list[float]] = ([], [])
        measured = 0.0
        while len(logs) < _LEAST_TURNS or measured < self._pair.seconds:
            order = (0, 1) if (len(logs) + self._pair.number) % 2 == 0 else (1, 0)
            for side in order:
                block = self._sides[side].request(do="block", seconds=seconds)
                costs[side].append(block["cost"])
                measured += block["seconds"]
            logs.append(math.log(costs[1][-1] / costs[0][-1]))
        compared.differences.append(trimmed_mean(logs))
        compared.costs.append((mean(costs[0]), mean(costs[1])))
        compared.turns.append(logs)

    def _note_ends(self, old: dict[str, Any], new: dict[str, Any]) -> None:
        findings, ref = self._findings, self._pair.ref
        if old["foreign"]:
            raise RefUnusable(
                f"{ref} would be compared with itself: {', '.join(old['foreign'])} still come "
                "from the project. Install it editable, or put its folder on sys.path"
            )
        if new["outcome"] == "failed":
            findings.failed[self._test] = new["text"]
        elif new["outcome"] == "skipped":
            findings.skipped[self._test] = new["text"]
        elif old["outcome"] != "passed":
            last_line = old["text"].strip().splitlines()[-1:] or [""]
            findings.not_compared[self._test] = f"it {old['outcome']} at {ref}: {last_line[0]}"
        elif not findings.readings.get(self._test):
            findings.not_compared.setdefault(self._test, "it took no reading that can be compared")


def trimmed_mean(logs: Sequence[float]) -> float:
    """Return the mean without the extremes at both ends."""
    ordered = sorted(logs)
    cut = int(_TRIMMED * len(ordered))
    return mean(ordered[cut : len(ordered) - cut])
