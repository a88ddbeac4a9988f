"""Measure suspicious tests again in fresh processes, once, before any of them fails.

Their reports are held back until all tests ran: one set of fresh processes serves all of them, and how
many tests a run has decides how sure each alarm must be.
"""

from collections.abc import Generator
from dataclasses import dataclass, replace

import pytest
from _pytest.runner import runtestprotocol

from perfsuite.errors import PerfsuiteError
from perfsuite.judge.second_stage import settle
from perfsuite.judge.verdicts import is_suspicion
from perfsuite.plugin import failing, selection
from perfsuite.plugin.finish import Ledger
from perfsuite.processes.fresh import Command, take_session
from perfsuite.records import Outcome, Result, Verdict

_LOOKED_AT = (Outcome.PASSED, Outcome.IMPROVED, Outcome.MISSED)


@dataclass(frozen=True)
class Held:
    """A test whose reports wait for the second stage."""

    item: pytest.Item
    reports: list[pytest.TestReport]


class Confirming:
    """Hold reports back, measure again, then report."""

    def __init__(self, ledger: Ledger, command: Command, *, is_at_once: bool = False) -> None:
        self._ledger = ledger
        self._command = command
        self._is_at_once = is_at_once  # a worker of pytest-xdist cannot report a test after the next began
        self._held: list[Held] = []

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
        """Run a performance test and report it at once, unless it is suspicious."""
        if not selection.is_perf_test(item):
            return None
        item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
        reports = runtestprotocol(item, nextitem=nextitem, log=False)
        result = self._ledger.results.get(item.nodeid)
        # A suspect has not failed otherwise; one that is expected to fail may be called failed for passing.
        is_held = result is not None and self._ledger.is_suspect(result)
        if is_held and all(report.passed for report in reports if report.when != "call"):
            self._held.append(Held(item, reports))
            if self._is_at_once:
                self._second_stage()
        else:
            _log(item, reports)
        item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
        return True

    @pytest.hookimpl(wrapper=True)
    def pytest_runtestloop(self) -> Generator[None, object, object]:
        """Run all tests, then the second stage; a run that was stopped reports its suspicions as failures."""
        try:
            answer = yield
            if self._held:
                self._second_stage()
        except BaseException:  # also Ctrl-C in the second stage: what is held back must not be lost
            self._report("the run was stopped before it could be measured again")
            raise
        return answer

    def _second_stage(self) -> None:
        tests = [held.item.nodeid for held in self._held]
        count = self._ledger.options.confirm
        self._say(f"{len(tests)} suspicious: measuring again in {count} fresh processes")
        try:
            sessions = [take_session(self._command, tests) for _ in range(count)]
        except PerfsuiteError as error:
            self._report(str(error))
            return
        settled = settle(
            [self._ledger.results[test] for test in tests],
            sessions,
            gated=self._gated(),
            family_error=self._ledger.options.family_error,
        )
        for result in settled:
            self._ledger.results[result.test] = result
        self._report("")

    def _gated(self) -> int:
        """Return how many timings are held against a baseline in this run."""
        if self._is_at_once:  # the others are yet to come, or with other workers: each may have one
            return sum(map(selection.is_measured, self._held[0].item.session.items))
        return sum(
            verdict.limit is not None
            and verdict.limit.reference is not None
            and verdict.limit.metric.is_timing
            and verdict.outcome in _LOOKED_AT
            for result in self._ledger.results.values()
            for verdict in result.verdicts
        )

    def _report(self, why_not: str) -> None:
        """Report every test that was held back, failed where its suspicion stands."""
        for held in self._held:
            result = self._ledger.results[held.item.nodeid]
            if why_not:
                result = _unsettled(result, why_not)
                self._ledger.results[result.test] = result
            _log(held.item, [_settled(held.item, report, result) for report in held.reports])
        self._held.clear()

    def _say(self, text: str) -> None:
        reporter = self._ledger.config.pluginmanager.get_plugin("terminalreporter")
        if reporter is not None:
            reporter.ensure_newline()
            reporter.write_line(text)


def _unsettled(result: Result, why: str) -> Result:
    def told(verdict: Verdict) -> Verdict:
        return replace(verdict, reason=f"not confirmed: {why}") if is_suspicion(verdict) else verdict

    return replace(result, verdicts=tuple(told(verdict) for verdict in result.verdicts))


def _settled(item: pytest.Item, report: pytest.TestReport, result: Result) -> pytest.TestReport:
    """Let pytest make the report of a test that fails after all: it knows whether that was expected."""
    call = pytest.CallInfo.from_call(lambda: failing.answer(result), when="call")
    if report.when != "call" or call.excinfo is None:
        return report
    if isinstance(item, pytest.Function) and item.funcargs is None:
        item.funcargs = {}  # gone with the test, and yet looked into by whoever makes reports
    anew: pytest.TestReport = item.ihook.pytest_runtest_makereport(item=item, call=call)
    anew.duration, anew.start, anew.stop = report.duration, report.start, report.stop
    anew.sections = report.sections
    return anew


def _log(item: pytest.Item, reports: list[pytest.TestReport]) -> None:
    for report in reports:
        item.ihook.pytest_runtest_logreport(report=report)
