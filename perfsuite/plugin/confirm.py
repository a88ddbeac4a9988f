"""Measure suspicious tests again in fresh processes, once, before any of them fails.

Their reports are held back until all tests have run: one set of fresh processes serves all of them, and the
number of tests in a run decides how certain each failure must be.
"""

from collections.abc import Generator
from dataclasses import dataclass, replace

import pytest
from _pytest.runner import runtestprotocol

from perfsuite.errors import PerfsuiteError
from perfsuite.judge.second_stage import settle
from perfsuite.judge.verdicts import is_suspicion
from perfsuite.plugin import run, selection
from perfsuite.plugin.ledger import Ledger
from perfsuite.plugin.screen import say
from perfsuite.processes.fresh import take_session
from perfsuite.records import Outcome, Result, Verdict

_COMPARED = (Outcome.PASSED, Outcome.IMPROVED, Outcome.MISSED)


@dataclass(frozen=True)
class HeldTest:
    """A test whose reports wait for the second stage."""

    item: pytest.Item
    reports: list[pytest.TestReport]


class ConfirmHooks:
    """Hold back the reports of suspicious tests, measure again, then report."""

    def __init__(self, ledger: Ledger, *, is_immediate: bool = False) -> None:
        self._ledger = ledger
        # A worker of pytest-xdist cannot report a test after the next one has started.
        self._is_immediate = is_immediate
        self._held: list[HeldTest] = []

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
        """Run a performance test and report it right away, unless it is suspicious."""
        if not selection.is_perf_test(item):
            return None
        item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
        reports = runtestprotocol(item, nextitem=nextitem, log=False)
        result = self._ledger.results.get(item.nodeid)
        # A suspect's call has not failed so far; only a strict xfail test is reported as failed, for passing.
        is_held = result is not None and self._ledger.is_suspect(result)
        if is_held and all(report.passed for report in reports if report.when != "call"):
            self._held.append(HeldTest(item, reports))
            if self._is_immediate:
                self._second_stage()
        else:
            _log(item, reports)
        item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
        return True

    @pytest.hookimpl(wrapper=True)
    def pytest_runtestloop(self) -> Generator[None, object, object]:
        """Run all tests, then the second stage; a run that was stopped reports its suspicions as failures."""
        try:
            outcome = yield
            if self._held:
                self._second_stage()
        except BaseException:  # also Ctrl-C in the second stage: reports held back must not be lost
            self._report("the run was stopped before it could be measured again")
            raise
        return outcome

    def _second_stage(self) -> None:
        tests = [held.item.nodeid for held in self._held]
        count = self._ledger.options.confirm
        say(self._ledger.config, f"{len(tests)} suspicious: measuring again in {count} fresh processes")
        try:
            sessions = [take_session(self._ledger.command(), tests) for _ in range(count)]
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
        """Return how many timings this run compares with a baseline."""
        if self._is_immediate:  # other tests run later or in other workers: each may have one
            return sum(map(selection.is_measured, self._held[0].item.session.items))
        return sum(
            verdict.limit is not None
            and verdict.limit.reference is not None
            and verdict.limit.metric.is_timing
            and verdict.outcome in _COMPARED
            for result in self._ledger.results.values()
            for verdict in result.verdicts
        )

    def _report(self, why_not: str) -> None:
        """Report every test that was held back; those whose suspicion stands fail."""
        for held in self._held:
            result = self._ledger.results[held.item.nodeid]
            if why_not:
                result = _unsettled(result, why_not)
                self._ledger.results[result.test] = result
            _log(held.item, [_settled(held.item, report, result) for report in held.reports])
        self._held.clear()


def _unsettled(result: Result, why: str) -> Result:
    def with_reason(verdict: Verdict) -> Verdict:
        return replace(verdict, reason=f"not confirmed: {why}") if is_suspicion(verdict) else verdict

    return replace(result, verdicts=tuple(with_reason(verdict) for verdict in result.verdicts))


def _settled(item: pytest.Item, report: pytest.TestReport, result: Result) -> pytest.TestReport:
    """Return the report of a settled test; pytest makes that of a failure, as it knows of xfail."""
    call = pytest.CallInfo.from_call(lambda: run.raise_outcome(result), when="call")
    if report.when != "call" or call.excinfo is None:
        return report
    if isinstance(item, pytest.Function) and item.funcargs is None:
        item.funcargs = {}  # pytest removed them after the test, but hooks that make reports read them
    settled: pytest.TestReport = item.ihook.pytest_runtest_makereport(item=item, call=call)
    settled.duration, settled.start, settled.stop = report.duration, report.start, report.stop
    settled.sections = report.sections
    return settled


def _log(item: pytest.Item, reports: list[pytest.TestReport]) -> None:
    for report in reports:
        item.ihook.pytest_runtest_logreport(report=report)
