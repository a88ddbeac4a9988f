"""Read command line and ini once into a frozen Options; command line > marker > ini > default."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import pytest

from perfsuite.collect.limits import parse_setting
from perfsuite.errors import PerfsuiteError
from perfsuite.plugin.options import given
from perfsuite.records import Settings
from perfsuite.remember.check import MAX_SESSIONS
from perfsuite.units import Unit, parse

# setting → ini name of the option that carries it
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
    """What the user asked for, each value with the rank of where it was said."""

    perf: bool
    save_baseline: bool
    baseline_dir: Path
    json_path: Path | None
    sessions: int = 1
    confirm: int = 0
    family_error: float = 0.01
    against: str = ""
    against_seconds: float = 60.0
    rank_seconds: float = 60.0
    history_path: Path | None = None
    explain: bool = False
    html_path: Path | None = None
    export_dir: Path | None = None
    patch_path: Path | None = None
    lock_seconds: float = 1800.0
    command_line: Mapping[str, object] = field(default_factory=dict)
    ini: Mapping[str, object] = field(default_factory=dict)

    def settings(self, marker: Mapping[str, object]) -> Settings:
        """Settle one test's settings."""
        return Settings(**cast("dict[str, Any]", {**self.ini, **marker, **self.command_line}))


def read_options(config: pytest.Config) -> Options:
    """Read all options once, refusing values that cannot be meant."""

    def value(name: str) -> Any:
        said_here = given(config, name)
        return config.getini(name) if said_here is None else said_here

    def path(name: str) -> Path | None:
        # A path typed in a shell is meant from there; one in an ini file from the project's root.
        here = config.invocation_params.dir if given(config, name) else config.rootpath
        return here / value(name) if value(name) else None

    said: dict[str, dict[str, object]] = {"command line": {}, "ini": {}}
    for setting, name in SETTINGS.items():
        for place, raw in (("command line", given(config, name)), ("ini", config.getini(name))):
            if raw is None or raw == "":
                continue
            try:
                said[place][setting] = parse_setting(setting, raw)
            except PerfsuiteError as error:
                where = f"--{name.replace('_', '-')}" if place == "command line" else f"ini option {name}"
                raise pytest.UsageError(f"perfsuite: {where}: {error}") from None
    if given(config, "perf_patch") and not value("save_baseline"):
        raise pytest.UsageError("perfsuite: --perf-patch: there is nothing to write without --save-baseline")
    return Options(
        perf=True,
        save_baseline=bool(value("save_baseline")),
        baseline_dir=path("baseline_dir") or config.rootpath / "baselines",
        json_path=path("perf_json"),
        sessions=_count("perf_sessions", value("perf_sessions"), 1, MAX_SESSIONS),
        confirm=_count("perf_confirm", value("perf_confirm"), 0, MAX_SESSIONS),
        family_error=_share("perf_family_error", value("perf_family_error")),
        against=value("against") or "",
        against_seconds=_figure("against_time", value("against_time"), Unit.SECONDS),
        rank_seconds=_figure("perf_rank_timeout", value("perf_rank_timeout"), Unit.SECONDS),
        history_path=path("perf_history"),
        explain=bool(value("perf_explain")),
        html_path=path("perf_html"),
        export_dir=path("perf_export"),
        patch_path=path("perf_patch"),
        lock_seconds=_figure("perf_lock_timeout", value("perf_lock_timeout"), Unit.SECONDS),
        command_line=said["command line"],
        ini=said["ini"],
    )


def _count(name: str, raw: object, least: int, most: int) -> int:
    text = str(raw).strip()
    if not text.isdecimal() or not least <= int(text[:9]) <= most:
        raise pytest.UsageError(
            f"perfsuite: {_flag(name)}: {raw!r} is no whole number, {least} to {most}; say {_flag(name)}=5"
        )
    return int(text)


def _share(name: str, raw: object) -> float:
    share = _figure(name, raw, Unit.FRACTION)
    if not 0 < share < 0.5:
        raise pytest.UsageError(
            f'perfsuite: {_flag(name)}: {raw!r} is not between 0 and 50 %; say {_flag(name)}="1 %"'
        )
    return share


def _figure(name: str, raw: object, unit: Unit) -> float:
    try:
        return parse(raw, unit)
    except ValueError as error:
        raise pytest.UsageError(f"perfsuite: {_flag(name)}: {error}") from None


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"
