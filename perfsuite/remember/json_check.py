"""Hold a JSON document against a JSON Schema (the part of it that our schemas use) and name what is wrong."""

import json
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from perfsuite.remember.check import shown

Schema = Mapping[str, Any]
_LARGEST = sys.float_info.max  # a whole number of JSON may have any number of digits
_TYPES: Mapping[str, Callable[[Any], bool]] = {
    "object": lambda value: isinstance(value, dict),
    "array": lambda value: isinstance(value, list),
    "string": lambda value: isinstance(value, str),
    "boolean": lambda value: isinstance(value, bool),
    "null": lambda value: value is None,
    # NaN and infinity are no JSON; a number that is none must not pass as one.
    "number": lambda value: _is_number(value) and -_LARGEST <= value <= _LARGEST,
    "integer": lambda value: _is_number(value) and -_LARGEST <= value <= _LARGEST and value == int(value),
}
MAX_DEPTH = 50


class Refused(ValueError):
    """A document that does not fit, with the place and the reason."""


def read_json(path: Path, most_bytes: int) -> Any:
    """Return a file's JSON; refuse what is too large, no JSON, nested too deep, or has a key twice."""
    size = path.stat().st_size
    if size > most_bytes:
        raise Refused(f"it is {size:,} bytes long, at most {most_bytes:,} are read")
    try:
        return json.loads(
            path.read_text(encoding="utf-8"), parse_constant=_no_constant, object_pairs_hook=_each_once
        )
    except RecursionError:
        raise Refused("it is nested too deep") from None


def _no_constant(name: str) -> float:
    raise Refused(f"{name} is not a number a reading can have")


def _each_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        # Readers disagree on which of two values counts: what one checks, another may not use.
        raise Refused("it has a key twice in one object")
    return found


def check(document: object, schema: Schema) -> None:
    """Raise Refused with the first thing that does not fit."""
    for problem in problems(document, schema):
        raise Refused(problem)


def problems(value: Any, schema: Schema | bool, where: str = "the document", depth: int = 0) -> Iterator[str]:
    """Yield what is wrong, with the path to it."""
    if schema is True:
        return
    if schema is False:
        yield f"{where} is not expected"
        return
    if depth > MAX_DEPTH:
        yield f"{where} is nested too deep"
        return
    if "type" in schema and not _is_type(value, schema["type"]):
        yield f"{where} is {shown(value)}, not {_expected(schema['type'])}"
        return
    if "const" in schema and not _same(value, schema["const"]):
        yield f"{where} is {shown(value)}, not {schema['const']!r}"
    if "enum" in schema and not any(_same(value, known) for known in schema["enum"]):
        yield f"{where} is {shown(value)}, not one of {', '.join(map(repr, schema['enum']))}"
    if _is_number(value):
        yield from _number_problems(value, schema, where)
    elif isinstance(value, str):
        yield from _size_problems(len(value), schema, where, "Length", "characters")
    elif isinstance(value, list):
        yield from _size_problems(len(value), schema, where, "Items", "entries")
        for i, entry in enumerate(value):
            yield from problems(entry, schema.get("items", True), f"{where}[{i}]", depth + 1)
    elif isinstance(value, dict):
        yield from _object_problems(value, schema, where, depth)


def _object_problems(value: dict[str, Any], schema: Schema, where: str, depth: int) -> Iterator[str]:
    yield from _size_problems(len(value), schema, where, "Properties", "entries")
    missing = [name for name in schema.get("required", ()) if name not in value]
    if missing:
        yield f"{where} lacks {', '.join(missing)}"
    known, others = schema.get("properties", {}), schema.get("additionalProperties", True)
    for name, entry in value.items():
        inside = f"{where}.{name[:60]}" if where != "the document" else name[:60]
        yield from problems(name, schema.get("propertyNames", True), f"the name {name[:60]!r}", depth + 1)
        yield from problems(entry, known.get(name, others), inside, depth + 1)


def _number_problems(value: float, schema: Schema, where: str) -> Iterator[str]:
    if "minimum" in schema and value < schema["minimum"]:
        yield f"{where} is {value!r}, below {schema['minimum']!r}"
    if "maximum" in schema and value > schema["maximum"]:
        yield f"{where} is {value!r}, above {schema['maximum']!r}"


def _size_problems(size: int, schema: Schema, where: str, word: str, unit: str) -> Iterator[str]:
    if size < schema.get(f"min{word}", 0):
        yield f"{where} has {size} {unit}, at least {schema[f'min{word}']} are needed"
    if size > schema.get(f"max{word}", size):
        yield f"{where} has {size:,} {unit}, at most {schema[f'max{word}']:,} are possible"


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_type(value: Any, wanted: str | list[str]) -> bool:
    return any(_TYPES[name](value) for name in ([wanted] if isinstance(wanted, str) else wanted))


def _same(one: Any, other: Any) -> bool:
    # True is 1 to Python, and not to JSON.
    return bool(one == other and isinstance(one, bool) == isinstance(other, bool))


def _expected(wanted: str | list[str]) -> str:
    return wanted if isinstance(wanted, str) else " or ".join(wanted)
