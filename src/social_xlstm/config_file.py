"""Read a training's configuration from YAML and overrides, refuse what it does not know, write it back."""

import dataclasses
from collections.abc import Hashable, Iterable, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

import yaml

from social_xlstm import config_rules, config_schema
from social_xlstm.config import Config
from social_xlstm.errors import InputError


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
    config: Config = config_schema.build(Config, tree, problems)
    problems += config_rules.problems_of(config)
    if problems:
        raise InputError(_all_at_once(origin, problems))
    return config


def dump(config: Config) -> str:
    """Write a configuration as YAML that `parse` reads back as the same record."""
    return yaml.safe_dump(_plain(dataclasses.asdict(config)), sort_keys=False, allow_unicode=True)


def differences(left: Config, right: Config, keys: Iterable[str] | None = None) -> list[str]:
    """Name the keys in which two configurations differ, with both values."""
    return [
        f"{key}: {old} → {new}"
        for key in (config_schema.keys(Config) if keys is None else keys)
        if (old := config_rules.value_at(left, key)) != (new := config_rules.value_at(right, key))
    ]


class _PlainLoader(yaml.BaseLoader):
    """Read scalars as the text they are, and refuse a key that is written twice."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        """Build a mapping after looking for repeated keys, which YAML readers drop in silence."""
        seen = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.value in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"the key {config_schema.short(key.value)} is written twice", key.start_mark
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
        raise InputError(
            f"{origin}: holds {config_schema.short(tree)} where sections such as `data:` are expected"
        )
    return tree


def _yaml_reason(error: yaml.YAMLError) -> str:
    """Put a YAML error into one line with its place."""
    mark = getattr(error, "problem_mark", None)
    reason = getattr(error, "problem", None) or str(error).splitlines()[0]
    return f"{reason} (line {mark.line + 1}, column {mark.column + 1})" if mark else reason


def _override(tree: dict[str, Any], override: str, problems: list[str]) -> None:
    """Put one `a.b=c` into the tree, as if the file had said so."""
    key, equals, text = override.partition("=")
    names = key.strip().split(".")
    if not equals or not all(names):
        problems.append(f"--set {config_schema.short(override)}: write it as section.key=value")
        return
    try:
        value = yaml.load(text, Loader=_PlainLoader)
    except (yaml.YAMLError, RecursionError):
        problems.append(f"--set {config_schema.short(override)}: the value is not valid YAML; quote it")
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
