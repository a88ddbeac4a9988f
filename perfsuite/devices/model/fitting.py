"""Fit a card's corrections to measured operators."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from perfsuite.devices.kernels import Kernel, KernelKind
from perfsuite.devices.model.cards import Card

_RIDGE_OF_PRODUCTS, _RIDGE_OF_ROWS = 0.3, 0.6
_ROUNDS = 12  # of reweighting: a few outliers must not move the fit
_NOISE = 0.03  # of measured rows, in the exponent
_SMALLEST, _LARGEST = 64, 65_536  # the measured sizes; corrections are not extrapolated beyond
_FAR = 0.2  # of products: what a card did at another clock is left out, not averaged in


Expected = Callable[[Kernel], float]  # from the sheet


@dataclass(frozen=True)
class Row:
    """One measured operator."""

    kernel: Kernel
    seconds: float


def errors(rows: Sequence[Row], predicted: Sequence[float]) -> list[float]:
    """Return the absolute errors as shares of the measured times."""
    return [abs(guess / row.seconds - 1) for row, guess in zip(rows, predicted, strict=True)]


def fit_corrections(card: Card, rows: Sequence[Row], expected: Expected) -> Card:
    """Return the card with a correction for every kind of kernel that has measured rows."""
    corrections: dict[str, tuple[float, ...]] = {}
    for kind in KernelKind:
        chosen = [row for row in rows if row.kernel.kind is kind]
        if chosen:
            corrections[kind.value] = _fit(card, chosen, expected)
    return replace(card, corrections=corrections)


def _fit(card: Card, rows: Sequence[Row], expected: Expected) -> tuple[float, ...]:
    X = np.array([features(row.kernel, card) for row in rows])
    y = np.array([np.log(row.seconds / expected(row.kernel)) for row in rows])
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


def features(kernel: Kernel, card: Card) -> tuple[float, ...]:
    """Return what a correction depends on: sizes, their products, alignment; clamped to what was measured."""
    return (
        product_features(kernel, card)
        if kernel.kind in (KernelKind.LINEAR, KernelKind.BMM)
        else row_features(kernel)
    )


def row_features(kernel: Kernel) -> tuple[float, ...]:
    """Return features of kernels that work on rows."""
    size = math.log2(max(kernel.moved_bytes, 1)) / 5 - 5
    width = math.log2(max(kernel.problem[2], 1)) / 5 - 2 if kernel.problem[2] else 0.0
    return (1.0, max(-2.0, min(size, 2.0)), width, width * width)


def product_features(kernel: Kernel, card: Card) -> tuple[float, ...]:
    """Return features of matrix products."""
    batch, *dims = kernel.problem
    m, n, k = (min(max(size, _SMALLEST), _LARGEST) for size in dims)
    work = math.log2(max(2.0 * batch * m * n * k / card.float32, 1e-6) / 1e-3) / 4
    base = (
        math.log2(batch) / 5 - 1 if batch > 1 else 0.0,
        *(math.log2(size) / 5 - 2 for size in (m, n, k)),
        work,
    )
    squares = [base[i] * base[j] for i in range(5) for j in range(i, 5)]
    small = (64 / k, (64 / k) ** 2, 64 / m, 64 / n)
    odd = [float(size % 8 != 0) for size in dims]
    odd += [0.5 * (size % tile != 0) for tile in (64, 128) for size in dims[:2]] + [0.5 * (dims[2] % 32 != 0)]
    thin = [float(min(dims[:2]) <= tile) for tile in (64, 96)]  # the large tiles do not fit
    return (1.0, *base, *squares, *small, *odd, *thin, max(math.log2(n) - 12.5, 0.0))
