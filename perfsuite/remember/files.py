"""Baseline files: their paths, strict reading, and atomic writing."""

import contextlib
import hashlib
import json
import os
import re
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from perfsuite.environment import Environment
from perfsuite.errors import BaselineNotWritten, InvalidBaseline
from perfsuite.records import Baseline, CardMatch, Match, StoredReading
from perfsuite.remember.schema import MAX_BYTES, InvalidDocument, check_baseline, read_json

_MAX_NAME = 120
_UNSAFE = re.compile(r"[^A-Za-z0-9._\[\]=,+-]+")
_TEMPORARY = ".saving-"
_ABANDONED_SECONDS = 600


def path_for(directory: Path, key: str, test: str) -> Path:
    """Return the path of a test's file for a machine key; any test id gets a safe and unique name."""
    file, _, name = test.partition("::")
    parts = [_safe(part, part) for part in file.split("/") if part not in ("", ".", "..")]
    function, mark, parameters = name.partition("[")
    # The :: of a class becomes a dot. In parameters it is replaced like all unsafe characters, and the hash
    # keeps the names different.
    name = f"{function.replace('::', '.')}{mark}{parameters}"
    return directory.joinpath(key, *parts, f"{_safe(name, test)}.json")


def _safe(name: str, whole: str) -> str:
    safe = _UNSAFE.sub("-", name)[:_MAX_NAME].rstrip(".") or "test"
    if safe == name:
        return name
    # Two tests may differ only in what was replaced or cut; the hash keeps their names different.
    return f"{safe}-{hashlib.sha256(whole.encode()).hexdigest()[:8]}"


def load(path: Path, test: str) -> dict[str, Any]:
    """Return a checked document, or raise with what is wrong with the file and what to do."""
    try:
        document = read_json(path)
        check_baseline(document)
        if document["test"] != test:
            raise InvalidDocument(f"it belongs to {document['test']!r}, not to {test!r}")
    except (OSError, ValueError) as error:
        raise InvalidBaseline(
            f"baseline {path} cannot be used: {error}\n"
            "  restore it with git, or delete it and run pytest --save-baseline"
        ) from None
    return dict(document)


def find(directory: Path, test: str, here: Environment) -> Baseline:
    """Return the test's baseline for this machine, or a near one of another machine."""
    exact = path_for(directory, here.key, test)
    if exact.is_file():
        return _own(exact, test, here)
    found = []
    for path in _elsewhere(directory, test, here.key):
        with contextlib.suppress(InvalidBaseline):  # files of other machines gate nothing here
            found.append(_baseline(load(path, test), here))
    gating = [baseline for baseline in found if baseline.is_gating]
    others = [baseline for baseline in gating if baseline.card is CardMatch.OTHER]
    if others:
        return _of_other_cards(others)
    near = [baseline for baseline in found if baseline.match is Match.NEAR]
    return (gating or near[-1:] or [Baseline()])[0]


def _own(path: Path, test: str, here: Environment) -> Baseline:
    baseline = _baseline(load(path, test), here)
    if baseline.is_gating and baseline.card is not CardMatch.OTHER:
        return baseline
    where = baseline.reason or f"on card {baseline.environment.get('device_uuid')} instead of {here.card}"
    raise InvalidBaseline(
        f"baseline {path} cannot be used: it was measured elsewhere ({where}) and moved "
        "here by hand\n  delete it and run pytest --save-baseline"
    )


def _of_other_cards(baselines: Sequence[Baseline]) -> Baseline:
    """Return the baseline of another card, with all that were measured at the same commit.

    Only those differ by their cards alone; of several commits the one with the most cards is taken.
    """
    by_commit: dict[object, list[Baseline]] = {}
    for baseline in baselines:
        by_commit.setdefault(baseline.environment.get("commit"), []).append(baseline)
    most = max(by_commit.values(), key=len)
    return replace(most[0], cards=tuple(baseline.readings for baseline in most))


def _baseline(document: Mapping[str, Any], here: Environment) -> Baseline:
    there = Environment.from_stored(document["environment"])
    match, reason = here.match(there)
    readings = {name: _stored_reading(entry) for name, entry in document["readings"].items()}
    return Baseline(match, reason, readings, document["environment"], here.match_card(there))


def _stored_reading(entry: Mapping[str, Any]) -> StoredReading:
    return StoredReading(
        values={metric: figure["value"] for metric, figure in entry["metrics"].items()},
        sessions=entry.get("sessions", {}),
        conditions=entry.get("conditions", {}),
        places=entry.get("places", {}),
        launched=entry.get("launched", {}),
        shares=entry.get("shares", {}),
        rounds=entry["rounds"],
    )


def _elsewhere(directory: Path, test: str, key: str) -> list[Path]:
    if not directory.is_dir():
        return []
    folders = sorted(entry.name for entry in directory.iterdir() if entry.is_dir() and entry.name != key)
    return [path for folder in folders if (path := path_for(directory, folder, test)).is_file()]


def stored_text(directory: Path, here: Environment) -> str:
    """Return how many baselines there are for this machine, and of which cards if not of this one."""
    own = len(list((directory / here.key).rglob("*.json")))
    if own or not here.card:
        return f"{own} stored"
    folders = [path for path in directory.glob(f"{here.kind_key}_*") if path.is_dir()]
    tests = {path.relative_to(folder) for folder in folders for path in folder.rglob("*.json")}
    return f"{len(tests)} stored, by other cards of this kind" if tests else "0 stored"


def stored_tests(directory: Path, key: str) -> dict[str, Path]:
    """Return the path of every stored test under a key; unreadable files are left to their test."""
    paths = {}
    for path in sorted((directory / key).rglob("*.json")):
        with contextlib.suppress(OSError, ValueError, AttributeError, RecursionError):
            if path.stat().st_size <= MAX_BYTES:
                paths[str(json.loads(path.read_text(encoding="utf-8")).get("test"))] = path
    return paths


def check_writable(directory: Path) -> None:
    """Create the directory and check that files can be written there, before any time is spent measuring."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=directory, prefix=_TEMPORARY):
            pass
    except OSError as error:
        raise BaselineNotWritten(
            f"baselines cannot be written to {directory}: {error.strerror}; "
            "make it writable or name another with --baseline-dir"
        ) from None


def save(path: Path, document: Mapping[str, Any]) -> None:
    """Write a document atomically: at any moment the file is either the old or the new one."""
    try:
        check_baseline(document)  # a document that cannot be read again must not be stored
    except ValueError as error:
        raise BaselineNotWritten(f"baseline {path} was not written: {error}") from None
    text = render(document)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _sweep(path)
        descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=_prefix(path), text=True)
        try:
            with os.fdopen(descriptor, "w", encoding="utf-8", newline="\n") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            os.chmod(temporary, 0o644)  # mkstemp's 0600 would be a surprise in a commit
            os.replace(temporary, path)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
            raise
    except OSError as error:
        raise BaselineNotWritten(f"baseline {path} was not written: {error}") from None


def render(document: Mapping[str, Any]) -> str:
    """Return a document as text: sorted keys, one figure per line, each list of numbers on a single line."""
    lists: list[Any] = []

    def marked(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: marked(entry) for name, entry in value.items()}
        if not isinstance(value, list):
            return value
        lists.append(value)
        return f"\0{len(lists) - 1}\0"  # a control character occurs nowhere else

    text = json.dumps(
        {**document, "readings": marked(document["readings"])},
        indent=1,
        sort_keys=True,
        ensure_ascii=False,
        allow_nan=False,
    )
    for i, numbers in enumerate(lists):
        text = text.replace(f'"\\u0000{i}\\u0000"', json.dumps(numbers, allow_nan=False))
    return f"{text}\n"


def _prefix(path: Path) -> str:
    # Short and unique to the file: with a name of 255 bytes, the temporary name must not get too long.
    return f"{_TEMPORARY}{hashlib.sha256(path.name.encode()).hexdigest()[:8]}-"


def _sweep(path: Path) -> None:
    """Remove leftovers of killed saves of this file, but not files that another save is writing."""
    for leftover in path.parent.glob(f"{_prefix(path)}*"):
        with contextlib.suppress(OSError):
            if time.time() - leftover.stat().st_mtime > _ABANDONED_SECONDS:
                leftover.unlink()
