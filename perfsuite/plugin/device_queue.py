"""The pytest hooks that lock a run's devices, from the first test that measures to the end of the session.

Not earlier: a run that selects no performance test, or runs others for minutes before the first, should make
nobody wait. Not test by test either: the baselines, limits and fresh processes of one run belong together,
and locking devices one after the other could make two runs wait for each other forever.
"""

import shlex
from collections.abc import Generator, Iterable

import pytest

from perfsuite.errors import DeviceBusy
from perfsuite.plugin import selection
from perfsuite.plugin.run import PerfRun
from perfsuite.plugin.screen import say
from perfsuite.processes.locks import DeviceLocks, lock_devices

BUSY = "perfsuite_busy"  # under which a worker of pytest-xdist reports a card that was not free in time


class QueueHooks:
    """Lock every device that the selected tests measure on."""

    def __init__(self, run: PerfRun) -> None:
        self._run = run
        self._config = run.ledger.config
        self._locks: DeviceLocks | None = None

    @pytest.hookimpl(wrapper=True)
    def pytest_runtestloop(self, session: pytest.Session) -> Generator[None, object, object]:
        """Lock before the loop with --against, which measures all tests inside of it."""
        is_broken = session.testsfailed and not session.config.option.continue_on_collection_errors
        if self._run.ledger.options.against and session.items and not is_broken:
            self._lock(session)
        return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        """Lock before the first test that measures; pytest does not capture output yet."""
        if self._locks is None and selection.is_measured(item):
            self._lock(item.session)
        return (yield)

    def pytest_unconfigure(self) -> None:
        """Release the devices: by now the baselines are stored and the table is printed."""
        if self._locks is not None:
            self._locks.release()

    def _lock(self, session: pytest.Session) -> None:
        if session.config.option.collectonly:
            return
        try:
            self._locks = lock_devices(
                self._names(session.items),
                timeout=self._run.ledger.options.lock_seconds,
                command=shlex.join(["pytest", *map(str, self._config.invocation_params.args)]),
                say=lambda text: say(self._config, text),
            )
        except DeviceBusy as error:
            if hasattr(self._config, "workeroutput"):
                self._config.workeroutput[BUSY] = str(error)  # the controller of pytest-xdist reports it
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
            name for (_, needs_all), device in used.items() for name in device.lock_names(needs_all=needs_all)
        }
