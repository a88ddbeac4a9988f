"""The end of a measuring run: store baselines, write files, report unused baselines, print the table."""

from dataclasses import replace

import pytest

from perfsuite.plugin.ledger import Ledger
from perfsuite.plugin.outputs import annotations, write_outputs
from perfsuite.plugin.save import Saver
from perfsuite.plugin.screen import write_section
from perfsuite.remember import files
from perfsuite.report import terminal


class FinishHooks:
    """The hooks at the end of a measuring run."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._options = ledger.options
        self._stored: set[str] = set()  # tests whose baseline this run has stored
        self._excused: dict[str, str] = {}  # tests that were expected to fail, and why
        self._closing: list[terminal.Line] = []  # printed after the table
        self._annotations: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Record tests that failed as expected: their figures are known to be bad."""
        if report.when == "call" and report.skipped and hasattr(report, "wasxfail"):
            self._excused[report.nodeid] = report.wasxfail or "expected to fail"

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Store baselines and write outputs; a run that measured nothing is not green."""
        if session.config.option.collectonly:
            return
        by_test = self._ledger.results
        for test in self._excused.keys() & by_test.keys():
            by_test[test] = replace(by_test[test], excused=self._excused[test])
        results = list(by_test.values())
        if self._options.save_baseline:
            saver = Saver(self._ledger, session, self._add_line)
            saver.save()
            self._stored = saver.stored
        for written in write_outputs(self._ledger, results):
            if written.is_failed:
                session.exitstatus = pytest.ExitCode.TESTS_FAILED
            self._add_line(written.text, "red" if written.is_failed else "")
        self._annotations = annotations(self._ledger, results)
        self._check_complete(session)
        if not self._ledger.is_measured and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.NO_TESTS_COLLECTED
            self._add_line("nothing was measured: no performance test ran, so this run is not green", "red")

    def _add_line(self, text: str, colour: str = "") -> None:
        self._closing.append((text, colour))

    def _check_complete(self, session: pytest.Session) -> None:
        """Report every baseline that nothing was compared with; with --perf-strict that fails the run."""
        is_strict = self._options.settings({}).strict and not self._options.save_baseline
        missing = self._unused(self._ledger.selected | {item.nodeid for item in session.items})
        for text in missing:
            self._add_line(text, "red" if is_strict else "yellow")
        if missing and is_strict and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED
            self._add_line("--perf-strict: a baseline that nothing is compared with is a failure", "red")

    def _unused(self, selected: set[str]) -> list[str]:
        """Return a line for every baseline of this machine that no reading of this run was compared with."""
        results, collected, config = self._ledger.results, self._ledger.collected, self._ledger.config
        # If single tests were named, or only the failed ones run, pytest collects files in part.
        is_partial = any("::" in str(argument) for argument in config.invocation_params.args)
        is_partial = is_partial or getattr(config.option, "lf", False)
        collected_files = {test.partition("::")[0] for test in collected}
        run_tests = {test for test, result in results.items() if result.readings or result.error}
        no_test, not_run = [], []
        for key in sorted({environment.key for environment in self._ledger.environments.values()}):
            for test, path in files.stored_tests(self._options.baseline_dir, key).items():
                file = test.partition("::")[0]
                is_complete = file in collected_files or not (config.rootpath / file).exists()
                if not is_partial and is_complete and test not in collected:
                    shown = self._ledger.short_path(path)
                    no_test.append(f"stored, but there is no such test: {test} ({shown})")
                elif test in selected - run_tests:
                    not_run.append(f"stored, but not measured in this run: {test}")
        no_reading = [
            f"stored, but not measured by its test: {result.test} ({name})"
            for result in results.values()
            if result.readings and not result.error
            for name in result.expectation.baseline.readings
            if name not in {reading.name for reading in result.readings}
        ]
        return [*no_test, *not_run, *no_reading]

    def pytest_terminal_summary(self, terminalreporter: "pytest.TerminalReporter") -> None:
        """Print the table and the lines after it."""
        results = list(self._ledger.results.values())
        save_command = self._ledger.save_command()
        lines = terminal.table(results, terminalreporter._tw.fullwidth, stored=self._stored)
        lines += terminal.closing(results, save_command, is_saved=bool(self._stored))
        lines += terminal.explained(results) if self._options.explain else []
        lines += self._closing
        write_section(terminalreporter, "performance", lines)
        for command in self._annotations:
            terminalreporter.write_line(command)
