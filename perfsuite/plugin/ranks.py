"""The pytest hooks of ranks: run the same tests on all, fail together, exit with the same status."""

import os
import pickle
import signal
from collections.abc import Generator, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from perfsuite.errors import PerfsuiteError
from perfsuite.plugin import selection
from perfsuite.plugin.child import ChildHooks
from perfsuite.plugin.ledger import PERF
from perfsuite.plugin.run import PerfRun
from perfsuite.processes.ranks import Answer, run_ranks

if TYPE_CHECKING:
    from perfsuite.devices.ranks.group import Ranks

_GRACE_SECONDS = 10.0  # for the other ranks to leave a collective that a failed rank never joins


class RankedItem(pytest.Item):
    """A multi_gpu test in the process that starts its ranks; only the ranks create its fixtures."""

    def __init__(self, *, original: pytest.Item, run: PerfRun, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.original = original
        self.run = run
        self.own_markers = list(original.own_markers)
        self.keywords.update(original.keywords)
        self.extra_keyword_matches = original.extra_keyword_matches
        for name in ("fixturenames", "_fixtureinfo", "callspec"):
            if hasattr(original, name):
                setattr(self, name, getattr(original, name))

    def runtest(self) -> None:
        """Let the ranks run the test; this process judges their readings."""
        ranks = selection.accelerators_needed(self)
        answer = run_ranks(self.run.ledger.command(), self.nodeid, ranks)
        if answer.skipped:
            pytest.skip(answer.skipped)
        self.run.take(self, answer)
        if answer.failure:
            pytest.fail(answer.failure, pytrace=False)

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException]) -> Any:  # type: ignore[override]
        """Show the ranks' failure, not the traceback of this process."""
        return self.original.repr_failure(excinfo)

    def reportinfo(self) -> tuple[os.PathLike[str] | str, int | None, str]:
        """Return the location of the original test."""
        return self.original.reportinfo()


def for_ranks(item: pytest.Item, run: PerfRun) -> pytest.Item:
    """Return the item, or one that starts its ranks if the test needs several and none are running."""
    runs_here = run.ranks is not None or not selection.is_ranked(item) or run.device_of(item).is_one_process
    if runs_here or item.get_closest_marker("skip") is not None or item.parent is None:
        return item
    if run.is_side:
        item.add_marker(pytest.mark.skip(reason="measured by several processes; --against compares one"))
        return item
    return RankedItem.from_parent(item.parent, name=item.name, original=item, run=run)


class RankHooks:
    """Keep a rank in step with the others; only the first one writes to the terminal."""

    def __init__(self, config: pytest.Config, ranks: "Ranks") -> None:
        self._ranks = ranks
        if not ranks.place.is_first:
            _silence(config)

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Refuse to run different tests on different ranks: they would wait for each other forever."""
        selected = [item.nodeid for item in session.items if _runs(item)]
        tests_by_rank = self._ranks.gather(selected)
        for rank, tests in enumerate(tests_by_rank):
            differing = set(tests) ^ set(tests_by_rank[0])
            if differing or tests != tests_by_rank[0]:
                example = f", for instance {min(differing)}" if differing else " in another order"
                raise pytest.UsageError(
                    f"perfsuite: rank {rank} would run other tests than rank 0{example}; select and "
                    "parametrize tests identically on all ranks"
                )

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        """Stop when the first rank stops (-x, --maxfail, Ctrl-C, which only it receives)."""
        outcome = yield
        if _runs(item):
            session = item.session
            reason = self._ranks.first(str(session.shouldfail or session.shouldstop or ""), is_long=True)
            if reason and not self._ranks.place.is_first:
                session.shouldstop = reason
        return outcome

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> Iterator[None]:
        """Start the test together: a fixture that fails on any rank fails the test on all."""
        if _runs(item):
            self._ranks.gather(None, is_long=True)  # one rank of each machine may wait for its devices
        yield from self._together(item, "setting up")

    @pytest.hookimpl(wrapper=True, trylast=True)  # inside PerfRun's: all ranks judge the same
    def pytest_runtest_call(self, item: pytest.Item) -> Iterator[None]:
        """End the test together."""
        yield from self._together(item, "running")

    def _together(self, item: pytest.Item, doing: str) -> Iterator[None]:
        failure, local_error = "", None
        try:
            yield
        except (KeyboardInterrupt, pytest.skip.Exception):
            raise  # skip conditions are normally the same on all ranks; otherwise the others time out
        except BaseException as error:  # noqa: BLE001  whatever it is, the other ranks must learn of it
            local_error = error
            failure = _traceback(item, error)
        if not _runs(item):
            if local_error is not None:
                raise local_error
            return
        failures = self._ranks.meet(f"{doing} {item.nodeid}", failure, _GRACE_SECONDS)
        if not failures:
            return
        if local_error is not None and failures[0][0] == self._ranks.rank:
            raise local_error
        texts = "\n\n".join(f"rank {rank} failed:\n{text}" for rank, text in failures)
        pytest.fail(texts, pytrace=False)

    @pytest.hookimpl(wrapper=True, tryfirst=True)  # outermost: then the exit status is final
    def pytest_sessionfinish(self, session: pytest.Session) -> Generator[None, object, object]:
        """Wait until the first rank has judged and stored, and take over its exit status."""
        outcome = yield
        # torchrun terminates the others as soon as one rank exits with an error; they exit by themselves.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        try:
            session.exitstatus = self._ranks.first(int(session.exitstatus), is_long=True)
        except PerfsuiteError:
            session.exitstatus = pytest.ExitCode.INTERNAL_ERROR
        return outcome

    def pytest_unconfigure(self) -> None:
        """Leave the group of ranks."""
        self._ranks.leave()


class RankChildHooks(ChildHooks):
    """Run the requested test; the first rank writes the readings of all ranks."""

    def __init__(self, run: PerfRun, request: Mapping[str, Any]) -> None:
        super().__init__(run.ledger, request)
        self._run = run
        self._result = Answer()

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_teardown(self, item: pytest.Item) -> None:
        """Record the readings with the limits of their calls."""
        if PERF in item.stash:
            environment = self._run.environment(self._run.device)
            self._result = replace(self._result, kept=list(item.stash[PERF].kept), environment=environment)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Record a failure or the reason of a skip."""
        if report.failed:
            self._result = replace(self._result, failure=report.longreprtext)
        elif report.skipped:
            reason = str(report.longrepr[2]).removeprefix("Skipped: ")  # type: ignore[index]
            self._result = replace(self._result, skipped=reason)

    def pytest_sessionfinish(self) -> None:
        """Write the answer."""
        if self._run.together.rank == 0:
            self._answer.write_bytes(pickle.dumps(self._result))


def _runs(item: pytest.Item) -> bool:
    """Return whether all ranks run a test; any other is skipped on all of them."""
    return selection.is_ranked(item) and item.get_closest_marker("skip") is None


def _traceback(item: pytest.Item, error: BaseException) -> str:
    return str(item.repr_failure(pytest.ExceptionInfo.from_exception(error)))


def _silence(config: pytest.Config) -> None:
    """Keep a rank from writing to the terminal; the first rank reports the failures of all."""
    writer = config.get_terminal_writer()
    writer._file = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115  open as long as pytest writes
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    if reporter is not None:
        reporter._tw._file = writer._file
