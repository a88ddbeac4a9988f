"""Read command line and ini once into a frozen Options; command line > marker > ini > default."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import pytest

from perfsuite.errors import PerfsuiteError
from perfsuite.records import Settings


@dataclass(frozen=True)
class Option:
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
        "device: auto (CUDA if there is one, else CPU), cpu, cuda, cuda:N, or a modelled GPU: model:CARD",
        "NAME",
        "auto",
    ),
    Option("--baseline-dir", "where baselines are stored (default: baselines)", "DIR", "baselines"),
    Option("--perf-strict", "fail tests that have no baseline for this machine"),
    Option("--perf-json", "write all readings in pytest-benchmark's JSON shape", "PATH"),
    Option(
        "--perf-tolerance",
        'how far samples/s may fall behind the baseline, such as "5 %%" (default: 10 %%)',
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
)

# setting → ini name of the option that carries it
SETTINGS: Mapping[str, str] = {
    "device": "perf_device",
    "strict": "perf_strict",
    "tolerance": "perf_tolerance",
    "memory_tolerance": "perf_memory_tolerance",
    "min_time": "perf_min_time",
    "max_time": "perf_max_time",
}


@dataclass(frozen=True)
class Options:
    """What the user asked for, each value with the rank of where it was said."""

    perf: bool
    save_baseline: bool
    baseline_dir: Path
    json_path: Path | None
    command_line: Mapping[str, object] = field(default_factory=dict)
    ini: Mapping[str, object] = field(default_factory=dict)

    def settings(self, marker: Mapping[str, object]) -> Settings:
        """Settle one test's settings."""
        return Settings(**cast("dict[str, Any]", {**self.ini, **marker, **self.command_line}))


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
    return any(_given(config, name) or config.getini(name) for name in ("perf", "save_baseline"))


def _given(config: pytest.Config, name: str) -> Any:
    return getattr(config.option, f"perfsuite_{name}", None)


def read_options(config: pytest.Config) -> Options:
    """Read all options once, refusing values that cannot be meant."""
    from perfsuite.collect import parse_setting

    def value(name: str) -> Any:
        given = _given(config, name)
        return config.getini(name) if given is None else given

    said: dict[str, dict[str, object]] = {"command line": {}, "ini": {}}
    for setting, name in SETTINGS.items():
        for place, raw in (("command line", _given(config, name)), ("ini", config.getini(name))):
            if raw is None or raw == "":
                continue
            try:
                said[place][setting] = parse_setting(setting, raw)
            except PerfsuiteError as error:
                where = f"--{name.replace('_', '-')}" if place == "command line" else f"ini option {name}"
                raise pytest.UsageError(f"perfsuite: {where}: {error}") from None
    json_path = value("perf_json")
    # A path typed in a shell is meant from there; one in an ini file from the project's root.
    here = config.invocation_params.dir if _given(config, "baseline_dir") else config.rootpath
    return Options(
        perf=True,
        save_baseline=bool(value("save_baseline")),
        baseline_dir=here / value("baseline_dir"),
        json_path=config.invocation_params.dir / json_path if json_path else None,
        command_line=said["command line"],
        ini=said["ini"],
    )
