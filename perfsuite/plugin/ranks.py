"""The pytest hooks of a rank: run the same tests as the others, fail together, leave with one exit code."""

import os
import pickle
import signal
from collections.abc import Generator, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from perfsuite.errors import PerfsuiteError
from perfsuite.plugin import selection
from perfsuite.plugin.child import Answering
from perfsuite.plugin.run import METER, PerfRun
from perfsuite.processes.ranks import Answer

if TYPE_CHECKING:
    from perfsuite.devices.ranks.group import Ranks

_GRACE_SECONDS = 10.0  # for the others to come out of a collective that a failed rank never joins


class RankRun:
    """Keep a rank in step with the others; only the first one talks."""

    def __init__(self, config: pytest.Config, ranks: "Ranks") -> None:
        self._ranks = ranks
        if not ranks.place.is_first:
            _silence(config)

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Refuse to run different tests on different ranks: one would wait for ever for the other."""
        selected = [[item.nodeid for item in session.items if _runs(item)]]
        everywhere = self._ranks.gather(selected[0])
        for rank, tests in enumerate(everywhere):
            differing = set(tests) ^ set(everywhere[0])
            if differing or tests != everywhere[0]:
                example = f", for instance {min(differing)}" if differing else " in another order"
                raise pytest.UsageError(
                    f"perfsuite: rank {rank} would run other tests than rank 0{example}; select and "
                    "parametrize tests alike on all ranks"
                )

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        """Stop where the first rank stops (-x, --maxfail, Ctrl-C asked of it alone)."""
        answer = yield
        if _runs(item):
            session = item.session
            stops = self._ranks.first(str(session.shouldfail or session.shouldstop or ""), is_long=True)
            if stops and not self._ranks.place.is_first:
                session.shouldstop = stops
        return answer

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> Iterator[None]:
        """Begin the test together: a fixture that failed anywhere fails it everywhere."""
        if _runs(item):
            self._ranks.gather(None, is_long=True)  # one rank of each machine may queue for its devices
        yield from self._together(item, "setting up")

    @pytest.hookimpl(wrapper=True, trylast=True)  # inside the judging: what is judged is the same everywhere
    def pytest_runtest_call(self, item: pytest.Item) -> Iterator[None]:
        """End the test together."""
        yield from self._together(item, "running")

    def _together(self, item: pytest.Item, doing: str) -> Iterator[None]:
        failure, mine = "", None
        try:
            yield
        except (KeyboardInterrupt, pytest.skip.Exception):
            raise  # a skip is decided by what all ranks share; where it is not, the others stop waiting
        except BaseException as error:  # noqa: BLE001  whatever it is, the others must hear of it
            mine = error
            failure = _traceback(item, error)
        if not _runs(item):
            if mine is not None:
                raise mine
            return
        failed = self._ranks.meet(f"{doing} {item.nodeid}", failure, _GRACE_SECONDS)
        if not failed:
            return
        if mine is not None and failed[0][0] == self._ranks.rank:
            raise mine
        texts = "\n\n".join(f"rank {rank} failed:\n{text}" for rank, text in failed)
        pytest.fail(texts, pytrace=False)

    @pytest.hookimpl(wrapper=True, tryfirst=True)  # around everything else: the exit code is settled then
    def pytest_sessionfinish(self, session: pytest.Session) -> Generator[None, object, object]:
        """Wait until the first rank has judged and stored, and take its exit code."""
        answer = yield
        # torchrun ends the others as soon as one rank has left with an error; they leave by themselves.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        try:
            session.exitstatus = self._ranks.first(int(session.exitstatus), is_long=True)
        except PerfsuiteError:
            session.exitstatus = pytest.ExitCode.INTERNAL_ERROR
        return answer

    def pytest_unconfigure(self) -> None:
        """Leave the others."""
        self._ranks.leave()


class RankAnswering(Answering):
    """Run the one test that was asked for; the first rank writes down what all of them found."""

    def __init__(self, run: PerfRun, request: Mapping[str, Any]) -> None:
        super().__init__(run.ledger, request)
        self._run = run
        self._found = Answer()

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_teardown(self, item: pytest.Item) -> None:
        """Take the readings with the limits of their calls."""
        if METER in item.stash:
            environment = self._run.environment(self._run.device)
            self._found = replace(self._found, kept=list(item.stash[METER].kept), environment=environment)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Take what went wrong."""
        if report.failed:
            self._found = replace(self._found, failure=report.longreprtext)
        elif report.skipped:
            self._found = replace(self._found, skipped=str(report.longrepr[2]).removeprefix("Skipped: "))  # type: ignore[index]

    def pytest_sessionfinish(self) -> None:
        """Write the answer."""
        if self._run.together.rank == 0:
            self._answer.write_bytes(pickle.dumps(self._found))


def _runs(item: pytest.Item) -> bool:
    """Tell whether a test is run by all ranks; any other is skipped on all of them."""
    return selection.is_ranked(item) and item.get_closest_marker("skip") is None


def _traceback(item: pytest.Item, error: BaseException) -> str:
    return str(item.repr_failure(pytest.ExceptionInfo.from_exception(error)))


def _silence(config: pytest.Config) -> None:
    """Let only the first rank write to the terminal; a rank's own failure is carried to it."""
    writer = config.get_terminal_writer()
    writer._file = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115  open as long as pytest writes
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    if reporter is not None:
        reporter._tw._file = writer._file
