"""Read command line and ini file once into a frozen Options; command line > marker > ini > default."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import pytest

from perfsuite.collect.markers import parse_setting
from perfsuite.errors import PerfsuiteError
from perfsuite.plugin.options import OPTIONS, given
from perfsuite.records import Settings
from perfsuite.remember.schema import MAX_SESSIONS
from perfsuite.units import Unit, parse

# setting → ini name of its option
SETTINGS: Mapping[str, str] = {
    "device": "perf_device",
    "strict": "perf_strict",
    "tolerance": "perf_tolerance",
    "memory_tolerance": "perf_memory_tolerance",
    "min_time": "perf_min_time",
    "max_time": "perf_max_time",
    "on_invalid": "perf_on_invalid",
    "cooldown": "perf_cooldown",
}


@dataclass(frozen=True)
class Options:
    """All options of a run; settings are kept by where they were given, as their precedence differs."""

    perf: bool
    save_baseline: bool
    baseline_dir: Path
    outputs: Mapping[str, Path] = field(default_factory=dict)  # ini name of a writing option → its path
    unwritten: tuple[str, ...] = ()  # messages about outputs that cannot be combined with --against
    sessions: int = 1
    confirm: int = 0
    family_error: float = 0.01
    against: str = ""
    against_seconds: float = 60.0
    rank_seconds: float = 60.0
    explain: bool = False
    lock_seconds: float = 1800.0
    command_line: Mapping[str, object] = field(default_factory=dict)
    ini: Mapping[str, object] = field(default_factory=dict)

    @property
    def patch_path(self) -> Path | None:
        """Return the path of the patch with new baselines, None if they are stored directly."""
        return self.outputs.get("perf_patch")

    def settings(self, marker: Mapping[str, object]) -> Settings:
        """Return one test's settings, given those of its marker."""
        return Settings(**cast("dict[str, Any]", {**self.ini, **marker, **self.command_line}))


def read_options(config: pytest.Config) -> Options:
    """Read all options once, rejecting invalid values."""

    def value(name: str) -> Any:
        from_command_line = given(config, name)
        return config.getini(name) if from_command_line is None else from_command_line

    def path(name: str) -> Path | None:
        # A path typed in a shell is relative to its folder; one in an ini file to the project's root.
        folder = config.invocation_params.dir if given(config, name) else config.rootpath
        return folder / value(name) if value(name) else None

    settings: dict[str, dict[str, object]] = {"command line": {}, "ini": {}}
    for setting, name in SETTINGS.items():
        for source, raw in (("command line", given(config, name)), ("ini", config.getini(name))):
            if raw is None or raw == "":
                continue
            try:
                settings[source][setting] = parse_setting(setting, raw)
            except PerfsuiteError as error:
                option_name = _flag(name) if source == "command line" else f"ini option {name}"
                raise pytest.UsageError(f"perfsuite: {option_name}: {error}") from None
    if given(config, "perf_patch") and not value("save_baseline"):
        raise pytest.UsageError("perfsuite: --perf-patch: there is nothing to write without --save-baseline")
    outputs = {o: file for o in OPTIONS if o.writes and o.metavar and (file := path(o.ini)) is not None}
    conflicting = [option for option in outputs if option.conflict and value("against")]
    return Options(
        perf=True,
        save_baseline=bool(value("save_baseline")),
        baseline_dir=path("baseline_dir") or config.rootpath / "baselines",
        outputs={option.ini: file for option, file in outputs.items() if option not in conflicting},
        unwritten=tuple(
            f"{option.ini}: nothing is written by --against: {option.conflict}" for option in conflicting
        ),
        sessions=_count("perf_sessions", value("perf_sessions"), 1, MAX_SESSIONS),
        confirm=_count("perf_confirm", value("perf_confirm"), 0, MAX_SESSIONS),
        family_error=_share("perf_family_error", value("perf_family_error")),
        against=value("against") or "",
        against_seconds=_figure("against_time", value("against_time"), Unit.SECONDS),
        rank_seconds=_figure("perf_rank_timeout", value("perf_rank_timeout"), Unit.SECONDS),
        explain=bool(value("perf_explain")),
        lock_seconds=_figure("perf_lock_timeout", value("perf_lock_timeout"), Unit.SECONDS),
        command_line=settings["command line"],
        ini=settings["ini"],
    )


def _count(name: str, raw: object, least: int, most: int) -> int:
    text = str(raw).strip()
    if not text.isdecimal() or not least <= int(text[:9]) <= most:
        raise pytest.UsageError(
            f"perfsuite: {_flag(name)}: {raw!r} is not a whole number from {least} to {most}; "
            f"use for example {_flag(name)}=5"
        )
    return int(text)


def _share(name: str, raw: object) -> float:
    share = _figure(name, raw, Unit.FRACTION)
    if not 0 < share < 0.5:
        raise pytest.UsageError(
            f"perfsuite: {_flag(name)}: {raw!r} is not between 0 and 50 %; "
            f'use for example {_flag(name)}="1 %"'
        )
    return share


def _figure(name: str, raw: object, unit: Unit) -> float:
    try:
        return parse(raw, unit)
    except ValueError as error:
        raise pytest.UsageError(f"perfsuite: {_flag(name)}: {error}") from None


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"
