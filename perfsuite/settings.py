"""Read command line and ini once into a frozen Options; command line > marker > ini > default."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import pytest

from perfsuite.collect import parse_setting
from perfsuite.errors import PerfsuiteError
from perfsuite.options import given
from perfsuite.records import Settings

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
    explain: bool = False
    html_path: Path | None = None
    export_dir: Path | None = None
    patch_path: Path | None = None
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
        said_path = value(name)
        return config.invocation_params.dir / said_path if said_path else None

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
    if value("perf_patch") and not value("save_baseline"):
        raise pytest.UsageError("perfsuite: --perf-patch: there is nothing to write without --save-baseline")
    # A path typed in a shell is meant from there; one in an ini file from the project's root.
    here = config.invocation_params.dir if given(config, "baseline_dir") else config.rootpath
    return Options(
        perf=True,
        save_baseline=bool(value("save_baseline")),
        baseline_dir=here / value("baseline_dir"),
        json_path=path("perf_json"),
        explain=bool(value("perf_explain")),
        html_path=path("perf_html"),
        export_dir=path("perf_export"),
        patch_path=path("perf_patch"),
        command_line=said["command line"],
        ini=said["ini"],
    )
