"""Fit a card's corrections to measured operators, and the sheet rules to measured cards."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from perfsuite.devices.kernels import Kernel, KernelKind
from perfsuite.devices.model.cards import Card
from perfsuite.devices.model.roofline import (
    _PER_WATT,
    SheetRules,
    bandwidth_class,
    features,
    generation_class,
    sheet_seconds,
)

_RIDGE_OF_PRODUCTS, _RIDGE_OF_ROWS = 0.3, 0.6
_ROUNDS = 12  # of reweighting: a few outliers must not move the fit
_NOISE = 0.03  # of measured rows, in the exponent
_FAR = 0.2  # of products: what a card did at another clock is left out, not averaged in
_NEAR_CAP = 0.97


@dataclass(frozen=True)
class Row:
    """One measured operator."""

    kernel: Kernel
    seconds: float


def errors(rows: Sequence[Row], predicted: Sequence[float]) -> list[float]:
    """Return the absolute errors as shares of the measured times."""
    return [abs(guess / row.seconds - 1) for row, guess in zip(rows, predicted, strict=True)]


def fit_corrections(card: Card, rows: Sequence[Row], rules: SheetRules) -> Card:
    """Return the card with a correction for every kind of kernel that has measured rows."""
    corrections: dict[str, tuple[float, ...]] = {}
    for kind in KernelKind:
        chosen = [row for row in rows if row.kernel.kind is kind]
        if chosen:
            corrections[kind.value] = _fit(card, chosen, rules)
    return replace(card, corrections=corrections)


def _fit(card: Card, rows: Sequence[Row], rules: SheetRules) -> tuple[float, ...]:
    X = np.array([features(row.kernel, card) for row in rows])
    y = np.array([np.log(row.seconds / sheet_seconds(row.kernel, card, rules)) for row in rows])
    is_product = rows[0].kernel.kind in (KernelKind.LINEAR, KernelKind.BMM)
    penalty = (_RIDGE_OF_PRODUCTS if is_product else _RIDGE_OF_ROWS) * np.eye(X.shape[1])
    penalty[0, 0] *= 0.05  # that a card is faster or slower as a whole is the first thing to learn
    weight = np.ones(len(y))
    coefficients = np.zeros(X.shape[1])
    for _ in range(_ROUNDS):
        weighted = (X * weight[:, None]).T
        coefficients = np.linalg.solve(weighted @ X + penalty, weighted @ y)
        off = np.abs(y - X @ coefficients)
        weight = (1 + (off / _FAR) ** 2) ** -2 if is_product else 0.1 / np.maximum(off, _NOISE)
    return tuple(round(float(value), 5) for value in coefficients)


def fit_rules(cards: Sequence[Card], rows: Mapping[str, Sequence[Row]]) -> SheetRules:
    """Return the shares that measured cards sustain of their sheets, for cards that were not measured."""
    unit = SheetRules({"pascal": 1.0, "later": 1.0}, {"hbm": 1.0, "other": 1.0}, 1e15)
    shares: dict[str, list[float]] = {}
    memory: dict[str, list[float]] = {}
    for card in cards:
        ideal = replace(card, compute_share=1.0, bandwidth_share=1.0)
        shares[card.name] = _shares(ideal, rows[card.name], KernelKind.LINEAR, unit)
        simple = _shares(ideal, rows[card.name], KernelKind.ELEMENTWISE, unit)
        memory.setdefault(bandwidth_class(card), []).append(statistics.median(simple))
    per_watt = {
        card.name: statistics.median(shares[card.name])
        * card.float32
        / card.watts
        / _PER_WATT[card.process_nm]
        for card in cards
    }
    most = max(per_watt.values())
    every = [value for values in memory.values() for value in values]
    return SheetRules(
        {kind: _best(kind, cards, shares, per_watt, most) for kind in ("pascal", "later")},
        {kind: statistics.mean(memory.get(kind, every)) for kind in ("hbm", "other")},
        most,
    )


def _best(
    kind: str,
    cards: Sequence[Card],
    shares: Mapping[str, Sequence[float]],
    per_watt: Mapping[str, float],
    most: float,
) -> float:
    """Return the share that kernels of a generation reach where no power limit slows them down."""
    chosen = [card for card in cards if generation_class(card) == kind]
    free = [card for card in chosen if per_watt[card.name] < _NEAR_CAP * most]
    if free:
        return max(float(np.quantile(shares[card.name], 0.6)) for card in free)
    if chosen:  # all are limited: their best kernels show what they could reach
        return max(float(np.quantile(shares[card.name], 0.9)) for card in chosen)
    return statistics.mean(float(np.quantile(shares[card.name], 0.6)) for card in cards)


def _shares(card: Card, rows: Sequence[Row], kind: KernelKind, rules: SheetRules) -> list[float]:
    return [sheet_seconds(r.kernel, card, rules) / r.seconds for r in rows if r.kernel.kind is kind]
