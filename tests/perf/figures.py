"""What a card is held to besides ratios: how busy, how many samples per second, how much memory."""

import math
import re
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import torch

from perfsuite import Reading, Unit, show
from perfsuite.devices.model import Card, find_cards, load_cards

_BRIEF_SECONDS = 1e-3  # shorter steps are mostly Python, which nobody predicts
PREDICTED_STEP, PREDICTED_KERNELS = "predicted_step_seconds", "predicted_kernel_seconds"


class CardFigures(NamedTuple):
    """A step on a card; None where it was not measured."""

    busy: float | None  # share of the step with a kernel running
    samples_per_s: float | None
    peak_memory: float | None

    @classmethod
    def from_reading(cls, reading: Reading) -> "CardFigures":
        """Take what was measured; of an emulated card what is predicted, which no busy host changes."""
        return cls.from_values(reading.figures, reading.reported, reading.samples / reading.steps)

    @classmethod
    def from_values(
        cls, figures: Mapping[str, float], reported: Mapping[str, float], samples_per_step: float
    ) -> "CardFigures":
        """Take the figures of a reading by their names."""
        peak = figures.get("peak_memory")
        if predicted := reported.get(PREDICTED_STEP):
            if predicted < _BRIEF_SECONDS:
                return cls(None, None, peak)
            return cls(reported[PREDICTED_KERNELS] / predicted, samples_per_step / predicted, peak)
        busy = figures.get("kernel_busy")
        return cls(figures.get("utilization") if busy is None else busy, figures.get("samples_per_s"), peak)

    def text(self, *, is_predicted: bool) -> str:
        """Return the figures as a person reads them."""
        shown = zip(self, (Unit.FRACTION, Unit.PER_SECOND, Unit.BYTES), strict=True)
        busy, speed, memory = (show(value, unit) for value, unit in shown)
        return f"{'predicted ' * is_predicted}{busy} busy, {speed} samples/s, {memory}"


def step_seconds(reading: Reading) -> float | None:
    """Return a step's time: predicted on an emulated card, measured or modelled elsewhere."""
    return reading.reported.get(PREDICTED_STEP) or reading.step_seconds


def card_of(device_name: str, torch_name: str) -> Card:
    """Return the data sheet of a device: its own where it is emulated, else the most alike by size."""
    kind, _, name = device_name.partition(":")
    if kind == "emulated":
        return find_cards(name)[0]
    found = torch.cuda.get_device_properties(torch_name)
    size = (found.multi_processor_count, found.total_memory)
    return card_named(found.name, found.total_memory) or min(
        load_cards().values(), key=lambda card: _distance((card.sms, card.memory_bytes), size)
    )


def card_named(title: str, memory_bytes: float) -> Card | None:
    """Return the data sheet of a card by NVIDIA's name for it, None where there is none.

    Of several with one name, as the A100s of 40 and 80 GB, that with its memory, then with most of its words.
    """
    words = _words(title)
    known = [card for card in load_cards().values() if card.name.split("-")[0] in words]
    return min(
        known,
        key=lambda card: (
            round(_distance((card.memory_bytes,), (memory_bytes,)), 1),  # a driver keeps some for itself
            -len(words & _words(card.title)),
        ),
        default=None,
    )


def _words(title: str) -> set[str]:
    return set(re.findall(r"[a-z0-9]+", title.lower()))


def nearest(card: Card, names: Iterable[str]) -> tuple[str, float]:
    """Return the most similar of the named cards, and which share of its speed this card has at least."""
    cards = load_cards()
    if card.name in (known := sorted(names)):
        return card.name, 1.0
    name = min(known, key=lambda one: _distance(_speed(cards[one]), _speed(card)))
    return name, min(1.0, *(own / its for own, its in zip(_speed(card), _speed(cards[name]), strict=True)))


def _speed(card: Card) -> tuple[float, float]:
    return card.bandwidth, card.float32


def _distance(one: tuple[float, ...], other: tuple[float, ...]) -> float:
    return math.dist([math.log(value) for value in one], [math.log(value) for value in other])


class FigureLimits(NamedTuple):
    """The row of one contract on one card."""

    card: str
    source: str  # predicted by or measured on what
    min_busy: float | None
    min_samples_per_s: float | None
    max_peak_memory: float
    speed: float = 1.0  # share of the card's speed that this one has

    @classmethod
    def from_row(cls, card: str, row: Mapping[str, Any], speed: float) -> "FigureLimits":
        """Read a row of the table."""
        times = (row.get(name) for name in ("min_busy", "min_samples_per_s"))
        return cls(card, row["from"], *times, row["max_peak_memory"], speed)

    def misses(self, found: CardFigures) -> list[str]:
        """Say which figures are not what the card's row expects."""
        speed = None if self.min_samples_per_s is None else self.min_samples_per_s * self.speed
        bounds = (
            ("busy share", found.busy, self.min_busy, Unit.FRACTION),
            ("samples/s", found.samples_per_s, speed, Unit.PER_SECOND),
            ("peak memory", found.peak_memory, self.max_peak_memory, Unit.BYTES),
        )
        return [text for bound in bounds if (text := self._miss(*bound))]

    def _miss(self, label: str, value: float | None, bound: float | None, unit: Unit) -> str:
        if bound is None:
            return ""
        by = f"the {show(bound, unit)} expected by the table for {self.card} ({self.source})"
        if value is None:
            return f"{label} was not measured, but held against {by}"
        side = "above" if unit is Unit.BYTES else "below"
        is_missed = value > bound if side == "above" else value < bound
        return f"{label} {show(value, unit)} is {side} {by}" if is_missed else ""
