"""The pytest hooks of `--against=REF`: compare all tests first, then report each as pytest reports tests."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from perfsuite.against import table as against
from perfsuite.against.against import Judged, Rule, judge_findings
from perfsuite.against.decide import Call
from perfsuite.against.pairs import Findings, duel
from perfsuite.devices import Device
from perfsuite.errors import PerfsuiteError
from perfsuite.plugin import selection
from perfsuite.plugin.finish import Ledger
from perfsuite.processes.checkout import checked_out
from perfsuite.processes.fresh import Command
from perfsuite.processes.side import ArmProcess

_PAIR_SECONDS = 7.5  # of measuring; longer in one pair repeats that pair's luck
_LEAST_PAIRS, _MOST_PAIRS = 8, 16


class Against:
    """Run no test here: both versions run in processes of their own, and this one reports."""

    def __init__(self, ledger: Ledger, device: Device) -> None:
        self._ledger = ledger
        self._device = device
        self._ref = ledger.options.against
        self._findings = Findings()
        self._judged: list[Judged] = []

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        """Leave out what measures nothing: there is nothing to compare."""
        others = [item for item in items if not selection.is_perf_test(item)]
        items[:] = [item for item in items if selection.is_perf_test(item)]
        if others:
            config.hook.pytest_deselected(items=others)

    def pytest_report_header(self) -> str:
        """Say what is compared with what."""
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
        self._ledger.benchmarked += any(one.found or one.modelled for one in self._judged)
        return True

    def _compare(self, tests: Sequence[str]) -> None:
        config, options = self._ledger.config, self._ledger.options
        command = Command.from_config(config)
        # Not what another version's ini file says; a test's marker still wins over it.
        device = ("-o", f"perf_device={options.settings({}).device}")
        command = replace(command, arguments=(*command.arguments, *device))
        pairs = min(max(round(options.against_seconds / _PAIR_SECONDS), _LEAST_PAIRS), _MOST_PAIRS)
        with checked_out(self._ref, config.rootpath) as checkout:
            names = {True: self._ref, False: "this version"}

            def open_arm(is_other: bool) -> ArmProcess:
                return ArmProcess(names[is_other], command, checkout, is_other=is_other)

            self._findings = duel(
                open_arm,
                tests,
                pairs=pairs,
                seconds=options.against_seconds,
                ref=self._ref,
                say=self._say,
            )
        tolerance = options.settings({}).tolerance
        rule = Rule(options.family_error, tolerance, self._device.tolerances)
        self._judged = judge_findings(self._findings, rule)

    def _say(self, text: str) -> None:
        reporter = self._ledger.config.pluginmanager.get_plugin("terminalreporter")
        if reporter is not None:
            reporter.ensure_newline()
            reporter.write_line(text)

    def _report(self, item: pytest.Item) -> None:
        """Give pytest the three reports of a test that was run elsewhere."""
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
        """Return what became of a test, and the text for it."""
        found = self._findings
        mine = [one for one in self._judged if one.test == test]
        if test in found.failed:
            return "failed", found.failed[test]
        if worse := [line for one in mine for line in against.failures(one, self._ref)]:
            return "failed", "\n".join(worse)
        if test in found.skipped:
            return "skipped", found.skipped[test].removeprefix("Skipped: ")
        if test in found.apart or not mine:
            return self._undecided(f"not compared: {found.apart.get(test, 'it took no reading')}")
        if open_ := [one for one in mine if one.invalid or one.call is Call.INCONCLUSIVE]:
            return self._undecided("; ".join(against.sentence(one, self._ref) for one in open_))
        return "passed", ""

    def _undecided(self, why: str) -> tuple[str, str]:
        """Report what is neither passed nor failed: skipped, with --perf-strict failed."""
        return ("failed" if self._ledger.options.settings({}).strict else "skipped"), why

    def pytest_terminal_summary(self, terminalreporter: "pytest.TerminalReporter") -> None:
        """Print the table."""
        lines = against.table(self._judged, self._findings, self._ref, terminalreporter._tw.fullwidth)
        if lines:
            terminalreporter.write_sep("=", f"performance against {self._ref}")
        for text, colour in lines:
            terminalreporter.write_line(text, **({colour: True} if colour else {}))

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """A run that compared nothing is not green."""
        if (
            not self._judged
            and session.exitstatus == pytest.ExitCode.OK
            and not session.config.option.collectonly
        ):
            session.exitstatus = pytest.ExitCode.NO_TESTS_COLLECTED
