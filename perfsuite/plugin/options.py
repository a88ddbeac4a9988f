"""Declare the options and their ini twins; loaded on every pytest run, so it imports next to nothing."""

from typing import Any, NamedTuple

import pytest


class Option(NamedTuple):
    """One option and its ini twin."""

    flag: str
    help: str
    metavar: str | None = None  # None: a plain flag
    default: Any = None

    @property
    def ini(self) -> str:
        """Return the twin's name: the flag's words with underscores."""
        return self.flag.removeprefix("--").replace("-", "_")


OPTIONS = (
    Option(
        "--perf",
        "run performance tests (tests with the perf marker or fixture); without it they are skipped",
    ),
    Option(
        "--save-baseline",
        "measure, judge, and store the readings as the new baselines if nothing failed; implies --perf",
    ),
    Option(
        "--perf-device",
        "device: auto (CUDA if there is one, else CPU), cpu, cuda, cuda:N, or a modelled GPU: model:CARD, "
        "several of them: model:4xCARD, model:4xCARD@nvlink, model:4xCARD@pcie",
        "NAME",
        "auto",
    ),
    Option("--baseline-dir", "where baselines are stored (default: baselines)", "DIR", "baselines"),
    Option("--perf-strict", "fail tests that have no baseline for this machine"),
    Option("--perf-json", "write all readings in pytest-benchmark's JSON shape", "PATH"),
    Option(
        "--perf-tolerance",
        'how far the speed may fall behind the baseline, such as "5 %%" (default: 5 %% for a baseline of '
        "five sessions, 10 %% for fewer)",
        "SHARE",
    ),
    Option(
        "--perf-memory-tolerance",
        'how far peak memory may grow beyond the baseline, such as "2 %%" (default: by device)',
        "SHARE",
    ),
    Option(
        "--perf-min-time",
        'measure each test at least this long, such as "10 s" (default: 1 s, CUDA 5 s)',
        "TIME",
    ),
    Option(
        "--perf-max-time",
        'stop measuring a test after this long, steady or not, such as "1 min" (default: 10 s)',
        "TIME",
    ),
    Option(
        "--perf-on-invalid",
        "what becomes of a test whose measurement does not count (throttled, shared or lost device, other "
        "clocks than the baseline's): fail, skip or warn (default: fail)",
        "ACTION",
    ),
    Option(
        "--perf-cooldown",
        "rest before a measurement that does not count is repeated once (default: 10 s)",
        "TIME",
    ),
    Option(
        "--perf-sessions",
        "how many fresh processes --save-baseline measures in; from 5 on, limits come from their spread "
        "(default: 5)",
        "N",
        "5",
    ),
    Option(
        "--perf-confirm",
        "how many fresh processes measure a suspicious test again before it fails; 0: fail at once "
        "(default: 5)",
        "N",
        "5",
    ),
    Option(
        "--perf-family-error",
        "chance of one false alarm or more in a whole run, shared out over its tests (default: 1 %%)",
        "SHARE",
        "1 %",
    ),
    Option(
        "--against",
        "compare with a git ref instead of baselines: both versions in turns, in several pairs of processes; "
        "implies --perf",
        "REF",
    ),
    Option("--against-time", "how long --against measures each test (default: 60 s)", "TIME", "60 s"),
    Option(
        "--perf-rank-timeout",
        "how long ranks wait for each other before all of them end (default: 60 s)",
        "TIME",
        "60 s",
    ),
    Option("--perf-history", "append every reading to this file of JSON lines", "PATH"),
    Option(
        "--perf-explain",
        "say of every test, passed or not, where its step's time went, the likely cause and what to try",
    ),
    Option("--perf-html", "write the report page, one file that needs no network", "PATH"),
    Option(
        "--perf-export",
        "write every machine-readable form into a folder: readings, dashboards' files, a summary",
        "DIR",
    ),
    Option(
        "--perf-patch",
        "with --save-baseline: write the new baselines as a patch for git apply, and leave the stored ones",
        "PATH",
    ),
    Option(
        "--perf-lock-timeout",
        "how long to wait while another run measures on the same device; 0: fail at once (default: 30 min)",
        "TIME",
        "30 min",
    ),
)


def add_options(parser: pytest.Parser) -> None:
    """Declare every option and its ini twin."""
    group = parser.getgroup("perfsuite", "performance of trainings (perfsuite)")
    for option in OPTIONS:
        if option.metavar is None:
            group.addoption(
                option.flag, dest=_dest(option), action="store_true", default=None, help=option.help
            )
            parser.addini(option.ini, f"twin of {option.flag}", type="bool", default=False)
        else:
            group.addoption(
                option.flag, dest=_dest(option), metavar=option.metavar, default=None, help=option.help
            )
            parser.addini(option.ini, f"twin of {option.flag}", type="string", default=option.default)


def _dest(option: Option) -> str:
    # A prefix of our own: another plugin's --perf-json must not share our value.
    return f"perfsuite_{option.ini}"


def is_enabled(config: pytest.Config) -> bool:
    """Tell whether performance tests run; cheap enough for every pytest run."""
    return any(given(config, name) or config.getini(name) for name in ("perf", "save_baseline", "against"))


def given(config: pytest.Config, name: str) -> Any:
    """Return what the command line says, None where it says nothing."""
    return getattr(config.option, f"perfsuite_{name}", None)
