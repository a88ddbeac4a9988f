"""The pytest hooks of one side of --against: run each test when told to, and inside it block by block."""

import os
import shutil
import socket
import sys
from collections.abc import Generator, Mapping
from pathlib import Path
from typing import Any

import pytest

from perfsuite.errors import SessionFailed
from perfsuite.measure.blocks import Block
from perfsuite.measure.step import quiet_garbage
from perfsuite.metrics import METRICS
from perfsuite.plugin import selection
from perfsuite.processes.line import Line
from perfsuite.records import Reading


class Arm:
    """One version under test; it does nothing unless the comparing process says so."""

    def __init__(self, request: Mapping[str, Any]) -> None:
        self._line = Line(socket.socket(fileno=int(request["socket"])))
        self._scratch = str(request["scratch"])
        self._project = str(request["project"])
        self._errors: dict[str, str] = {}
        self._outcome, self._text = "passed", ""

    def _ask(self, **message: Any) -> dict[str, Any]:
        """Ask for the next thing to do; with nobody left to ask, leave nothing behind."""
        try:
            return self._line.ask(**message)
        except SessionFailed:
            shutil.rmtree(self._scratch, ignore_errors=True)
            os._exit(3)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Note which files cannot be imported."""
        if report.failed:
            self._errors[report.nodeid] = report.longreprtext

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Tell which tests there are and keep those that both sides have, in the order that is told."""
        known = {item.nodeid: item for item in items if selection.is_perf_test(item)}
        told = self._ask(event="collected", tests=list(known), errors=self._errors)
        items[:] = [known[test] for test in told["tests"]]

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        """Begin a test when told, and tell how it ended."""
        self._outcome, self._text = "passed", ""
        self._ask(event="test", test=item.nodeid)
        answer = yield
        self._line.send(
            event="end", test=item.nodeid, outcome=self._outcome, text=self._text, foreign=self._foreign()
        )
        return answer

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note the worst that happened to the test."""
        if report.failed or (report.skipped and self._outcome == "passed"):
            self._outcome = report.outcome
            self._text = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longreprtext

    def conduct(self, reading: Reading, block: Block | None, block_seconds: float) -> None:
        """Run blocks of what was just measured until told to go on."""
        told = self._ask(
            event="ready",
            reading=reading.name,
            kind=reading.kind,
            device=reading.device,
            modelled=reading.modelled,
            values={m.name: value for m in METRICS.values() if (value := reading.value(m)) is not None},
            invalid=list(reading.invalid),
            has_blocks=block is not None,
            block_seconds=block_seconds,
        )
        with quiet_garbage():  # once: a collection takes longer than a block
            while told["do"] == "block" and block is not None:
                told = self._ask(event="block", **block(float(told["seconds"]))._asdict())

    def _foreign(self) -> list[str]:
        """Return modules that come from the project itself although another version was checked out."""
        if not self._project:
            return []
        found = []
        for name, module in list(sys.modules.items()):
            file = getattr(module, "__file__", None)
            inside = file is not None and Path(file).is_relative_to(self._project)
            if inside and not Path(str(file)).is_relative_to(sys.prefix):
                found.append(name)
        return sorted(found)[:5]
