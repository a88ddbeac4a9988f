"""The state that all hooks of a run share: its options, its results, and how to start it again."""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from perfsuite.environment import Environment
from perfsuite.judge.verdicts import is_suspicion
from perfsuite.plugin.fixture import Perf
from perfsuite.plugin.options import OPTIONS
from perfsuite.plugin.settings import Options
from perfsuite.processes.fresh import Command, without_workers
from perfsuite.records import Expectation, Result

if TYPE_CHECKING:
    from perfsuite.processes.ranks import Answer

PERF: "pytest.StashKey[Perf | Answer]" = pytest.StashKey()
EXPECTATION = pytest.StashKey[Expectation]()
WORKER_KEY = "perfsuite"  # under which a worker of pytest-xdist receives how the run was started
# Options that fresh processes receive separately, or that do not apply to a process that only measures.
_NOT_PASSED_ON = ("--perf", "--perf-strict", "--against")


@dataclass
class Ledger:
    """The results of one run's tests, and what is known about them."""

    config: pytest.Config
    options: Options
    results: dict[str, Result] = field(default_factory=dict)
    params: dict[str, dict[str, object]] = field(default_factory=dict)
    environments: dict[str, Environment] = field(default_factory=dict)  # by device
    collected: set[str] = field(default_factory=set)
    selected: set[str] = field(default_factory=set)  # by workers; without them, session.items has them
    lines: dict[str, int] = field(default_factory=dict)  # test → the line it starts on
    benchmarked: int = 0

    @property
    def is_measured(self) -> bool:
        """Return whether anything was measured."""
        return self.benchmarked > 0 or any(result.readings for result in self.results.values())

    def is_suspect(self, result: Result) -> bool:
        """Return whether a test failed only by timings behind its baseline, which fresh processes confirm."""
        failed = [verdict for verdict in result.verdicts if verdict.outcome.is_failure]
        return self.options.confirm > 0 and bool(failed) and all(map(is_suspicion, failed))

    def short_path(self, path: Path) -> str:
        """Return a path relative to the root if it is inside."""
        root = self.config.rootpath
        return str(path.relative_to(root)) if path.is_relative_to(root) else str(path)

    def command(self) -> Command:
        """Return how to start this run again; a worker receives it from the process that started it."""
        received = getattr(self.config, "workerinput", {}).get(WORKER_KEY)
        if received is None:
            return self._command(self.config.invocation_params.args, self.config.invocation_params.dir)
        command = self._command(received["arguments"], received["folder"], with_workers=False)
        return replace(command, arguments=(*command.arguments, "-n", "0"))  # an ini file may set -n too

    def save_command(self) -> str:
        """Return the command that stores this run's readings."""
        params = self.config.invocation_params
        kept = self._command(params.args, params.dir, with_workers=False).arguments
        return shlex.join(["pytest", "--save-baseline", *kept])

    def _command(
        self, arguments: Sequence[object], folder: Path | str, *, with_workers: bool = True
    ) -> Command:
        """Return the command without options that write: two processes must not write to one place."""
        dropped = [option for option in OPTIONS if option.writes or option.flag in _NOT_PASSED_ON]
        return Command.from_arguments(
            arguments if with_workers else without_workers([str(word) for word in arguments]),
            folder,
            has_cache=self.config.pluginmanager.hasplugin("cacheprovider"),
            left_out=[option.flag for option in dropped if option.metavar is None],
            left_out_with_value=[option.flag for option in dropped if option.metavar is not None],
        )
