"""The tables of errors: every kind of kernel, on every card, by every method."""

import random
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from statistics import mean, median
from typing import Any

import numpy as np

from benchmarks.modelled_gpu.fit import CARDS, Fitted
from benchmarks.modelled_gpu.truth import Group
from perfsuite.devices import Kernel, KernelKind
from perfsuite.devices.model import Card, Row, fit_corrections, seconds, sheet_seconds

FIXED_COMPUTE, FIXED_BANDWIDTH, FIXED_SECONDS = 0.75, 0.8, 3.5e-6
_CALIBRATED = {
    "linear": KernelKind.LINEAR,
    "bmm": KernelKind.BMM,
    "element-wise": KernelKind.ELEMENTWISE,
    "softmax": KernelKind.SOFTMAX,
    "layer norm": KernelKind.LAYER_NORM,
}


def off(predicted: Any, group: Group) -> Any:
    """Return the absolute errors as shares of the measured times."""
    return np.abs(predicted / group.seconds - 1)


def plain_roofline(group: Group, card: Card) -> Any:
    """Return the larger of FLOPs by peak and bytes by bandwidth, as the sheet has them."""
    return np.maximum(group.flops / card.peak(group.precision), group.moved_bytes / card.bandwidth)


def fixed_roofline(group: Group, card: Card) -> Any:
    """Return the same with the usual efficiencies and a launch."""
    compute = group.flops / (FIXED_COMPUTE * card.peak(group.precision))
    return np.maximum(compute, group.moved_bytes / (FIXED_BANDWIDTH * card.bandwidth)) + FIXED_SECONDS


def sheet_errors(group: Group, fitted: Fitted) -> Any:
    """Return the errors of rules that never saw the group's card."""
    return off(group.predicted(CARDS[group.card], fitted.rules, fitted.alone_seconds), group)


def calibrated_errors(group: Group, fitted: Fitted, seed: int = 0) -> Any:
    """Return the errors on nine tenths of the rows, corrected by the other tenth."""
    card, rows = CARDS[group.card], kernel_rows(group)
    random.Random(seed).shuffle(rows)
    cut = max(len(rows) // 10, 1)
    corrected = fit_corrections(card, rows[:cut], partial(sheet_seconds, card=card, rules=fitted.rules))
    return np.array(
        [abs(seconds(row.kernel, corrected, fitted.rules) / row.seconds - 1) for row in rows[cut:]]
    )


def kernel_rows(group: Group) -> list[Row]:
    """Return a group's kernels as a calibration measures them."""
    kind, rows = _CALIBRATED[group.kind], []
    for place, took in enumerate(group.seconds):
        sizes = [int(size) for size in group.columns[:, place]]
        problem = tuple(sizes) if kind in (KernelKind.LINEAR, KernelKind.BMM) else (1, 0, sizes[1], 0)
        moved = int(group.moved_bytes[place])
        rows.append(
            Row(
                Kernel(group.kind, kind, float(group.flops[place]), moved, 0, "float32", 1, problem),
                float(took),
            )
        )
    return rows


def print_kernels(groups: Sequence[Group], left_out: Mapping[str, Fitted]) -> None:
    """Print the median absolute error of each kind on each card."""
    print("| kernels | card | rows | plain | fixed | card left out | bias | calibrated |")
    print("|---|---|---|---|---|---|---|---|")
    for group in sorted(groups, key=lambda group: (group.kind, group.card)):
        card, fitted = CARDS[group.card], left_out[group.card]
        predicted = group.predicted(card, fitted.rules, fitted.alone_seconds)
        figures = [
            median(off(plain_roofline(group, card), group)),
            median(off(fixed_roofline(group, card), group)),
            median(off(predicted, group)),
            median(predicted / group.seconds) - 1,
        ]
        cells = [f"{100 * figure:.1f} %" for figure in figures]
        is_fitted = group.kind in _CALIBRATED
        cells.append(f"{100 * median(calibrated_errors(group, fitted)):.1f} %" if is_fitted else "–")
        print(f"| {group.kind} | {group.card} | {len(group.seconds)} |", " | ".join(cells), "|")


def worst_errors(groups: Sequence[Group], left_out: Mapping[str, Fitted]) -> dict[str, float]:
    """Return for each kind of kernels the median error on the card that is worst when it is left out."""
    worst: dict[str, float] = {}
    for kind, error in _medians(groups, left_out):
        worst[kind] = max(worst.get(kind, 0.0), error)
    return worst


def _medians(groups: Sequence[Group], left_out: Mapping[str, Fitted]) -> Iterator[tuple[str, float]]:
    for group in groups:
        yield group.kind, float(median(sheet_errors(group, left_out[group.card])))
        if group.kind in _CALIBRATED:
            draws = [median(calibrated_errors(group, left_out[group.card], seed)) for seed in range(5)]
            yield f"{group.kind}, calibrated", float(mean(draws))
