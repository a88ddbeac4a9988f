"""Write what a run leaves behind: the page, dashboards' files, GitHub's summary and annotations."""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from perfsuite.environment import Environment
from perfsuite.records import Result
from perfsuite.report import exports, github, machine

SUMMARY_VARIABLE = "GITHUB_STEP_SUMMARY"


@dataclass(frozen=True)
class Run:
    """All that outputs are made of."""

    results: Sequence[Result]
    environments: Mapping[str, Environment]
    params: Mapping[str, Mapping[str, object]]
    lines: Mapping[str, int]  # test → the line it begins on


@dataclass(frozen=True)
class Written:
    """One output: what became of it, and whether that is bad."""

    told: str
    is_bad: bool = False


def write_outputs(
    run: Run, *, html: Path | None, folder: Path | None, shown: Callable[[Path], str]
) -> Iterator[Written]:
    """Write every output that was asked for and tell of each."""
    if html is not None:
        from perfsuite.report import page

        when = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
        text = page.render(run.results, run.environments, when)
        yield _written("--perf-html", html, text, f"report page: {shown(html)}")
    if folder is not None:
        for name, text in files(run).items():
            path = folder / name
            yield _written(
                "--perf-export", path, text, "" if name != "readings.json" else f"exported to {shown(folder)}"
            )
    if summary := os.environ.get(SUMMARY_VARIABLE):
        # The runner's file may hold what earlier steps said.
        yield _written(SUMMARY_VARIABLE, Path(summary), github.summary(run.results), "", mode="a")


def annotations(run: Run) -> list[str]:
    """Return the workflow commands for failed tests, none outside of GitHub Actions."""
    return github.annotations(run.results, run.lines) if os.environ.get("GITHUB_ACTIONS") == "true" else []


def files(run: Run) -> dict[str, str]:
    """Return file name → text of every machine-readable form."""
    return {
        "readings.json": machine.render(run.results, run.environments, run.params),
        "bigger-is-better.json": exports.github_action_benchmark(run.results, bigger_is_better=True),
        "smaller-is-better.json": exports.github_action_benchmark(run.results, bigger_is_better=False),
        "bencher.json": exports.bencher(run.results),
        "summary.md": github.summary(run.results),
    }


def _written(asked_by: str, path: Path, text: str, told: str, mode: str = "w") -> Written:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open(mode, encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        return Written(f"{asked_by}: {path} was not written: {error.strerror}", is_bad=True)
    return Written(told)
