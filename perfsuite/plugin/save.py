"""Store a run's readings as baselines or as a patch, after judging them; every refusal has a reason."""

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from perfsuite.collect.limits import Origin, SecondStage, is_too_noisy, timing_limits
from perfsuite.environment import Environment
from perfsuite.errors import PerfsuiteError
from perfsuite.judge.validity import crowded
from perfsuite.noise import Spread
from perfsuite.plugin.screen import say
from perfsuite.processes.fresh import Command, take_session
from perfsuite.records import CardMatch, Limit, Result, Session, SessionReading
from perfsuite.remember import files, patch
from perfsuite.remember.documents import Sessions, remember, sessions_of

if TYPE_CHECKING:
    from perfsuite.plugin.ledger import Ledger

AddLine = Callable[[str, str], None]  # text, colour
_NOTHING = "no baseline was stored: only a run that measures something and has no failure can store one"
_REPEATS = 2  # of a session that does not count: one burst of foreign work must not cost all the others


@dataclass(frozen=True)
class FurtherSessions:
    """The figures of further sessions to store, and why some tests cannot be stored."""

    figures: Sessions = field(default_factory=dict)
    first: Mapping[str, Result] = field(default_factory=dict)  # test → what stands in for this run's result
    refused: dict[str, str] = field(default_factory=dict)  # test → reason
    steadiness: tuple[str, ...] = ()  # a line for each stored timing


def measure_sessions(
    results: Sequence[Result],
    command: Command,
    count: int,
    second: SecondStage,
    say: Callable[[str], None],
    *,
    cards: Collection[str] = (),
) -> FurtherSessions:
    """Measure every timed test in `count` sessions; this run is the first of them, where it counts.

    `cards` are the devices whose baselines are kept card by card.
    """
    timed = [result for result in results if any(not reading.modelled for reading in result.readings)]
    first, refused = _replace_first(timed, command, say)
    timed = [first.get(result.test, result) for result in timed if result.test not in refused]
    if count < 2 or not timed:
        return FurtherSessions(first=first, refused=refused)
    sessions = []
    for number in range(2, count + 1):
        say(f"session {number} of {count}, in a fresh process")
        session = take_session(command, [result.test for result in timed])
        sessions.append(_repeat(session, f"session {number}", command, say))
    figures: dict[str, dict[str, list[dict[str, float]]]] = {}
    steadiness: list[str] = []
    for result in timed:
        problem = _problem(result, sessions)
        if problem:
            refused[result.test] = problem
            continue
        figures[result.test] = {
            reading.name: [dict(session.readings[result.test][reading.name].values) for session in sessions]
            for reading in result.readings
        }
        for limit in _limits(result, figures[result.test], second, cards):
            if is_too_noisy(limit):
                refused[result.test] = noise_text(limit)
                continue
            steadiness.append(f"{result.short_name}: {steadiness_text(limit)}")
    return FurtherSessions(figures, first, refused, tuple(steadiness))


def _replace_first(
    timed: Sequence[Result], command: Command, say: Callable[[str], None]
) -> tuple[dict[str, Result], dict[str, str]]:
    """Measure anew what does not count in this run; return test → its new result, and test → refusal."""
    crowds = {result.test: reason for result in timed if (reason := _crowded_reason(result))}
    if not crowds:
        return {}, {}
    # As if it had been the answer of a fresh process: the same words, and as many more attempts.
    refused = {test: {"": SessionReading({}, (reason,))} for test, reason in crowds.items()}
    session = _repeat(Session(refused), "this session", command, say)
    first, problems = {}, {}
    for result in timed:
        if result.test not in crowds:
            continue
        if problem := _session_problem(result, session, "this session"):
            problems[result.test] = problem
        else:
            first[result.test] = _replaced(result, session.readings[result.test])
    return first, problems


def _crowded_reason(result: Result) -> str:
    return next((reason for reading in result.readings for reason in crowded(reading)), "")


def _replaced(result: Result, readings: Mapping[str, SessionReading]) -> Result:
    """Return a result with the figures of a fresh process; what else was reported belongs to the old ones."""
    return replace(
        result,
        readings=tuple(
            replace(reading, figures=taken.values, rounds=taken.rounds, reported={})
            for reading in result.readings
            for taken in (readings[reading.name],)
        ),
    )


def _repeat(session: Session, name: str, command: Command, say: Callable[[str], None]) -> Session:
    """Measure again, at most twice, the tests for which a session does not count."""
    for _ in range(_REPEATS):
        invalid = {test: why for test in session.readings if (why := _invalid(session, test))}
        if not invalid:
            break
        noun, why = "test" if len(invalid) == 1 else "tests", next(iter(invalid.values()))
        say(f"{name} does not count for {len(invalid)} {noun}: measuring again ({why})")
        again = take_session(command, list(invalid))
        session = Session({**session.readings, **again.readings}, {**session.errors, **again.errors})
    return session


def _invalid(session: Session, test: str) -> str:
    """Return why a session does not count for a test; a test that failed is no measurement to repeat."""
    if test in session.errors:
        return ""
    return "; ".join(reason for reading in session.readings[test].values() for reason in reading.invalid)


def _problem(result: Result, sessions: Sequence[Session]) -> str:
    """Return why a test's sessions cannot be compared, empty if they can."""
    problems = (_session_problem(result, one, f"session {number}") for number, one in enumerate(sessions, 2))
    return next(filter(None, problems), "")


def _session_problem(result: Result, session: Session, name: str) -> str:
    if error := session.errors.get(result.test):
        return f"it failed in {name}: {error}"
    readings = session.readings.get(result.test, {})
    if invalid := readings and _invalid(session, result.test):
        return f"{name} does not count, measured {1 + _REPEATS} times: {invalid}"
    if set(readings) != {reading.name for reading in result.readings}:
        return f"{name} took other readings: {', '.join(sorted(readings)) or 'none'}"
    return ""


def _limits(
    result: Result,
    figures: Mapping[str, Sequence[Mapping[str, float]]],
    second: SecondStage,
    cards: Collection[str],
) -> list[Limit]:
    """Return the limits that follow from the sessions of each reading, as they will gate on this card."""
    return [
        limit
        for reading in result.readings
        for limit in timing_limits(
            sessions_of(reading, figures[reading.name]),
            result.expectation.settings,
            second,
            Origin(CardMatch.SAME if reading.device in cards else CardMatch.UNKNOWN),
        )
        if reading.kind in limit.metric.gated_kinds
    ]


def steadiness_text(limit: Limit) -> str:
    """Return how steady a figure is and which slowdowns its baseline can see."""
    spread, visible = limit.spread or Spread(0.0, 0.0, 0), limit.visible or 0.0
    return (
        f"{limit.metric.label} ±{100 * math.expm1(spread.deviation):.1f} % in {spread.count} sessions; "
        f"can see slowdowns from {100 * visible:.0f} % on"
    )


def noise_text(limit: Limit) -> str:
    """Return how noisy a figure's sessions are and which slowdowns would be found."""
    spread, visible = limit.spread or Spread(0.0, 0.0, 0), limit.visible or 0.0
    return (
        f"{limit.metric.label} varies by ±{100 * math.expm1(spread.deviation):.1f} % from session to session "
        f"({spread.count} sessions); only slowdowns from {100 * visible:.0f} % on would be found. "
        "Quieten the machine, measure longer (--perf-min-time), or compare with --against"
    )


class Saver:
    """Store the baselines at the end of a run."""

    def __init__(self, ledger: "Ledger", session: pytest.Session, add_line: AddLine) -> None:
        self._ledger = ledger
        self._session = session
        self._add_line = add_line
        self.stored: set[str] = set()  # tests whose baseline is new

    def save(self) -> None:
        """Measure further sessions if requested, then store the readings that may become baselines."""
        # An expected failure does not keep other tests from being stored, but is not stored itself.
        results = [result for result in self._ledger.results.values() if not result.excused]
        is_green = self._session.exitstatus == pytest.ExitCode.OK and not any(r.is_failed for r in results)
        sessions = self._measure_sessions(results) if is_green else None
        documents: dict[str, dict[str, Any]] = {}
        if sessions is not None:
            accepted = [sessions.first.get(r.test, r) for r in results if r.test not in sessions.refused]
            documents = remember(accepted, self._ledger.environments, sessions.figures)
        if not documents:
            self._add_line(_NOTHING, "red")
            if self._ledger.is_measured:  # a user who wanted to save must not take this for a success
                self._fail()
        elif self._ledger.options.patch_path is not None:
            self._patch(documents, self._ledger.options.patch_path)
        else:
            self._store(documents)
            self._conclude(results, sessions.steadiness if sessions else ())

    def _fail(self, status: pytest.ExitCode = pytest.ExitCode.TESTS_FAILED) -> None:
        if self._session.exitstatus == pytest.ExitCode.OK:
            self._session.exitstatus = status

    def _measure_sessions(self, results: list[Result]) -> FurtherSessions | None:
        """Measure the further sessions; None if that fails."""
        config, options = self._ledger.config, self._ledger.options
        try:
            sessions = measure_sessions(
                [result for result in results if result.readings and not result.invalid],
                self._ledger.command(),
                options.sessions,
                SecondStage(options.confirm, options.family_error),
                lambda text: say(config, text),
                cards=[device for device, where in self._ledger.environments.items() if where.card],
            )
        except PerfsuiteError as error:
            self._fail()
            self._add_line(str(error), "red")
            return None
        except KeyboardInterrupt:
            self._fail(pytest.ExitCode.INTERRUPTED)
            self._add_line("stopped before all sessions were measured", "red")
            return None
        for test, why in sessions.refused.items():
            self._fail()
            self._add_line(f"not stored: {test}: {why}", "red")
        return sessions

    def _patch(self, documents: dict[str, dict[str, Any]], path: Path) -> None:
        """Write the new baselines as a patch instead of storing them."""
        ledger = self._ledger
        try:
            text = patch.of_documents(documents, ledger.options.baseline_dir, ledger.config.rootpath)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, "utf-8")
        except (PerfsuiteError, OSError) as error:
            self._fail()
            self._add_line(f"--perf-patch: {path} was not written: {error}", "red")
        else:
            noun = "baseline" if len(documents) == 1 else "baselines"
            shown = ledger.short_path(path)
            self._add_line(f"{len(documents)} new {noun} as a patch: git apply {shown}", "green")

    def _store(self, documents: Mapping[str, Mapping[str, Any]]) -> None:
        for test, document in documents.items():
            key = Environment.from_stored(document["environment"]).key
            try:
                files.save(files.path_for(self._ledger.options.baseline_dir, key, test), document)
            except PerfsuiteError as error:
                self._fail()
                self._add_line(f"not stored: {test}: {error}", "red")
            else:
                self.stored.add(test)

    def _conclude(self, results: list[Result], steadiness: tuple[str, ...]) -> None:
        invalid = sum(bool(result.invalid) for result in results)
        if invalid:
            self._add_line(f"{invalid} not stored: an invalid measurement never becomes a baseline", "yellow")
        if not self.stored:
            return
        noun = "baseline" if len(self.stored) == 1 else "baselines"
        folder = self._ledger.short_path(self._ledger.options.baseline_dir)
        self._add_line(f"stored {len(self.stored)} {noun} in {folder}; review and commit them", "green")
        for text in steadiness:
            self._add_line(f"  {text}", "")
