"""What a card sustains of its sheet: the best its kernels reach, or what its power allows."""

from dataclasses import dataclass

from perfsuite.devices.model.cards import Card
from perfsuite.devices.model.rules import SheetRule

_TENSOR = ("float16", "bfloat16", "tf32")
_TENSOR_GAIN = 1.9  # over FP32 lanes: less is not worth another rule
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
    free_flops: float  # if power were no limit: what leaves lanes idle runs at a higher clock
    bandwidth: float  # bytes per second, by the sheet
    simple_bandwidth: float  # what simple kernels reach of it
    sms: int
    l2_bytes: float
    is_pascal: bool
    start_seconds: float  # of a kernel
    has_tensor_cores: bool = False


def has_wide_sms(card: Card) -> bool:
    """Tell whether an SM has 128 FP32 lanes, more than its shared memory feeds; others have 64."""
    has_hbm = card.memory_kind.startswith("hbm")
    return card.generation in ("ada", "hopper", "blackwell") or (
        card.generation in ("pascal", "ampere") and not has_hbm
    )


def compute_share(card: Card, rule: SheetRule, precision: str = "float32") -> float:
    """Return the share of a peak that a card sustains: its kernels' best, or what its power allows."""
    if card.compute_share is not None:
        return card.compute_share
    if not card.watts:
        return best_share(card, rule, precision)
    if _has_tensor_cores(card, precision):
        per_watt = rule.tensor_flops_per_watt * (_LATER_TENSOR_PER_WATT if card.generation in _LATER else 1.0)
        per_watt *= {"tf32": 0.5}.get(precision, 1.0)
    else:
        is_7nm = card.process_nm == 7
        per_watt = rule.flops_per_watt_7nm if is_7nm else rule.flops_per_watt
        per_watt *= _PER_WATT_ESTIMATES.get(card.process_nm, 1.0)
        per_watt *= card.peak(precision) / card.float32  # half precision on FP32 lanes, float64 on its own
    return min(best_share(card, rule, precision), per_watt * card.watts / card.peak(precision))


def best_share(card: Card, rule: SheetRule, precision: str = "float32") -> float:
    """Return the share of a peak that a card's kernels reach if power is no limit."""
    if _has_tensor_cores(card, precision):
        return _LATER_TENSOR_SHARE if card.generation in _LATER else rule.tensor_share
    if card.generation == "pascal":
        return rule.pascal_share
    return rule.wide_share if has_wide_sms(card) else rule.share


def _has_tensor_cores(card: Card, precision: str) -> bool:
    return precision in _TENSOR and getattr(card, precision) > _TENSOR_GAIN * card.float32


def bandwidth_share(card: Card, rule: SheetRule) -> float:
    """Return the share of the sheet's bandwidth that simple kernels reach."""
    if card.bandwidth_share is not None:
        return card.bandwidth_share
    is_fast = card.memory_kind.startswith("hbm") and card.generation != "pascal"
    return rule.hbm_share if is_fast else rule.gddr_share


def rates_of(card: Card, rule: SheetRule, precision: str = "float32") -> Rates:
    """Return what a card sustains in a precision."""
    share = compute_share(card, rule, precision)
    return Rates(
        card.peak(precision) * share,
        card.peak(precision) * max(best_share(card, rule, precision), share),
        card.bandwidth,
        card.bandwidth * bandwidth_share(card, rule),
        card.sms,
        card.l2_bytes,
        card.generation == "pascal",
        card.kernel_seconds,
        _has_tensor_cores(card, precision),
    )
