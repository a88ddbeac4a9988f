"""What a measuring run gathers, and what becomes of it at the end: JSON, baselines, the table."""

import shlex
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from perfsuite.environment import Environment
from perfsuite.judge.verdicts import is_suspicion
from perfsuite.plugin import outputs
from perfsuite.plugin.save import Saving
from perfsuite.plugin.settings import Options
from perfsuite.processes.fresh import Command, without_workers
from perfsuite.records import Result
from perfsuite.remember import files as baselines
from perfsuite.remember import history
from perfsuite.report import machine, terminal


@dataclass
class Ledger:
    """All that the tests of one run left behind."""

    config: pytest.Config
    options: Options
    results: dict[str, Result] = field(default_factory=dict)
    params: dict[str, dict[str, object]] = field(default_factory=dict)
    environments: dict[str, Environment] = field(default_factory=dict)  # by device
    collected: set[str] = field(default_factory=set)
    selected: set[str] = field(default_factory=set)  # by workers; elsewhere the session knows
    lines: dict[str, int] = field(default_factory=dict)  # where each test begins
    benchmarked: int = 0

    @property
    def is_measured(self) -> bool:
        """Tell whether anything at all was measured."""
        return self.benchmarked > 0 or any(result.readings for result in self.results.values())

    def is_suspect(self, result: Result) -> bool:
        """Tell whether a test only lies behind its baseline's timing, which fresh processes can confirm."""
        failed = [verdict for verdict in result.verdicts if verdict.outcome.is_failure]
        return self.options.confirm > 0 and bool(failed) and all(map(is_suspicion, failed))

    def shown(self, path: Path) -> str:
        """Return a path as short as it can be said."""
        root = self.config.rootpath
        return str(path.relative_to(root)) if path.is_relative_to(root) else str(path)

    def save_command(self) -> str:
        """Return the command that stores this run's readings."""
        given = without_workers([str(argument) for argument in self.config.invocation_params.args])
        kept = Command.from_given(given, self.config.invocation_params.dir).arguments
        return shlex.join(["pytest", "--save-baseline", *kept])


class Ending:
    """The hooks at the end of a measuring run."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._options = ledger.options
        self._stored: set[str] = set()  # tests whose baseline this run has stored
        self._excused: dict[str, str] = {}  # tests that were expected to fail, and why
        self._told: list[terminal.Line] = []
        self._annotations: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note tests that failed as expected: their figures are bad, and known to be."""
        if report.when == "call" and report.skipped and hasattr(report, "wasxfail"):
            self._excused[report.nodeid] = report.wasxfail or "expected to fail"

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Write JSON and baselines; a run that measured nothing is not green."""
        if session.config.option.collectonly:
            return
        known = self._ledger.results
        for test in self._excused.keys() & known.keys():
            known[test] = replace(known[test], excused=self._excused[test])
        results = list(known.values())
        if self._options.json_path and any(result.readings for result in results):
            self._write_json(results, self._options.json_path, session)
        if self._options.history_path and any(result.readings for result in results):
            self._append_history(results, self._options.history_path, session)
        if self._options.save_baseline:
            saving = Saving(self._ledger, session, self._tell)
            saving.save()
            self._stored = saving.stored
        if any(result.readings for result in results):
            self._write_outputs(results, session)
        self._check_complete(session)
        if not self._ledger.is_measured and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.NO_TESTS_COLLECTED
            self._tell("nothing was measured: no performance test ran, so this run is not green", "red")

    def _tell(self, text: str, colour: str = "") -> None:
        self._told.append((text, colour))

    def _write_json(self, results: list[Result], path: Path, session: pytest.Session) -> None:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(machine.render(results, self._ledger.environments, self._ledger.params), "utf-8")
        except OSError as error:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED
            self._tell(f"--perf-json: {path} was not written: {error.strerror}", "red")
        else:
            self._tell(f"readings written to {self._ledger.shown(path)}")

    def _append_history(self, results: list[Result], path: Path, session: pytest.Session) -> None:
        try:
            count = history.append(path, results, self._ledger.environments)
        except OSError as error:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED
            self._tell(f"--perf-history: {path} was not written: {error.strerror}", "red")
        else:
            noun = "reading" if count == 1 else "readings"
            self._tell(f"{count} {noun} appended to {self._ledger.shown(path)}")

    def _check_complete(self, session: pytest.Session) -> None:
        """Tell every baseline that nothing was held against; under --perf-strict that fails the run."""
        is_strict = self._options.settings({}).strict and not self._options.save_baseline
        selected = self._ledger.selected | {item.nodeid for item in session.items}
        missing = [*self._unmatched(), *self._skipped(selected)]
        missing += [
            f"stored, but not measured by its test: {name}"
            for name in terminal.vanished(list(self._ledger.results.values()))
        ]
        for text in missing:
            self._tell(text, "red" if is_strict else "yellow")
        if missing and is_strict and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED
            self._tell("--perf-strict: a baseline that nothing is held against is a failure", "red")

    def _skipped(self, selected: set[str]) -> list[str]:
        """Return the selected tests that have a baseline here and took no reading."""
        taken = {test for test, result in self._ledger.results.items() if result.readings or result.error}
        return [
            f"stored, but not measured in this run: {test}"
            for key in sorted({environment.key for environment in self._ledger.environments.values()})
            for test in baselines.stored_tests(self._options.baseline_dir, key)
            if test in selected - taken
        ]

    def _write_outputs(self, results: list[Result], session: pytest.Session) -> None:
        ledger, options = self._ledger, self._options
        run = outputs.Run(results, ledger.environments, ledger.params, ledger.lines)
        self._annotations = outputs.annotations(run)
        written = outputs.write_outputs(
            run, html=options.html_path, folder=options.export_dir, shown=ledger.shown
        )
        for one in written:
            if one.is_bad:
                session.exitstatus = pytest.ExitCode.TESTS_FAILED
            if one.told:
                self._tell(one.told, "red" if one.is_bad else "")

    def pytest_terminal_summary(self, terminalreporter: "pytest.TerminalReporter") -> None:
        """Print the table and what should be told after it."""
        results = list(self._ledger.results.values())
        lines = terminal.table(results, terminalreporter._tw.fullwidth, stored=self._stored)
        lines += terminal.closing(results, self._ledger.save_command(), is_saved=bool(self._stored))
        lines += terminal.explained(results) if self._options.explain else []
        lines += self._told
        if lines:
            terminalreporter.write_sep("=", "performance")
        for text, colour in lines:
            terminalreporter.write_line(text, **({colour: True} if colour else {}))
        for command in self._annotations:
            terminalreporter.write_line(command)

    def _unmatched(self) -> list[str]:
        """Tell stored entries that no test matched; silent where the command line named single tests."""
        config, collected = self._ledger.config, self._ledger.collected
        if any("::" in str(argument) for argument in config.invocation_params.args):
            return []
        if getattr(config.option, "lf", False):  # pytest then collects the failed ones alone
            return []
        files = {test.partition("::")[0] for test in collected}
        lines = []
        for key in sorted({environment.key for environment in self._ledger.environments.values()}):
            for test, path in baselines.stored_tests(self._options.baseline_dir, key).items():
                file = test.partition("::")[0]
                is_gone = file in files or not (config.rootpath / file).exists()
                if is_gone and test not in collected:
                    lines.append(f"stored, but there is no such test: {test} ({self._ledger.shown(path)})")
        return lines
