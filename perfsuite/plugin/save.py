"""Store a run's readings as baselines or as a patch: judged first, and every refusal with its reason."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from perfsuite.collect.limits import SecondStage
from perfsuite.environment import Environment
from perfsuite.errors import PerfsuiteError
from perfsuite.plugin.gathering import Gathered, gather
from perfsuite.processes.fresh import Command
from perfsuite.records import Result
from perfsuite.remember import files as baselines
from perfsuite.remember import patch as patches
from perfsuite.remember.documents import remember

if TYPE_CHECKING:
    from perfsuite.plugin.finish import Ledger

Tell = Callable[[str, str], None]  # text, colour
_NOTHING = "no baseline was stored: it takes a run that measures something and fails nowhere"


class Saving:
    """Save once, at the end of a run."""

    def __init__(self, ledger: "Ledger", session: pytest.Session, tell: Tell) -> None:
        self._ledger = ledger
        self._session = session
        self._tell = tell
        self.stored: set[str] = set()  # tests whose baseline is new

    def save(self) -> None:
        """Measure further sessions where they are wanted, then store what may be stored."""
        # What was expected to fail is no reason to keep the others from being stored, and is none itself.
        results = [result for result in self._ledger.results.values() if not result.excused]
        is_green = self._session.exitstatus == pytest.ExitCode.OK and not any(r.is_failed for r in results)
        gathered = self._gathered(results) if is_green else None
        documents: dict[str, dict[str, Any]] = {}
        if gathered is not None:
            kept = [result for result in results if result.test not in gathered.refused]
            documents = remember(kept, self._ledger.environments, gathered.more)
        if not documents:
            self._tell(_NOTHING, "red")
            if self._ledger.is_measured:  # who asked to save must not take this for a success
                self._fail()
        elif self._ledger.options.patch_path is not None:
            self._patch(documents, self._ledger.options.patch_path)
        else:
            self._store(documents)
            self._conclude(results, gathered.told if gathered else ())

    def _fail(self, status: pytest.ExitCode = pytest.ExitCode.TESTS_FAILED) -> None:
        if self._session.exitstatus == pytest.ExitCode.OK:
            self._session.exitstatus = status

    def _gathered(self, results: list[Result]) -> Gathered | None:
        """Measure the further sessions; None where they cannot be had."""
        config, options = self._ledger.config, self._ledger.options
        reporter = config.pluginmanager.get_plugin("terminalreporter")

        def say(text: str) -> None:
            if reporter is not None:
                reporter.ensure_newline()
                reporter.write_line(text)

        try:
            gathered = gather(
                [result for result in results if result.readings and not result.invalid],
                Command.from_config(config),
                options.sessions,
                SecondStage(options.confirm, options.family_error),
                say,
            )
        except PerfsuiteError as error:
            self._fail()
            self._tell(str(error), "red")
            return None
        except KeyboardInterrupt:
            self._fail(pytest.ExitCode.INTERRUPTED)
            self._tell("stopped before all sessions were measured", "red")
            return None
        for test, why in gathered.refused.items():
            self._fail()
            self._tell(f"not stored: {test}: {why}", "red")
        return gathered

    def _patch(self, documents: dict[str, dict[str, Any]], path: Path) -> None:
        """Write the new baselines as a patch instead of storing them."""
        ledger = self._ledger
        try:
            text = patches.of_documents(documents, ledger.options.baseline_dir, ledger.config.rootpath)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, "utf-8")
        except (PerfsuiteError, OSError) as error:
            self._fail()
            self._tell(f"--perf-patch: {path} was not written: {error}", "red")
        else:
            noun = "baseline" if len(documents) == 1 else "baselines"
            self._tell(f"{len(documents)} new {noun} as a patch: git apply {ledger.shown(path)}", "green")

    def _store(self, documents: Mapping[str, Mapping[str, Any]]) -> None:
        for test, document in documents.items():
            key = Environment.from_stored(document["environment"]).key
            try:
                baselines.save(baselines.path_for(self._ledger.options.baseline_dir, key, test), document)
            except PerfsuiteError as error:
                self._fail()
                self._tell(f"not stored: {test}: {error}", "red")
            else:
                self.stored.add(test)

    def _conclude(self, results: list[Result], told: tuple[str, ...]) -> None:
        invalid = sum(bool(result.invalid) for result in results)
        if invalid:
            self._tell(f"{invalid} not stored: an invalid measurement never becomes a baseline", "yellow")
        if not self.stored:
            return
        noun = "baseline" if len(self.stored) == 1 else "baselines"
        folder = self._ledger.shown(self._ledger.options.baseline_dir)
        self._tell(f"stored {len(self.stored)} {noun} in {folder}; review and commit them", "green")
        for text in told:
            self._tell(f"  {text}", "")
