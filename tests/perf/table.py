"""The thresholds of every contract, by test and device, from limits.toml; refuses rows nobody asks for."""

import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from perfsuite import METRICS
from perfsuite.devices.model import Card
from tests.perf.figures import FigureLimits, nearest

ON = "on"  # [test.on]: the figures of cards, which a command writes
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

    def for_card(self, card: Card) -> None:
        """Take the limits of a card where they differ by card."""
        for name, value in self._values.items():
            if name in LIMITS and isinstance(value, dict):
                self._values[name] = value[nearest(card, value)[0]]

    def plugin_limits(self) -> dict[str, Any]:
        """Return what the plugin judges itself: min_speedup, max_kernels and their like."""
        return {name: self[name] for name in self if name in LIMITS}

    @property
    def unused(self) -> set[str]:
        """Return thresholds that nothing was held against."""
        return set(self._values) - self.used


def load() -> dict[str, dict[str, Any]]:
    """Read the contracts' thresholds: test → device → thresholds."""
    return {
        test: {kind: values for kind, values in kinds.items() if kind != ON}
        for test, kinds in _whole().items()
    }


def load_figures() -> dict[str, dict[str, Any]]:
    """Read the cards' figures: test → card → what its optimized variant must reach there."""
    return {test: kinds[ON] for test, kinds in _whole().items() if ON in kinds}


def _whole() -> dict[str, dict[str, Any]]:
    return tomllib.loads(PATH.read_text(encoding="utf-8"))


def card_limits(test: str, card: Card) -> FigureLimits:
    """Return what a contract's optimized variant must reach on a card, or on the one most like it."""
    rows = load_figures().get(test)
    if not rows:
        raise LookupError(
            f"{PATH.name} has no figures for {test} on a card; run it with --perf-without-figures "
            "--perf-json=run.json and derive them: python -m scripts.derive_limits run.json"
        )
    name, speed = nearest(card, rows)
    return FigureLimits.from_row(name, rows[name], speed)


def row(test: str, device: str) -> Row:
    """Return a contract's thresholds on a device; a card's own row wins over its kind's, that over CUDA's."""
    kinds = load().get(test, {})
    kind = device if device in kinds else device.partition(":")[0]
    if kind == "emulated" and kind not in kinds:
        kind = "cuda"
    if kind not in kinds:
        raise LookupError(f"{PATH.name} has no thresholds for {test} on {device}; add [{test}.{kind}]")
    return Row(test, kind, kinds[kind])
