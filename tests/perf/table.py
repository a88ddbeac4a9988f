"""The thresholds of every contract, by test and device, from limits.toml; refuses rows nobody asks for."""

import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from perfsuite import METRICS

PATH = Path(__file__).with_name("limits.toml")
LIMITS = {metric.limit_name for metric in METRICS.values()}


class Row(Mapping[str, Any]):
    """The thresholds of one contract on one kind of device; remembers which were used."""

    def __init__(self, test: str, kind: str, values: Mapping[str, Any]) -> None:
        self.test, self.kind = test, kind
        self._values = dict(values)
        self.used: set[str] = set()

    def __getitem__(self, name: str) -> Any:
        if name not in self._values:
            raise KeyError(f"{PATH.name} has no {name} for {self.test} on {self.kind}; add it there")
        self.used.add(name)
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def plugin_limits(self) -> dict[str, Any]:
        """Return what the plugin judges itself: min_speedup, max_kernels and their like."""
        return {name: self[name] for name in self if name in LIMITS}

    @property
    def unused(self) -> set[str]:
        """Return thresholds that nothing was held against."""
        return set(self._values) - self.used


def load() -> dict[str, dict[str, Any]]:
    """Read the whole table: test → device → thresholds."""
    return tomllib.loads(PATH.read_text(encoding="utf-8"))


def row(test: str, device: str) -> Row:
    """Return a contract's thresholds on a device; a card's own row wins over its kind's."""
    kinds = load().get(test, {})
    kind = device if device in kinds else device.partition(":")[0]
    if kind not in kinds:
        raise LookupError(f"{PATH.name} has no thresholds for {test} on {device}; add [{test}.{kind}]")
    return Row(test, kind, kinds[kind])
