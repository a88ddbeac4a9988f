"""Declare the options and their ini twins; loaded in every pytest run, so it imports next to nothing."""

from typing import Any, NamedTuple

import pytest


class Option(NamedTuple):
    """One option and its ini twin."""

    flag: str
    help: str
    metavar: str | None = None  # None: a flag without a value
    default: Any = None
    writes: bool = False  # whether it writes files: not passed to other processes of the run
    conflict: str = ""  # why it cannot be combined with --against

    @property
    def ini(self) -> str:
        """Return the ini option's name: the flag's words with underscores."""
        return self.flag.removeprefix("--").replace("-", "_")


OPTIONS = (
    Option(
        "--perf",
        "run performance tests (tests with the perf marker or fixture); without it they are skipped",
    ),
    Option(
        "--save-baseline",
        "measure, judge, and store the readings as the new baselines if nothing failed; implies --perf",
        writes=True,
        conflict="a baseline is measured for longer, and on this version only",
    ),
    Option(
        "--perf-device",
        "device: auto (CUDA if available, else CPU), cpu, cuda, cuda:N, or a modelled GPU: model:CARD, "
        "several of them: model:4xCARD, model:4xCARD@nvlink, model:4xCARD@pcie",
        "NAME",
        "auto",
    ),
    Option("--baseline-dir", "where baselines are stored (default: baselines)", "DIR", "baselines"),
    Option("--perf-strict", "fail tests that have no baseline for this machine"),
    Option("--perf-json", "write all readings in pytest-benchmark's JSON shape", "PATH", writes=True),
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
        "what to do with a test whose measurement is invalid (throttled, shared or lost device, clocks "
        "different from the baseline's): fail, skip or warn (default: fail)",
        "ACTION",
    ),
    Option(
        "--perf-cooldown",
        "pause before an invalid measurement is repeated once (default: 10 s)",
        "TIME",
    ),
    Option(
        "--perf-sessions",
        "how many sessions --save-baseline measures, each further one in a fresh process; from 5 on, limits "
        "follow from their spread (default: 5)",
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
        "probability of any false alarm in a whole run, distributed over its tests (default: 1 %%)",
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
        "how long ranks wait for each other before all of them stop (default: 60 s)",
        "TIME",
        "60 s",
    ),
    Option(
        "--perf-history",
        "append every reading to this file of JSON lines",
        "PATH",
        writes=True,
        conflict="a history needs readings measured for as long as its others",
    ),
    Option(
        "--perf-explain",
        "show for every test, passed or not, how its step's time is spent, the likely cause and what to try",
    ),
    Option("--perf-html", "write the report page, one file that needs no network", "PATH", writes=True),
    Option(
        "--perf-export",
        "write all machine-readable files into a folder: readings, files for dashboards, a summary",
        "DIR",
        writes=True,
    ),
    Option(
        "--perf-patch",
        "with --save-baseline: write the new baselines as a patch for git apply, and keep the stored ones",
        "PATH",
        writes=True,
        conflict="there are no new baselines to write",
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
    # With a prefix: another plugin's --perf-json must not share our value.
    return f"perfsuite_{option.ini}"


def is_enabled(config: pytest.Config) -> bool:
    """Return whether performance tests run; cheap enough for every pytest run."""
    return any(given(config, name) or config.getini(name) for name in ("perf", "save_baseline", "against"))


def given(config: pytest.Config, name: str) -> Any:
    """Return an option's value from the command line, None if it is not given there."""
    return getattr(config.option, f"perfsuite_{name}", None)


def early(config: pytest.Config, name: str) -> Any:
    """Return what the command line or else the ini file says, before conftest files are loaded."""
    said = getattr(config.known_args_namespace, f"perfsuite_{name}", None)
    return config.getini(name) if said is None else said


def names_a_card(config: pytest.Config) -> bool:
    """Tell whether performance tests run on a device with a card's name, as `emulated:a10`; cheap."""
    is_on = any(early(config, name) for name in ("perf", "save_baseline", "against"))
    return is_on and ":" in str(early(config, "perf_device") or "")
