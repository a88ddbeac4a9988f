"""Baseline files: where each test's lies, how it is read with suspicion and written whole or not at all."""

import contextlib
import hashlib
import json
import os
import re
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from perfsuite.environment import Environment
from perfsuite.errors import BaselineNotWritten, InvalidBaseline
from perfsuite.records import Match
from perfsuite.remember import json_check
from perfsuite.remember.check import MAX_BYTES, InvalidDocument, check
from perfsuite.remember.schema import baseline_schema

_MAX_NAME = 120
_UNSAFE = re.compile(r"[^A-Za-z0-9._\[\]=,+-]+")
_TEMPORARY = ".saving-"
_ABANDONED_SECONDS = 600


@dataclass(frozen=True)
class Stored:
    """What is known of one test's baseline."""

    match: Match = Match.NONE
    reason: str = ""
    path: Path | None = None
    values: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    conditions: Mapping[str, Mapping[str, float]] = field(default_factory=dict)  # by reading
    places: Mapping[str, Mapping[str, Mapping[str, float]]] = field(default_factory=dict)
    environment: Environment | None = None
    sessions: Mapping[str, Mapping[str, Sequence[float]]] = field(default_factory=dict)  # reading → metric
    readings: Mapping[str, Any] = field(default_factory=dict)  # as stored, for reports


def path_for(directory: Path, key: str, test: str) -> Path:
    """Return the one file of a test on a machine; ids of any length and alphabet get a safe name."""
    file, _, name = test.partition("::")
    parts = [_safe(part, part) for part in file.split("/") if part not in ("", ".", "..")]
    function, mark, parameters = name.partition("[")
    # Classes become dots; in parameters a :: is replaced like all that is unsafe, and told by a hash.
    name = f"{function.replace('::', '.')}{mark}{parameters}"
    return directory.joinpath(key, *parts, f"{_safe(name, test)}.json")


def _safe(name: str, whole: str) -> str:
    safe = _UNSAFE.sub("-", name)[:_MAX_NAME].rstrip(".") or "test"
    if safe == name:
        return name
    # What was replaced or cut may have told two tests apart; the hash still does.
    return f"{safe}-{hashlib.sha256(whole.encode()).hexdigest()[:8]}"


def load(path: Path, test: str) -> dict[str, Any]:
    """Return a checked document, or say what is wrong with the file and what to do."""
    try:
        if path.stat().st_size > MAX_BYTES:
            raise InvalidDocument(
                f"it is {path.stat().st_size:,} bytes long, a baseline has at most {MAX_BYTES:,}"
            )
        document = json.loads(path.read_text(encoding="utf-8"), parse_constant=_refuse_constant)
        check(document)
        json_check.check(document, baseline_schema())
        if document["test"] != test:
            raise InvalidDocument(f"it belongs to {document['test']!r}, not to {test!r}")
    except (OSError, ValueError, RecursionError) as error:
        raise InvalidBaseline(
            f"baseline {path} cannot be used: {error}\n"
            "  restore it with git, or delete it and run pytest --save-baseline"
        ) from None
    return dict(document)


def _refuse_constant(name: str) -> float:
    raise InvalidDocument(f"{name} is not a number a reading can have")


def find(directory: Path, test: str, here: Environment) -> Stored:
    """Return the test's baseline for this machine, or the nearest one of another."""
    exact = path_for(directory, here.key, test)
    candidates = [exact] if exact.is_file() else _elsewhere(directory, test, here.key)
    best = Stored()
    for path in candidates:
        try:
            document = load(path, test)
        except InvalidBaseline:
            if path == exact:
                raise
            continue  # another machine's file gates nothing here
        environment = Environment.from_stored(document["environment"])
        match, reason = here.match(environment)
        if path == exact and match is not Match.EXACT:
            raise InvalidBaseline(
                f"baseline {path} cannot be used: it was taken elsewhere ({reason}) and moved here by hand\n"
                "  delete it and run pytest --save-baseline"
            )
        places = {name: reading.get("places", {}) for name, reading in document["readings"].items()}
        sessions = {name: reading.get("sessions", {}) for name, reading in document["readings"].items()}
        stored = Stored(
            match, reason, path, _values(document), _conditions(document), places, environment, sessions
        )
        stored = replace(stored, readings=document["readings"])
        if match is Match.EXACT:
            return stored
        if match is Match.NEAR:
            best = stored
    return best


def _elsewhere(directory: Path, test: str, key: str) -> list[Path]:
    if not directory.is_dir():
        return []
    folders = sorted(entry.name for entry in directory.iterdir() if entry.is_dir() and entry.name != key)
    return [path for folder in folders if (path := path_for(directory, folder, test)).is_file()]


def _values(document: Mapping[str, Any]) -> dict[str, dict[str, float]]:
    return {
        name: {metric: entry["value"] for metric, entry in reading["metrics"].items()}
        for name, reading in document["readings"].items()
    }


def _conditions(document: Mapping[str, Any]) -> dict[str, dict[str, float]]:
    return {name: reading.get("conditions", {}) for name, reading in document["readings"].items()}


def stored_tests(directory: Path, key: str) -> dict[str, Path]:
    """Return every test that has a file under a key; files that cannot be read are left to their own test."""
    found = {}
    for path in sorted((directory / key).rglob("*.json")):
        with contextlib.suppress(OSError, ValueError, AttributeError, RecursionError):
            if path.stat().st_size <= MAX_BYTES:
                found[str(json.loads(path.read_text(encoding="utf-8")).get("test"))] = path
    return found


def check_writable(directory: Path) -> None:
    """Make the directory and prove that a file can be made in it, before a second is spent measuring."""
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
    """Write a document so that the file is at any moment the old one or the new one, whole."""
    try:
        check(document)
        json_check.check(document, baseline_schema())  # what cannot be read again must not be stored
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
            os.chmod(temporary, 0o644)  # mkstemp's 0600 would surprise whoever commits it
            os.replace(temporary, path)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
            raise
    except OSError as error:
        raise BaselineNotWritten(f"baseline {path} was not written: {error}") from None


def render(document: Mapping[str, Any]) -> str:
    """Return a document as text: sorted, one figure a line, lists of numbers on a single one."""
    lists: list[Any] = []

    def marked(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: marked(entry) for name, entry in value.items()}
        if not isinstance(value, list):
            return value
        lists.append(value)
        return f"\0{len(lists) - 1}\0"  # a control character can occur nowhere else

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
    # Short and its own: a name of 255 bytes must not make the temporary one too long.
    return f"{_TEMPORARY}{hashlib.sha256(path.name.encode()).hexdigest()[:8]}-"


def _sweep(path: Path) -> None:
    """Remove what a killed save of this very file left behind, but not what another one is writing."""
    for left in path.parent.glob(f"{_prefix(path)}*"):
        with contextlib.suppress(OSError):
            if time.time() - left.stat().st_mtime > _ABANDONED_SECONDS:
                left.unlink()
