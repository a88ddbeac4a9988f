"""How long matrix products take: whole waves of whole tiles, the contraction split where tiles are few.

The functions take arrays as well as numbers: one kernel of a step, or all that were measured of a card.
"""

from typing import Any

import numpy as np

from perfsuite.devices.model.rules import ProductRule
from perfsuite.devices.model.sustained import Rates

# The sides of the tiles of matrix kernels.
_SIDES = (
    (256, 128),
    (128, 128),
    (128, 64),
    (64, 64),
    (128, 32),
    (64, 32),
    (32, 32),
    (128, 16),
    (64, 16),
    (32, 16),
)
_SPLITS = (1, 2, 4, 8, 16, 32)
_SPLIT_STARTS = 3  # in kernels' starts: what clearing, waiting for the last part and adding up takes
_CHOICES = [
    (height, width, split)
    for long, short in _SIDES
    for height, width in sorted({(long, short), (short, long)})
    for split in _SPLITS
]
_HEIGHT, _WIDTH, _SPLIT = (np.array(column, float) for column in zip(*_CHOICES, strict=True))
_PLAIN = (_SPLIT == 1) & (_HEIGHT == 128)
_SHORT_SIDE, _LONG_SIDE = np.minimum(_HEIGHT, _WIDTH), np.maximum(_HEIGHT, _WIDTH)


def product_seconds(
    problem: Any, on: Rates, rule: ProductRule, element_bytes: Any = 4, is_linear: bool = True
) -> Any:
    """Return the seconds of products: `problem` holds batch, rows, width and contraction.

    A batch of one may be a linear layer, both of whose matrices lie along the contraction.
    """
    batch, m, n, k = (np.asarray(size, float) for size in problem)
    compute = tiled_seconds(problem, on, rule)
    if is_linear:
        slope = rule.long_slope_pascal if on.is_pascal else rule.long_slope
        doublings = np.maximum(np.log2(np.maximum(k, 1)) - rule.long_contraction, 0)
        compute = compute * np.where(batch > 1, 1.0, 1 + slope * doublings)
    moved = element_bytes * batch * (m * k + k * n + m * n) / (on.bandwidth * rule.bandwidth_share)
    return corner(compute, moved, rule.sharpness) + on.start_seconds


def tiled_seconds(
    problem: Any, on: Rates, rule: ProductRule, quality: Any = 1.0, is_plain: bool = False
) -> Any:
    """Return the time the SMs compute, with the best of all tiles and splits; plain: large tiles, no split.

    A kernel of lower quality leaves lanes idle, and so a card at its power limit can raise its clock.
    """
    batch, m, n, k = (np.asarray(size, float)[..., None] for size in problem)
    tiles = batch * np.ceil(m / _HEIGHT) * np.ceil(n / _WIDTH) * _SPLIT
    waves = tiles / on.sms
    waves = rule.whole_waves * np.ceil(waves) + (1 - rule.whole_waves) * np.maximum(waves, 1)
    single, batched = _qualities(rule)
    rate = np.minimum(on.free_flops * np.asarray(quality, float)[..., None], on.flops) / on.sms
    rate = rate * np.where(batch > 1, batched, single)
    seconds = waves * 2 * _HEIGHT * _WIDTH * (k / _SPLIT + rule.prologue) / rate
    added_bytes = (_SPLIT + 1) * batch * m * n * 4  # parts are kept in FP32
    seconds += np.where(_SPLIT > 1, _SPLIT_STARTS * on.start_seconds + added_bytes / on.simple_bandwidth, 0.0)
    return (seconds[..., _PLAIN] if is_plain else seconds).min(-1)


def corner(compute: Any, moved: Any, sharpness: float) -> Any:
    """Return the longer of computing and moving, with a rounded corner where both are alike."""
    return (compute**sharpness + moved**sharpness) ** (1 / sharpness)


def _qualities(rule: ProductRule) -> tuple[Any, Any]:
    """Return how well each tile uses an SM, in a single product and in a batch."""
    sides = (_SHORT_SIDE == 64, _SHORT_SIDE == 32, _SHORT_SIDE == 16)
    narrow = np.select(sides, (rule.narrow_64, rule.narrow_32, rule.narrow_16), 1.0)
    single = narrow * np.select((_LONG_SIDE == 64, _LONG_SIDE == 32), (rule.short, rule.short**2), 1.0)
    return single, single * np.select(sides, (rule.batched_64, rule.batched_32, rule.batched_32), 1.0)
