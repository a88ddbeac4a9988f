"""The pytest hooks of `--against=REF`: compare all tests first, then report each one to pytest."""

import os
import shutil
import socket
import sys
from collections.abc import Generator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from perfsuite.against import table
from perfsuite.against.decide import Call, JudgedReading, Rule, judge_findings
from perfsuite.against.pairs import Findings, compare_versions
from perfsuite.errors import PerfsuiteError, SessionFailed
from perfsuite.measure.blocks import Block
from perfsuite.measure.step import gc_paused
from perfsuite.plugin import selection
from perfsuite.plugin.outputs import annotations, write_outputs
from perfsuite.plugin.run import PerfRun
from perfsuite.plugin.screen import say, write_section
from perfsuite.processes.checkout import checked_out
from perfsuite.processes.side import Channel, SideProcess, pack
from perfsuite.records import Expectation, Reading, Result
from perfsuite.report import terminal
from perfsuite.report.terminal import Line

_PAIR_SECONDS = 7.5  # of measuring; a longer pair only repeats that pair's luck
_LEAST_PAIRS, _MOST_PAIRS = 8, 16


class SideHooks:
    """One version under test; it does only what the comparing process requests."""

    def __init__(self, request: Mapping[str, Any]) -> None:
        self._channel = Channel(socket.socket(fileno=int(request["socket"])))
        self._scratch = str(request["scratch"])
        self._project = str(request["project"])
        self._errors: dict[str, str] = {}
        self._outcome, self._text = "passed", ""

    def _request(self, **message: Any) -> dict[str, Any]:
        """Send a message and return the reply; if the comparing process is gone, clean up and exit."""
        try:
            return self._channel.request(**message)
        except SessionFailed:
            shutil.rmtree(self._scratch, ignore_errors=True)
            os._exit(3)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Record which files cannot be imported."""
        if report.failed:
            self._errors[report.nodeid] = report.longreprtext

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Send the collected tests and keep those that both sides have, in the order of the reply."""
        by_id = {item.nodeid: item for item in items if selection.is_perf_test(item)}
        reply = self._request(event="collected", tests=list(by_id), errors=self._errors)
        items[:] = [by_id[test] for test in reply["tests"]]

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        """Start a test when requested, and send its outcome."""
        self._outcome, self._text = "passed", ""
        self._request(event="test", test=item.nodeid)
        outcome = yield
        self._channel.send(
            event="end", test=item.nodeid, outcome=self._outcome, text=self._text, foreign=self._foreign()
        )
        return outcome

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Record the worst outcome of the test's phases."""
        if report.failed or (report.skipped and self._outcome == "passed"):
            self._outcome = report.outcome
            self._text = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longreprtext

    def run_blocks(self, reading: Reading, block: Block | None, block_seconds: float) -> None:
        """Run blocks of the step that was just measured until the comparing process has enough."""
        reply = self._request(
            event="ready",
            reading=pack(reading),
            has_blocks=block is not None,
            block_seconds=block_seconds,
        )
        with gc_paused():  # once for all blocks: a collection takes longer than a block
            while reply["do"] == "block" and block is not None:
                reply = self._request(event="block", **block(float(reply["seconds"]))._asdict())

    def _foreign(self) -> list[str]:
        """Return modules that were imported from the project itself instead of the checked-out version."""
        if not self._project:
            return []
        names = []
        for name, module in list(sys.modules.items()):
            file = getattr(module, "__file__", None)
            inside = file is not None and Path(file).is_relative_to(self._project)
            if inside and not Path(str(file)).is_relative_to(sys.prefix):
                names.append(name)
        return sorted(names)[:5]


class AgainstHooks:
    """Run no test in this process: both versions run in separate processes, and this one reports."""

    def __init__(self, run: PerfRun) -> None:
        self._run = run
        self._ledger = run.ledger
        self._ref = run.ledger.options.against
        settings = run.ledger.options.settings({})
        self._rule = Rule(
            self._ref,
            run.ledger.options.family_error,
            settings.tolerance,
            run.device.tolerances,
            run.device.compares_times,
        )
        self._is_strict = settings.strict
        self._findings = Findings()
        self._judged: list[JudgedReading] = []
        self._closing: list[Line] = []  # printed after the table
        self._annotations: list[str] = []

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        """Deselect tests that measure nothing: there is nothing to compare."""
        others = [item for item in items if not selection.is_perf_test(item)]
        items[:] = [item for item in items if selection.is_perf_test(item)]
        if others:
            config.hook.pytest_deselected(items=others)

    def pytest_report_header(self) -> str:
        """Return the line that names the version to compare with."""
        return f"perfsuite: compared with {self._ref}, baselines are not used"

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool | None:
        """Compare everything, then report every test."""
        if session.config.option.collectonly or not session.items:
            return None
        if session.testsfailed and not session.config.option.continue_on_collection_errors:
            raise session.Interrupted(f"{session.testsfailed} errors during collection")
        try:
            self._compare([item.nodeid for item in session.items])
        except PerfsuiteError as error:
            raise pytest.UsageError(f"perfsuite: {error}") from None
        for item in session.items:
            self._report(item)
            self._ledger.lines[item.nodeid] = (item.location[1] or 0) + 1
            self._run.environment(self._run.device_of(item))
        self._ledger.benchmarked += any(
            judged.difference or judged.compared.new.modelled for judged in self._judged
        )
        return True

    def _compare(self, tests: Sequence[str]) -> None:
        config, options = self._ledger.config, self._ledger.options
        command = self._ledger.command()
        # Both sides use this run's device, not the one in the ref's ini file; a test's marker still wins.
        device = ("-o", f"perf_device={options.settings({}).device}")
        command = replace(command, arguments=(*command.arguments, *device))
        pairs = min(max(round(options.against_seconds / _PAIR_SECONDS), _LEAST_PAIRS), _MOST_PAIRS)
        with checked_out(self._ref, config.rootpath) as checkout:
            names = {True: self._ref, False: "this version"}

            def open_side(is_ref: bool) -> SideProcess:
                return SideProcess(names[is_ref], command, checkout, is_ref=is_ref)

            self._findings = compare_versions(
                open_side,
                tests,
                pairs=pairs,
                seconds=options.against_seconds,
                ref=self._ref,
                say=lambda text: say(config, text),
            )
        self._judged = judge_findings(self._findings, self._rule)

    def _report(self, item: pytest.Item) -> None:
        """Send pytest the three reports of a test that ran in other processes."""
        outcome, text = self._outcome(item.nodeid)
        longrepr: object = None if outcome == "passed" else text
        if outcome == "skipped":
            longrepr = (str(item.path), (item.location[1] or 0) + 1, f"Skipped: {text}")
        item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
        for when in ("setup", "call", "teardown"):
            is_call = when == "call"
            item.ihook.pytest_runtest_logreport(
                report=pytest.TestReport(
                    item.nodeid,
                    item.location,
                    dict.fromkeys(item.keywords, 1),
                    outcome if is_call else "passed",  # type: ignore[arg-type]
                    longrepr if is_call else None,  # type: ignore[arg-type]
                    when,
                )
            )
        item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)

    def _outcome(self, test: str) -> tuple[str, str]:
        """Return a test's outcome and its text."""
        findings = self._findings
        readings = [judged for judged in self._judged if judged.test == test]
        if test in findings.failed:
            return "failed", findings.failed[test]
        if failures := [line for judged in readings for line in table.failures(judged, self._ref)]:
            return "failed", "\n".join(failures)
        if test in findings.skipped:
            return "skipped", findings.skipped[test].removeprefix("Skipped: ")
        if test in findings.not_compared or not readings:
            return self._undecided(f"not compared: {findings.not_compared.get(test, 'it took no reading')}")
        if undecided := [judged for judged in readings if judged.invalid or judged.call is Call.INCONCLUSIVE]:
            return self._undecided("; ".join(table.sentence(judged, self._ref) for judged in undecided))
        return "passed", ""

    def _undecided(self, why: str) -> tuple[str, str]:
        """Return the outcome of a test that neither passed nor failed: skipped, or failed if strict."""
        return ("failed" if self._is_strict else "skipped"), why

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Write the requested outputs; a run that compared nothing is not green."""
        if session.config.option.collectonly:
            return
        if not self._judged and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.NO_TESTS_COLLECTED
        results = self._results()
        for written in write_outputs(self._ledger, results, self._ref):
            if written.is_failed:
                session.exitstatus = pytest.ExitCode.TESTS_FAILED
            self._closing.append((written.text, "red" if written.is_failed else ""))
        self._annotations = annotations(self._ledger, results)
        if self._ledger.options.explain:
            self._closing += terminal.explained(results)
        # These come from an ini file; on the command line they are an error.
        self._closing += [(text, "yellow") for text in self._ledger.options.unwritten]

    def _results(self) -> list[Result]:
        """Return the results of all tests, including those that failed by themselves."""
        failed = self._findings.failed
        compared = table.as_results(self._judged, self._rule)
        results = [result for result in compared if result.test not in failed]
        return results + [Result(test, Expectation(), (), (), error=text) for test, text in failed.items()]

    def pytest_terminal_summary(self, terminalreporter: "pytest.TerminalReporter") -> None:
        """Print the table and the lines after it."""
        lines = table.table(self._judged, self._findings, self._ref, terminalreporter._tw.fullwidth)
        write_section(terminalreporter, f"performance against {self._ref}", lines + self._closing)
        for command in self._annotations:
            terminalreporter.write_line(command)
