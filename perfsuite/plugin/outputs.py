"""Write a run's output files, one row for each option that writes, and GitHub's summary and annotations."""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from perfsuite.environment import Environment
from perfsuite.plugin.ledger import Ledger
from perfsuite.records import Result
from perfsuite.remember import history
from perfsuite.report import github, machine

_SUMMARY_VARIABLE = "GITHUB_STEP_SUMMARY"


@dataclass(frozen=True)
class Run:
    """The data that outputs are made from."""

    results: Sequence[Result]
    environments: Mapping[str, Environment]  # by device
    params: Mapping[str, Mapping[str, object]]  # by test
    lines: Mapping[str, int]  # test → the line it starts on
    against: str = ""  # the version it was compared with, instead of baselines


@dataclass(frozen=True)
class Written:
    """The message about one output, and whether writing it failed."""

    text: str
    is_failed: bool = False


def _page(run: Run, path: Path, shown: str) -> str:
    from perfsuite.report import page

    when = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    _write(path, page.render(run.results, run.environments, when, run.against))
    return f"report page: {shown}"


def _readings(run: Run, path: Path, shown: str) -> str:
    _write(path, machine.render(run.results, run.environments, run.params))
    return f"readings written to {shown}"


def _history(run: Run, path: Path, shown: str) -> str:
    count = history.append(path, run.results, run.environments)
    return f"{count} {'reading' if count == 1 else 'readings'} appended to {shown}"


def _export(run: Run, folder: Path, shown: str) -> str:
    files = {
        "readings.json": machine.render(run.results, run.environments, run.params),
        "bigger-is-better.json": machine.github_action_benchmark(run.results, bigger_is_better=True),
        "smaller-is-better.json": machine.github_action_benchmark(run.results, bigger_is_better=False),
        "bencher.json": machine.bencher(run.results),
        "summary.md": github.summary(run.results, run.against),
    }
    for name, text in files.items():
        _write(folder / name, text)
    return f"exported to {shown}"


# ini name of the option → its writer: (run, path, path as shown to users) → message
OUTPUTS: Mapping[str, Callable[[Run, Path, str], str]] = {
    "perf_json": _readings,
    "perf_history": _history,
    "perf_html": _page,
    "perf_export": _export,
}


def write_outputs(ledger: Ledger, results: Sequence[Result], against: str = "") -> Iterator[Written]:
    """Write every requested output and yield a message for each; nothing if there is no reading."""
    if not any(result.readings for result in results):
        return
    run = Run(results, ledger.environments, ledger.params, ledger.lines, against)
    for name, path in ledger.options.outputs.items():
        if name not in OUTPUTS:
            continue  # --perf-patch: written where baselines are saved
        try:
            yield Written(OUTPUTS[name](run, path, ledger.short_path(path)))
        except OSError as error:
            flag = f"--{name.replace('_', '-')}"
            yield Written(f"{flag}: {path} was not written: {error.strerror}", is_failed=True)
    if summary := os.environ.get(_SUMMARY_VARIABLE):
        try:
            # The runner's file may contain the summaries of earlier steps.
            _write(Path(summary), github.summary(results, against), mode="a")
        except OSError as error:
            text = f"{_SUMMARY_VARIABLE}: {summary} was not written: {error.strerror}"
            yield Written(text, is_failed=True)


def annotations(ledger: Ledger, results: Sequence[Result]) -> list[str]:
    """Return the workflow commands for failed tests; none outside of GitHub Actions."""
    if os.environ.get("GITHUB_ACTIONS") != "true" or not any(result.readings for result in results):
        return []
    return github.annotations(results, ledger.lines)


def _write(path: Path, text: str, mode: str = "w") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open(mode, encoding="utf-8") as file:
        file.write(text)
