"""Find the plugin that also declares one of our options; pytest only reports that there is one."""

import contextlib
from typing import Any

import pytest

from perfsuite.plugin.options import OPTIONS


class _Recorder:
    """A stand-in for pytest's parser that records which options a plugin declares."""

    def __init__(self) -> None:
        self.names: set[str] = set()

    def addoption(self, *names: str, **_: Any) -> None:
        self.names.update(names)

    _addoption = addoption

    def getgroup(self, *_: Any, **__: Any) -> "_Recorder":
        return self

    def addini(self, *_: Any, **__: Any) -> None:
        """Ignore ini options: they do not collide on the command line."""


def conflict(pluginmanager: pytest.PytestPluginManager, error: Exception) -> Exception:
    """Return the error to raise: one that names the other plugin, or the original if it is not about ours."""
    ours = {option.flag for option in OPTIONS}
    if not any(flag in str(error) or flag.strip("-") in str(error) for flag in ours):
        return error
    for plugin in pluginmanager.get_plugins():
        duplicates = _declared(plugin) & ours
        if duplicates:
            flags, who = ", ".join(sorted(duplicates)), _name(pluginmanager, plugin)
            return pytest.UsageError(
                f"perfsuite: {flags} is also declared by {who}. Rename it there, "
                "or run without perfsuite: pytest -p no:perfsuite"
            )
    return error


def check_duplicates(parser: pytest.Parser, pluginmanager: pytest.PytestPluginManager) -> None:
    """Raise if an option of ours is declared twice: pytest 8 notices only when parsing, and names nobody."""
    groups = [getattr(parser, "_anonymous", None), *getattr(parser, "_groups", ())]
    names = [name for group in groups if group for option in group.options for name in option.names()]
    duplicates = [option.flag for option in OPTIONS if names.count(option.flag) > 1]
    if duplicates:
        raise conflict(pluginmanager, ValueError(f"{duplicates[0]} is declared twice"))


def _declared(plugin: object) -> set[str]:
    declare = getattr(plugin, "pytest_addoption", None)
    name = getattr(plugin, "__name__", "")
    if declare is None or name.startswith(("perfsuite", "_pytest")):
        return set()
    recorder = _Recorder()
    parameters = declare.__code__.co_varnames[: declare.__code__.co_argcount]
    arguments = {"parser": recorder, "pluginmanager": None}
    # It may use more of the parser than the stand-in has; what it declared before that still counts.
    with contextlib.suppress(AttributeError, TypeError):
        declare(**{name: value for name, value in arguments.items() if name in parameters})
    return recorder.names


def _name(pluginmanager: pytest.PytestPluginManager, plugin: object) -> str:
    path = getattr(plugin, "__file__", None)
    return str(path) if path else f"the plugin {pluginmanager.get_name(plugin)!r}"
