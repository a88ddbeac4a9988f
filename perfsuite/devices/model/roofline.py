"""Predict a kernel's time on a card: tiles, waves and bandwidth, corrected if the card was measured."""

import math
from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise
from typing import Any

import numpy as np

from perfsuite.devices.kernels import Kernel, KernelKind
from perfsuite.devices.model.cards import Card
from perfsuite.devices.model.convolutions import ConvolutionSizes, convolution_seconds
from perfsuite.devices.model.fitting import features
from perfsuite.devices.model.products import corner, product_seconds
from perfsuite.devices.model.recurrences import RecurrenceSizes, recurrence_seconds
from perfsuite.devices.model.rules import RowRule, Rules, shipped_rules
from perfsuite.devices.model.sustained import Rates, rates_of
from perfsuite.devices.problems import NO_PROBLEM, ways_of
from perfsuite.errors import DeviceMissing

_SHARPNESS = 4.0  # of the roofline's corner
_MOST_CORRECTION = 0.9  # in the exponent: a measured card may differ from its sheet by this much
_THIN = 16  # a processor's products with a side no longer than this leave its vectors half empty
# Statistics, or the weights' gradients, take a pass of their own over what the other pass reads.
_READ_AGAIN = {
    **dict.fromkeys(("native_batch_norm", "_native_batch_norm_legit", "native_group_norm"), 3 / 2),
    **dict.fromkeys(("native_batch_norm_backward", "native_group_norm_backward"), 5 / 3),
    **dict.fromkeys(("native_layer_norm_backward", "_fused_rms_norm_backward"), 5 / 3),
}
_RESIDENT_BLOCKS = 2  # of an SM, each with a row of its own
_ELEMENT_BYTES = {"float16": 2, "bfloat16": 2, "float64": 8}
_NUMBER_BYTES = 4  # a row is kept in FP32, whatever the tensors hold


# The operator whose curve stands for those of its kind that were not measured.
_TYPICAL = {
    KernelKind.REDUCTION: "sum",
    KernelKind.SOFTMAX: "_softmax",
    KernelKind.LAYER_NORM: "native_layer_norm",
    KernelKind.CONVOLUTION: "convolution",
    KernelKind.ATTENTION: "mkldnn_rnn_layer",
    KernelKind.RECURRENCE: "mkldnn_rnn_layer",
    KernelKind.MULTI_TENSOR: "_fused_adam_",
}


def seconds(kernel: Kernel, card: Card, rules: Rules | None = None) -> float:
    """Return the seconds a kernel takes on a card, corrected if the card was measured."""
    if card.is_host:
        return _host_seconds(kernel, card)
    base = sheet_seconds(kernel, card, rules)
    row = card.corrections.get(kernel.kind.value)
    if row is None:
        return base
    values = features(kernel, card)
    if len(row) != len(values):
        raise DeviceMissing(
            f"card {card.name!r}: its corrections for {kernel.kind.value} are {len(row)} numbers and not "
            f"{len(values)}, so another version wrote them; measure it again: python -m perfsuite calibrate"
        )
    exponent = math.fsum(c * f for c, f in zip(row, values, strict=True))
    return base * math.exp(max(-_MOST_CORRECTION, min(exponent, _MOST_CORRECTION)))


def _host_seconds(kernel: Kernel, card: Card) -> float:
    """Return the seconds a processor takes: products by their costs, the rest along the measured curves."""
    if kernel.kind in (KernelKind.LINEAR, KernelKind.BMM):
        parts = (1.0, kernel.problem[0], kernel.flops, kernel.moved_bytes)
        costs = card.products.get(product_class(kernel.problem), card.products[kernel.kind.value])
        return math.fsum(cost * part for cost, part in zip(costs, parts, strict=True))
    curve = card.curves.get(kernel.op) or card.curves.get(kernel.op.rstrip("_"))
    return _along(curve or card.curves[_TYPICAL.get(kernel.kind, "add")], kernel.flops or kernel.moved_bytes)


def product_class(problem: Sequence[int]) -> str:
    """Return the cost class of a processor's product: a single one, a batch, or a batch of thin ones."""
    if problem[0] == 1:
        return KernelKind.LINEAR.value
    return "thin" if min(problem[1:]) <= _THIN else KernelKind.BMM.value


def _along(curve: Sequence[tuple[float, float]], size: float) -> float:
    """Return the time at a size: linear between measured points in both logarithms."""
    if size <= curve[0][0] or len(curve) == 1:
        return curve[0][1] if size <= curve[0][0] else curve[0][1] * size / curve[0][0]
    for (low, before), (high, after) in pairwise(curve):
        if size <= high:
            share = math.log(size / low) / math.log(high / low)
            return math.exp(math.log(before) + share * math.log(after / before))
    return curve[-1][1] * size / curve[-1][0]


def sheet_seconds(kernel: Kernel, card: Card, rules: Rules | None = None) -> float:
    """Return the seconds expected from the sheet."""
    rules = rules or shipped_rules()
    return _by_rule(kernel, rates_of(card, rules.sheet, kernel.precision), rules)


@lru_cache(maxsize=16_384)  # a tenth of a millisecond each, and a step is played several times
def _by_rule(kernel: Kernel, on: Rates, rules: Rules) -> float:
    more = on.start_seconds * max(kernel.commands - 1, 0)  # the first one's start is a part of its rule
    if kernel.kind in (KernelKind.LINEAR, KernelKind.BMM):
        element_bytes = kernel.moved_bytes / max(_elements(kernel.problem), 1)
        return float(product_seconds(kernel.problem, on, rules.products, element_bytes)) + more
    if kernel.kind is KernelKind.CONVOLUTION and kernel.problem != NO_PROBLEM:
        return _convolution(kernel, on, rules)
    if kernel.kind is KernelKind.RECURRENCE and kernel.problem != NO_PROBLEM:
        return _recurrence(kernel, on, rules)
    if kernel.kind in (KernelKind.CONVOLUTION, KernelKind.ATTENTION, KernelKind.RECURRENCE):
        compute = kernel.flops / (0.6 * on.flops)  # not measured: between good and poor products
        return float(corner(compute, kernel.moved_bytes / on.simple_bandwidth, _SHARPNESS)) + more
    moved = kernel.moved_bytes * _READ_AGAIN.get(kernel.op, 1.0)
    return float(row_seconds(kernel.kind, moved, kernel.problem[2], on, rules.rows)) + more


def _convolution(kernel: Kernel, on: Rates, rules: Rules) -> float:
    *sizes, bits = kernel.problem
    ways, element_bytes = ways_of(bits), _ELEMENT_BYTES.get(kernel.precision, 4)
    more = on.start_seconds * max(kernel.commands - len(ways), 0)
    return more + math.fsum(
        float(
            convolution_seconds(
                *(ConvolutionSizes(*sizes), way, on, rules.products, rules.convolutions, element_bytes)
            )
        )
        for way in ways
    )


def _recurrence(kernel: Kernel, on: Rates, rules: Rules) -> float:
    """Return the seconds of all layers and directions, one after the other."""
    steps, batch, inputs, later_inputs, hidden, gates, firsts, later, bits = kernel.problem
    element_bytes = _ELEMENT_BYTES.get(kernel.precision, 4)
    layers = [(inputs, firsts), (later_inputs, later)]
    return math.fsum(
        count
        * float(
            recurrence_seconds(
                *(RecurrenceSizes(steps, batch, width, hidden, gates), way, on),
                *(rules.products, rules.recurrences, element_bytes),
            )
        )
        for width, count in layers
        for way in ways_of(bits)
        if count
    )


def _elements(problem: Sequence[int]) -> int:
    batch, m, n, k = problem
    return batch * (m * k + k * n + m * n)


def row_seconds(kind: KernelKind, moved_bytes: Any, width: Any, on: Rates, rule: RowRule) -> Any:
    """Return the seconds of a kernel by what it moves; `width` is that of a row, 0 without rows."""
    return moved_bytes * passes(kind, width, on, rule) / on.simple_bandwidth + on.start_seconds


def passes(kind: KernelKind, width: Any, on: Rates, rule: RowRule) -> Any:
    """Return how often a row is fetched: more than once if the rows in flight do not fit into the cache."""
    if kind is KernelKind.SOFTMAX:
        extra, low, high = rule.softmax_extra, rule.softmax_low, rule.softmax_high
    elif kind is KernelKind.LAYER_NORM:
        extra, low, high = rule.norm_extra, rule.norm_low, rule.norm_high
    else:
        return 1.0
    in_flight = _RESIDENT_BLOCKS * on.sms * np.asarray(width, float) * _NUMBER_BYTES / on.l2_bytes
    position = np.log(np.maximum(in_flight, 1e-9) / low) / np.log(max(high / low, 1.01))
    return 1.0 + extra * np.clip(position, 0.0, 1.0)
