"""Turn a tree of plain text into the configuration's records, collecting every problem on the way.

Scalars arrive as the text the user wrote, and the field they are meant for decides what they are: a
detector id `0012` stays text, `1e-3` is a number, `no` is false only where a yes or no is asked.
"""

import dataclasses
import difflib
import math
import re
import types
from collections.abc import Iterator, Mapping
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

Tree = str | list[Any] | dict[str, Any]

_YES = ("true", "yes", "on")
_NO = ("false", "no", "off")
_NOTHING = ("", "~", "null")
_INFINITY = re.compile(r"([+-]?)\.?inf(inity)?", re.IGNORECASE)
_UNPRINTABLE = re.compile(r"[\x00-\x1f\x7f\ud800-\udfff]")


class Unfit(ValueError):
    """A value does not fit its field; the text says what was expected."""


def build(record: type[Any], tree: Mapping[str, Any], problems: list[str], where: str = "") -> Any:
    """Make a record from the tree, noting unknown keys and unfit values in problems."""
    hints = get_type_hints(record)
    values: dict[str, Any] = {}
    for key, node in tree.items():
        place = f"{where}{key}"
        if key not in hints:
            problems.append(unknown_key(place, record, where))
        elif dataclasses.is_dataclass(hints[key]):
            if isinstance(node, dict):
                values[key] = build(hints[key], node, problems, f"{place}.")
            elif node not in _NOTHING:
                problems.append(f"{place}: {short(node)} is not a section; write {place}.<key> below it")
        else:
            try:
                values[key] = convert(hints[key], node)
            except Unfit as unfit:
                problems.append(f"{place}: {short(node)} is not {unfit}")
    return record(**values)


def convert(hint: Any, node: Tree) -> Any:
    """Read one value as its field's type, or raise Unfit with what the type expects."""
    origin = get_origin(hint)
    if origin in (Union, types.UnionType):
        return _first_that_fits(get_args(hint), node)
    if origin is tuple:
        if not isinstance(node, list):
            raise Unfit(describe(hint))
        return tuple(convert(get_args(hint)[0], item) for item in node)
    if not isinstance(node, str):
        raise Unfit(describe(hint))
    if origin is Literal:
        return _choice(get_args(hint), node)
    return {int: _whole, float: _number, bool: _yes_or_no, str: _text, type(None): _nothing}[hint](node)


def describe(hint: Any) -> str:
    """Say in words what a field's type accepts."""
    origin = get_origin(hint)
    if origin in (Union, types.UnionType):
        return " or ".join(describe(option) for option in get_args(hint))
    if origin is tuple:
        return f"a list of {describe(get_args(hint)[0])}"
    if origin is Literal:
        choices = get_args(hint)
        return choices[0] if len(choices) == 1 else f"one of {', '.join(choices)}"
    return {int: "a whole number", float: "a number", bool: "true or false", str: "text", type(None): "null"}[
        hint
    ]


def keys(record: type[Any], where: str = "") -> Iterator[str]:
    """Name every key a configuration may hold, with dots."""
    for name, hint in get_type_hints(record).items():
        if dataclasses.is_dataclass(hint):
            yield from keys(hint, f"{where}{name}.")
        else:
            yield f"{where}{name}"


def unknown_key(place: str, record: type[Any], where: str) -> str:
    """Refuse a key with the nearest known one, looked for beside it first and then everywhere."""
    from social_xlstm.config import Config

    siblings = list(get_type_hints(record))
    name = place.removeprefix(where)
    near = [f"{where}{match}" for match in difflib.get_close_matches(name, siblings, 1)]
    if not near:
        elsewhere = {key.rpartition(".")[2]: key for key in keys(Config)}
        near = [elsewhere[match] for match in difflib.get_close_matches(name, elsewhere, 1, 0.8)]
    advice = f"did you mean {near[0]}?" if near else f"known here: {', '.join(siblings)}"
    return f"{_clipped(place)}: unknown key; {advice}"


def short(node: Any) -> str:
    """Show a value in a message, without letting a huge one flood it."""
    if isinstance(node, dict):
        return "a section" if node else "an empty section"
    if isinstance(node, list):
        return f"a list of {len(node)}"
    return f"'{_clipped(str(node))}'"


def _clipped(text: str) -> str:
    """Make text fit for a line: printable and not longer than anyone reads."""
    text = repr(text) if _UNPRINTABLE.search(text) else text
    return f"{text[:60]}…" if len(text) > 60 else text


def _first_that_fits(options: tuple[Any, ...], node: Tree) -> Any:
    """Try «nothing» first, then the options in their order."""
    for option in sorted(options, key=lambda hint: hint is not type(None)):
        try:
            return convert(option, node)
        except Unfit:
            continue
    raise Unfit(" or ".join(describe(option) for option in options))


def _choice(choices: tuple[str, ...], text: str) -> str:
    if text in choices:
        return text
    near = difflib.get_close_matches(text.lower(), choices, 1, 0.4)
    words = choices[0] if len(choices) == 1 else f"one of {', '.join(choices)}"
    raise Unfit(f"{words}; did you mean {near[0]}?" if near else words)


def _whole(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise Unfit("a whole number") from None


def _number(text: str) -> float:
    if match := _INFINITY.fullmatch(text):
        return -math.inf if match.group(1) == "-" else math.inf
    try:
        number = float(text)
    except ValueError:
        raise Unfit("a number") from None
    if math.isnan(number):
        raise Unfit("a number")
    return number


def _yes_or_no(text: str) -> bool:
    if text.lower() in _YES:
        return True
    if text.lower() in _NO:
        return False
    raise Unfit("true or false")


def _text(text: str) -> str:
    if _UNPRINTABLE.search(text):
        raise Unfit("text without control characters")
    return text


def _nothing(text: str) -> None:
    if text.lower() not in _NOTHING:
        raise Unfit("null")
