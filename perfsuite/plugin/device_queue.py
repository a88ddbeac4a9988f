"""The pytest hooks that hold a run's devices: from the first test that measures to the end of the session.

Not earlier: a run that selects no performance test, or has minutes of others before the first, keeps nobody
waiting. Not test by test either: the baselines, limits and fresh processes of one run belong together, and
devices that are taken one after the other could make two runs wait for each other for ever.
"""

import shlex
import sys
from collections.abc import Generator, Iterable

import pytest

from perfsuite.devices.cuda.physical import physical_names
from perfsuite.errors import DeviceBusy
from perfsuite.plugin import selection
from perfsuite.plugin.run import PerfRun
from perfsuite.processes.locks import Held, hold

BUSY = "perfsuite_busy"  # what a worker of pytest-xdist tells of a card that was not free in time


class Queueing:
    """Hold every device that the selected tests measure on."""

    def __init__(self, run: PerfRun) -> None:
        self._run = run
        self._config = run.ledger.config
        self._held: Held | None = None

    @pytest.hookimpl(wrapper=True)
    def pytest_runtestloop(self, session: pytest.Session) -> Generator[None, object, object]:
        """Begin at once where both versions of all tests are measured inside the loop."""
        is_broken = session.testsfailed and not session.config.option.continue_on_collection_errors
        if self._run.ledger.options.against and session.items and not is_broken:
            self._begin(session)
        return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        """Begin before the first test that measures; here pytest captures no output yet."""
        if self._held is None and selection.is_measured(item):
            self._begin(item.session)
        return (yield)

    def pytest_unconfigure(self) -> None:
        """Let the devices go: the baselines are stored, the table is printed."""
        if self._held is not None:
            self._held.release()

    def _begin(self, session: pytest.Session) -> None:
        if session.config.option.collectonly:
            return
        try:
            self._held = hold(
                self._names(session.items),
                timeout=self._run.ledger.options.lock_seconds,
                command=shlex.join(["pytest", *map(str, self._config.invocation_params.args)]),
                say=self._say,
            )
        except DeviceBusy as error:
            if hasattr(self._config, "workeroutput"):
                self._config.workeroutput[BUSY] = str(error)  # the process that shares out will say it
                raise session.Interrupted(str(error)) from None
            raise pytest.UsageError(f"perfsuite: {error}") from None

    def _names(self, items: Iterable[pytest.Item]) -> set[str]:
        used = {
            (device.name, selection.accelerators_needed(item) > 1): device
            for item in items
            if selection.is_measured(item)
            for device in (self._run.device_of(item),)
        }
        return {
            name
            for (_, needs_all), device in used.items()
            for name in physical_names(device, needs_all=needs_all)
        }

    def _say(self, text: str) -> None:
        reporter = self._config.pluginmanager.get_plugin("terminalreporter")
        if reporter is not None:
            reporter.ensure_newline()
            reporter.write_line(text)
            reporter.flush()
        elif sys.__stderr__ is not None:  # a worker of pytest-xdist, or -p no:terminal
            print(text, file=sys.__stderr__, flush=True)
