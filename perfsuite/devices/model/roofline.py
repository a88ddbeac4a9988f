"""Predict a kernel's time on a card: tiles, waves and bandwidth, corrected if the card was measured."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from perfsuite.devices.kernels import Kernel, KernelKind
from perfsuite.devices.model.cards import Card
from perfsuite.errors import DeviceMissing

# Width and height of the tiles of matrix kernels, and how well each uses the card.
_TILES = ((256, 128, 1.0), (128, 128, 1.0), (128, 96, 0.97), (128, 64, 0.92), (128, 32, 0.8),
          (64, 64, 0.8), (64, 32, 0.62), (32, 32, 0.45))  # fmt: skip
_PROLOGUE = 24  # loading and storing a tile takes the time of this many columns of k
_SHARPNESS = 4.0  # of the roofline's corner
_MOST_CORRECTION = 0.9  # in the exponent: a measured card may differ from its sheet by this much
_THIN = 16  # a processor's products with a side no longer than this leave its vectors half empty
_SMALLEST, _LARGEST = 64, 65_536  # the measured sizes; corrections are not extrapolated beyond


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


@dataclass(frozen=True)
class SheetRules:
    """The shares of a sheet that real cards sustain; fitted on measured cards (docs/modelled-gpu.md)."""

    compute: Mapping[str, float]  # generation → share of the FLOP/s peak
    bandwidth: Mapping[str, float]  # "hbm" of Volta and later, and "other" → share of the bandwidth
    flops_per_watt: float  # sustained FP32 FLOP/s per watt at 12 to 16 nm


# FLOP/s per watt by process, in nm, relative to 16 nm; only 16, 12 and 7 nm were measured, the others are
# estimates.
_PER_WATT = {16: 1.0, 12: 1.0, 8: 1.7, 7: 1.2, 5: 2.6, 4: 2.6}
RULES = SheetRules({"pascal": 0.768, "later": 0.996}, {"hbm": 0.891, "other": 0.742}, 59.1e9)


def generation_class(card: Card) -> str:
    """Return the key of the FLOP/s share that a card's matrix kernels reach."""
    return "pascal" if card.generation == "pascal" else "later"


def bandwidth_class(card: Card) -> str:
    """Return the key of the bandwidth share that a card's simple kernels reach."""
    return "hbm" if card.memory_kind.startswith("hbm") and card.generation != "pascal" else "other"


def compute_share(card: Card, rules: SheetRules = RULES) -> float:
    """Return the share of the FP32 peak a card sustains: its kernels' best, or what its power allows."""
    if card.compute_share is not None:
        return card.compute_share
    best = rules.compute[generation_class(card)]
    if not card.watts:
        return best
    allowed = rules.flops_per_watt * _PER_WATT.get(card.process_nm, 1.0) * card.watts
    return min(best, allowed / card.float32)


def bandwidth_share(card: Card, rules: SheetRules = RULES) -> float:
    """Return the share of the sheet's bandwidth that simple kernels reach."""
    return (
        card.bandwidth_share if card.bandwidth_share is not None else rules.bandwidth[bandwidth_class(card)]
    )


def seconds(kernel: Kernel, card: Card, rules: SheetRules = RULES) -> float:
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


def sheet_seconds(kernel: Kernel, card: Card, rules: SheetRules = RULES) -> float:
    """Return the seconds expected from the sheet."""
    moved = kernel.moved_bytes * _passes(kernel, card) / (card.bandwidth * bandwidth_share(card, rules))
    least = card.kernel_seconds * kernel.commands
    if kernel.kind in (KernelKind.LINEAR, KernelKind.BMM):
        return _corner(_tiled(kernel, card, rules), moved) + least
    if kernel.kind in (KernelKind.CONVOLUTION, KernelKind.ATTENTION, KernelKind.RECURRENCE):
        share = 0.6 * compute_share(card, rules)  # not measured: between good and poor products
        return _corner(kernel.flops / (card.peak(kernel.precision) * share), moved) + least
    return moved + least


def _corner(compute: float, moved: float) -> float:
    return float((compute**_SHARPNESS + moved**_SHARPNESS) ** (1 / _SHARPNESS))


def _tiled(kernel: Kernel, card: Card, rules: SheetRules) -> float:
    """Return the time of the best tiling: whole waves of whole tiles."""
    batch, m, n, k = kernel.problem
    rate = card.peak(kernel.precision) * compute_share(card, rules) / card.sms
    work = 2.0 * (k + _PROLOGUE) / rate
    best = math.inf
    for long, short, quality in _TILES:
        for height, width in ((long, short), (short, long)):
            tiles = batch * -(-m // height) * -(-n // width)
            best = min(best, -(-tiles // card.sms) * height * width / quality)
    return best * work


def _passes(kernel: Kernel, card: Card) -> float:
    """Return how often a row is fetched: more than once if the rows in flight do not fit into the cache."""
    extra = {KernelKind.SOFTMAX: 1.0, KernelKind.LAYER_NORM: 0.5}.get(kernel.kind)
    if extra is None or card.is_host:
        return 1.0
    in_flight = 2 * card.sms * kernel.problem[2] * 4 / card.l2_bytes
    low, high = (0.15, 0.6) if kernel.kind is KernelKind.SOFTMAX else (0.06, 0.25)
    position = math.log(max(in_flight, 1e-9) / low) / math.log(high / low)
    return 1.0 + extra * max(0.0, min(position, 1.0))


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
