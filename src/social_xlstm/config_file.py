"""Read a training's configuration from YAML and overrides, refuse what it does not know, write it back.

Scalars arrive as the text the user wrote, and the field they are meant for decides what they are: a
detector id `0012` stays text, `1e-3` is a number, `no` is false only where a yes or no is expected.
"""

import dataclasses
import difflib
import math
import re
import types
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import yaml

from social_xlstm.config import Config, problems_of, value_at
from social_xlstm.errors import InputError

Tree = str | list[Any] | dict[str, Any]

_YES = ("true", "yes", "on")
_NO = ("false", "no", "off")
_NOTHING = ("", "~", "null")
_INFINITY = re.compile(r"([+-]?)\.?inf(inity)?", re.IGNORECASE)
_UNPRINTABLE = re.compile(r"[\x00-\x1f\x7f\ud800-\udfff]")


def load(path: str | Path | None = None, overrides: Sequence[str] = ()) -> Config:
    """Read a configuration file, or the shipped default where none is named, and apply the overrides."""
    if path is None:
        text = resources.files("social_xlstm").joinpath("default.yaml").read_text(encoding="utf-8")
        return parse(text, overrides, origin="the shipped default configuration")
    try:
        text = Path(path).read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise InputError(f"{path}: is not UTF-8 text; a configuration is a YAML file") from None
    except (OSError, ValueError) as error:  # ValueError: a NUL character inside the name
        reason = getattr(error, "strerror", None) or error
        raise InputError(f"{path}: cannot be read ({reason}); name an existing YAML file") from None
    return parse(text, overrides, origin=str(path))


def parse(text: str, overrides: Sequence[str] = (), origin: str = "configuration") -> Config:
    """Make a Config of YAML text and `a.b=c` overrides, or report all problems at once."""
    tree = _tree(text, origin)
    problems: list[str] = []
    for override in overrides:
        _override(tree, override, problems)
    config: Config = build(Config, tree, problems)
    problems += problems_of(config)
    if problems:
        raise InputError(_all_at_once(origin, problems))
    return config


def dump(config: Config) -> str:
    """Write a configuration as YAML that `parse` reads back as the same record."""
    return yaml.safe_dump(_plain(dataclasses.asdict(config)), sort_keys=False, allow_unicode=True)


def differences(left: Config, right: Config, keys: Iterable[str] | None = None) -> list[str]:
    """List the keys in which two configurations differ, with both values."""
    return [
        f"{key}: {old} → {new}"
        for key in (known_keys(Config) if keys is None else keys)
        if (old := value_at(left, key)) != (new := value_at(right, key))
    ]


class _PlainLoader(yaml.BaseLoader):
    """Read scalars as the text they are, and refuse a key that is written twice."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        """Build a mapping after looking for repeated keys, which YAML readers drop silently."""
        seen = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.value in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"the key {short(key.value)} is written twice", key.start_mark
                )
            seen.add(key.value if isinstance(key, yaml.ScalarNode) else None)
        return super().construct_mapping(node, deep=deep)


def _tree(text: str, origin: str) -> dict[str, Any]:
    """Read YAML into sections, lists and text."""
    try:
        tree = yaml.load(text, Loader=_PlainLoader)
    except yaml.YAMLError as error:
        raise InputError(f"{origin}: is not valid YAML: {_yaml_reason(error)}") from None
    except RecursionError:
        raise InputError(f"{origin}: is nested too deeply; a configuration has three levels") from None
    if tree is None or tree == "":
        return {}
    if not isinstance(tree, dict):
        raise InputError(f"{origin}: holds {short(tree)} where sections such as `data:` are expected")
    return tree


def _yaml_reason(error: yaml.YAMLError) -> str:
    """Format a YAML error as one line with its place."""
    mark = getattr(error, "problem_mark", None)
    reason = getattr(error, "problem", None) or str(error).splitlines()[0]
    return f"{reason} (line {mark.line + 1}, column {mark.column + 1})" if mark else reason


def _override(tree: dict[str, Any], override: str, problems: list[str]) -> None:
    """Put one `a.b=c` into the tree, as if it stood in the file."""
    key, equals, text = override.partition("=")
    names = key.strip().split(".")
    if not equals or not all(names):
        problems.append(f"--set {short(override)}: write it as section.key=value")
        return
    try:
        value = yaml.load(text, Loader=_PlainLoader)
    except (yaml.YAMLError, RecursionError):
        problems.append(f"--set {short(override)}: the value is not valid YAML; quote it")
        return
    section = tree
    for name in names[:-1]:
        inner = section.get(name) or {}
        if not isinstance(inner, dict):
            return  # the file holds a value where a section belongs, and is refused for that
        section[name] = dict(inner)  # a copy: an alias may stand in two places
        section = section[name]
    section[names[-1]] = "" if value is None else value


def _all_at_once(origin: str, problems: list[str]) -> str:
    if len(problems) == 1:
        return f"{origin}: {problems[0]}"
    return "\n  ".join([f"{origin}: {len(problems)} problems", *problems])


def _plain(value: Any) -> Any:
    """Replace tuples by lists, which YAML knows."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    return value


class Unfit(ValueError):
    """A value does not fit its field; the message is what was expected."""


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
    """Describe in words what a field's type accepts."""
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


def known_keys(record: type[Any], where: str = "") -> Iterator[str]:
    """Yield every key a configuration may hold, with dots."""
    for name, hint in get_type_hints(record).items():
        if dataclasses.is_dataclass(hint):
            yield from known_keys(hint, f"{where}{name}.")
        else:
            yield f"{where}{name}"


def unknown_key(place: str, record: type[Any], where: str) -> str:
    """Refuse a key with the nearest known one, looked for beside it first and then everywhere."""
    siblings = list(get_type_hints(record))
    name = place.removeprefix(where)
    near = [f"{where}{match}" for match in difflib.get_close_matches(name, siblings, 1)]
    if not near:
        elsewhere = {key.rpartition(".")[2]: key for key in known_keys(Config)}
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
    """Make text fit a line: printable and short."""
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
