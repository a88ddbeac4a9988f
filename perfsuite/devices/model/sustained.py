"""What a card sustains of its sheet: the best its kernels reach, or what its power allows."""

from dataclasses import dataclass

from perfsuite.devices.model.cards import Card
from perfsuite.devices.model.rules import SheetRule

_TENSOR = ("float16", "bfloat16", "tf32")
# FLOP/s per watt by process, in nm, relative to 12 and 16 nm: estimates, since no card of these was measured
# at its power limit; 7 nm is fitted (SheetRule).
_PER_WATT_ESTIMATES = {8: 1.7, 5: 2.6, 4: 2.6, 3: 2.9}
# Tensor cores of Ampere and later take operands from shared memory faster than warps can issue: an estimate.
_LATER_TENSOR_SHARE = 0.75
_LATER = ("ampere", "ada", "hopper", "blackwell")
_LATER_TENSOR_PER_WATT = 2.4  # relative to Volta and Turing: an estimate


@dataclass(frozen=True)
class Rates:
    """A card's rates for one precision."""

    flops: float  # per second, of all SMs
    bandwidth: float  # bytes per second, by the sheet
    simple_bandwidth: float  # what simple kernels reach of it
    sms: int
    l2_bytes: float
    is_pascal: bool
    start_seconds: float  # of a kernel


def is_wide(card: Card) -> bool:
    """Tell whether an SM has more FP32 lanes than its shared memory feeds; Pascal's kernels are no better."""
    has_hbm = card.memory_kind.startswith("hbm")
    return card.generation in ("pascal", "ada", "hopper", "blackwell") or (
        card.generation == "ampere" and not has_hbm
    )


def compute_share(card: Card, rule: SheetRule, precision: str = "float32") -> float:
    """Return the share of a peak that a card sustains: its kernels' best, or what its power allows."""
    if card.compute_share is not None:
        return card.compute_share
    if precision in _TENSOR and getattr(card, precision) > 2.5 * card.float32:
        is_later = card.generation in _LATER
        best = _LATER_TENSOR_SHARE if is_later else rule.tensor_share
        per_watt = rule.tensor_flops_per_watt * (_LATER_TENSOR_PER_WATT if is_later else 1.0)
        per_watt *= {"tf32": 0.5}.get(precision, 1.0)
    else:
        best = rule.wide_share if is_wide(card) else rule.share
        per_watt = rule.flops_per_watt * _PER_WATT_ESTIMATES.get(card.process_nm, 1.0)
        if card.process_nm == 7:
            per_watt = rule.flops_per_watt_7nm
        per_watt *= card.peak(precision) / card.float32  # half precision on FP32 lanes, float64 on its own
    if not card.watts:
        return best
    return min(best, per_watt * card.watts / card.peak(precision))


def bandwidth_share(card: Card, rule: SheetRule) -> float:
    """Return the share of the sheet's bandwidth that simple kernels reach."""
    if card.bandwidth_share is not None:
        return card.bandwidth_share
    is_fast = card.memory_kind.startswith("hbm") and card.generation != "pascal"
    return rule.hbm_share if is_fast else rule.gddr_share


def rates_of(card: Card, rule: SheetRule, precision: str = "float32") -> Rates:
    """Return what a card sustains in a precision."""
    return Rates(
        card.peak(precision) * compute_share(card, rule, precision),
        card.bandwidth,
        card.bandwidth * bandwidth_share(card, rule),
        card.sms,
        card.l2_bytes,
        card.generation == "pascal",
        card.kernel_seconds,
    )
