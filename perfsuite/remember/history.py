"""The history file: every reading of every run as one JSON line, appended and never rewritten."""

import json
import os
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from math import isfinite
from pathlib import Path
from typing import Any, get_args

from perfsuite.environment import Environment
from perfsuite.errors import HistoryUnusable
from perfsuite.metrics import METRICS, Kind
from perfsuite.records import Reading, Result

SCHEMA = "perfsuite-history/1"
_REQUIRED = ("schema", "time", "commit", "key", "test", "reading", "kind", "metrics")


def append(path: Path, results: Iterable[Result], environments: Mapping[str, Environment]) -> int:
    """Append one line for every reading and return their number."""
    now = datetime.now(UTC).isoformat(timespec="seconds")
    lines = [
        json.dumps(_entry(now, result, reading, environments[reading.device]), sort_keys=True)
        for result in results
        for reading in result.readings
    ]
    text = "".join(f"{line}\n" for line in lines)
    path.parent.mkdir(parents=True, exist_ok=True)
    # A single write in append mode: concurrent runs do not mix their lines.
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(descriptor, text.encode())
    finally:
        os.close(descriptor)
    return len(lines)


def _entry(now: str, result: Result, reading: Reading, environment: Environment) -> dict[str, Any]:
    figures = {metric.name: reading.value(metric) for metric in METRICS.values()}
    return {
        "schema": SCHEMA,
        "time": now,
        "commit": environment.commit,
        "dirty": environment.dirty,
        "key": environment.key,
        "environment": environment.to_stored(),
        "test": result.test,
        "reading": reading.name,
        "kind": reading.kind,
        "modelled": reading.modelled,
        **({"origin": reading.origin} if reading.origin else {}),
        "failed": result.is_failed,
        "invalid": list(result.invalid),
        "metrics": {name: value for name, value in figures.items() if value is not None and isfinite(value)},
    }


def load(path: Path) -> list[dict[str, Any]]:
    """Return all entries in order, or raise with the line that is wrong."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise HistoryUnusable(
            f"{path} cannot be read: {error.strerror}; write one with pytest --perf --perf-history={path}"
        ) from None
    except UnicodeDecodeError as error:
        raise HistoryUnusable(f"{path} is not a history file: {error.reason} at byte {error.start}") from None
    entries = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            entry = json.loads(line)
            _check(entry)
        except (ValueError, TypeError, RecursionError) as error:
            raise HistoryUnusable(f"{path}, line {number}: {error}; remove the line") from None
        entries.append(entry)
    return entries


def _check(entry: Any) -> None:
    missing = [name for name in _REQUIRED if name not in entry]
    if missing or entry["schema"] != SCHEMA or not isinstance(entry["metrics"], dict):
        raise ValueError(f"it is not a reading of {SCHEMA} (missing: {', '.join(missing) or 'nothing'})")
    if entry["kind"] not in get_args(Kind):
        raise ValueError(f"its kind is {entry['kind']!r:.40}, not one of {', '.join(get_args(Kind))}")
    for name, value in entry["metrics"].items():
        if isinstance(value, bool) or not isinstance(value, int | float) or not isfinite(value):
            raise ValueError(f"its {name} is {value!r:.40}, not a number")
