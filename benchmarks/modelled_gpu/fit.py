"""Fit the rules' constants to measured kernels: the same search for every rule, on any choice of cards."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from statistics import mean
from typing import Any

import numpy as np

from benchmarks.modelled_gpu.truth import Group
from perfsuite.devices.model import (
    Card,
    ConvolutionRule,
    ProductRule,
    RecurrenceRule,
    RowRule,
    Rules,
    SheetRule,
    has_wide_sms,
    load_cards,
)

_MOST_ROWS = 120  # of a group: more do not move the fit
_ROUNDS = 16
_FIRST_STEP, _GROW, _SHRINK = 0.15, 1.4, 0.5
_LEAST_GAIN, _LAST_STEP = 1e-5, 0.005  # no better, and nowhere left to go
_MOST_OFF = 0.6  # in the exponent: a row further off counts no more
_LIMITED = 0.92  # of the best of its class: a card that reaches less is held back by its power
CARDS = load_cards()
# Where every search begins: round numbers, whatever cards it may see.
FIRST_SHEET = SheetRule(1.0, 0.8, 0.8, 0.9, 60e9, 70e9, 600e9, 0.85, 0.75)
FIRST_PRODUCTS = ProductRule(
    0.9, 0.8, 0.5, 0.9, 0.8, 0.8, 10.0, 0.7, 4.0, 0.7, 12.5, 0.05, 0.3
)  # fmt: skip
FIRST_ROWS = RowRule(1.0, 0.15, 0.6, 0.5, 0.06, 0.25)
FIRST_CONVOLUTIONS = ConvolutionRule(0.8, 0.7, 0.5, 0.7, 0.6, 0.8, 0.8, 0.8, 0.8, 1.1, 0.7, 2.0)
FIRST_RECURRENCES = RecurrenceRule(20e-6, 20e-6, 0.9)
FIRST_ALONE_SECONDS = 15e-6
_AT_MOST_ONE = {"whole_waves"}
OLD_LIBRARY = ("p100",)  # recurrent layers there are those of cuDNN 6
TENSOR = "gemm, tensor cores"
RECURRENCES = ("rnn", "gru", "lstm")
PRODUCTS, ROWS = ("linear", "bmm", "gemm"), ("element-wise", "softmax", "layer norm")


def search(
    loss: Callable[[Mapping[str, float]], float], start: Mapping[str, float], rounds: int = _ROUNDS
) -> dict[str, float]:
    """Return constants with a smaller loss: each is moved in turn, further if that helped, less if not."""
    found, steps, best = dict(start), dict.fromkeys(start, _FIRST_STEP), loss(start)
    for _ in range(rounds):
        before = best
        for name in start:
            for direction in (1, -1):
                tried = {**found, name: found[name] * math.exp(direction * steps[name])}
                if name in _AT_MOST_ONE and tried[name] > 1:
                    continue
                if (now := loss(tried)) < best - 1e-7:
                    best, found, steps[name] = now, tried, steps[name] * _GROW
                    break
            else:
                steps[name] *= _SHRINK
        if before - best < _LEAST_GAIN and max(steps.values()) < _LAST_STEP:
            break
    return found


def logs(group: Group, card: Card, rules: Rules, alone_seconds: float) -> Any:
    """Return the errors in the exponent: 0 is right, above it the prediction is too long."""
    return np.log(group.predicted(card, rules, alone_seconds) / group.seconds)


def mean_loss(errors: Sequence[Any]) -> float:
    """Return the mean error, each group counting the same."""
    return mean(float(np.mean(np.minimum(np.abs(values), _MOST_OFF))) for values in errors)


@dataclass(frozen=True)
class Fitted:
    """What a fit found."""

    rules: Rules
    alone_seconds: float  # what timing a call by itself adds
    shares: Mapping[str, float]  # card → share of its FP32 peak, for the cards of the fit
    tensor_shares: Mapping[str, float] = field(default_factory=dict)  # the same of its tensor cores' peak


def fit(groups: Sequence[Group]) -> Fitted:
    """Fit all rules to the cards of these groups, and to nothing else."""
    groups = [group.thinned(_MOST_ROWS) for group in groups]
    fitted = fit_products([group for group in groups if group.kind in PRODUCTS])
    fitted = fit_rows([group for group in groups if group.kind in ROWS], fitted)
    fitted = fit_tensor_cores([group for group in groups if group.kind == TENSOR], fitted)
    fitted = fit_section("convolutions", [g for g in groups if g.kind.startswith("convolution")], fitted)
    layers = [group for group in groups if group.kind.startswith(RECURRENCES)]
    newer = [group for group in layers if group.card not in OLD_LIBRARY]
    return fit_section("recurrences", newer or layers, fitted)


def fit_products(groups: Sequence[Group]) -> Fitted:
    """Fit the rule of products with a free share for each card, then what the shares follow from."""
    names = sorted({group.card for group in groups})
    first = Rules(FIRST_SHEET, FIRST_PRODUCTS, FIRST_ROWS, FIRST_CONVOLUTIONS, FIRST_RECURRENCES, {})
    start = {
        **asdict(FIRST_PRODUCTS),
        "alone_seconds": FIRST_ALONE_SECONDS,
        **{f"share of {name}": 0.8 for name in names},
    }

    def parts(values: Mapping[str, float]) -> tuple[Rules, float, dict[str, float]]:
        rule = ProductRule(**{name: values[name] for name in asdict(FIRST_PRODUCTS)})
        shares = {name: values[f"share of {name}"] for name in names}
        return replace(first, products=rule), values["alone_seconds"], shares

    def loss(values: Mapping[str, float]) -> float:
        rules, alone, shares = parts(values)
        return mean_loss(
            [logs(g, replace(CARDS[g.card], compute_share=shares[g.card]), rules, alone) for g in groups]
        )

    rules, alone, shares = parts(search(loss, start))
    sheet = replace(rules.sheet, **sheet_shares(shares, groups, rules, alone))
    return Fitted(replace(rules, sheet=sheet), alone, shares)


def with_constants(rules: Rules, section: str, values: Mapping[str, float]) -> Rules:
    """Return the rules with other constants in one section; names that it does not have are left out."""
    old = getattr(rules, section)
    return replace(
        rules, **{section: replace(old, **{name: values[name] for name in asdict(old) if name in values})}
    )


def fit_rows(groups: Sequence[Group], fitted: Fitted) -> Fitted:
    """Fit what simple kernels reach of the bandwidth, and how often rows are read again."""
    shares = {"hbm_share": fitted.rules.sheet.hbm_share, "gddr_share": fitted.rules.sheet.gddr_share}

    def parts(values: Mapping[str, float]) -> Rules:
        return with_constants(with_constants(fitted.rules, "rows", values), "sheet", values)

    def loss(values: Mapping[str, float]) -> float:
        return mean_loss([logs(g, CARDS[g.card], parts(values), fitted.alone_seconds) for g in groups])

    found = search(loss, {**shares, **asdict(fitted.rules.rows)})
    return replace(fitted, rules=parts(found))


def fit_tensor_cores(groups: Sequence[Group], fitted: Fitted) -> Fitted:
    """Fit what tensor cores sustain: the best card's share, and the power of the one that reaches less."""
    shares: dict[str, float] = {}
    for group in groups:

        def loss(values: Mapping[str, float], group: Group = group) -> float:
            return mean_loss(
                [logs(group, replace(CARDS[group.card], compute_share=values["share"]), fitted.rules, 0.0)]
            )

        shares[group.card] = search(loss, {"share": 0.8})["share"]
    if not shares:
        return fitted
    best = max(shares.values())
    per_watt = {name: share * CARDS[name].float16 / CARDS[name].watts for name, share in shares.items()}
    sheet = replace(fitted.rules.sheet, tensor_share=best, tensor_flops_per_watt=max(per_watt.values()))
    return replace(fitted, rules=replace(fitted.rules, sheet=sheet), tensor_shares=shares)


def fit_section(section: str, groups: Sequence[Group], fitted: Fitted) -> Fitted:
    """Fit the constants of one rule; each card with the share of its peak that its products showed."""

    def card(group: Group) -> Card:
        shares = fitted.shares if group.precision == "float32" else fitted.tensor_shares
        return replace(CARDS[group.card], compute_share=shares[group.card])

    def loss(values: Mapping[str, float]) -> float:
        rules = with_constants(fitted.rules, section, values)
        return mean_loss([logs(g, card(g), rules, fitted.alone_seconds) for g in groups])

    found = search(loss, asdict(getattr(fitted.rules, section)))
    return replace(fitted, rules=with_constants(fitted.rules, section, found))


def sheet_shares(
    shares: Mapping[str, float], groups: Sequence[Group], rules: Rules, alone: float
) -> dict[str, float]:
    """Return what cards of a class reach, and what their power allows where they reach less."""
    wide = [share for name, share in shares.items() if has_wide_sms(CARDS[name])]
    narrow = {
        name: share
        for name, share in shares.items()
        if not has_wide_sms(CARDS[name]) and CARDS[name].generation != "pascal"
    }
    per_watt = {name: share * CARDS[name].float32 / CARDS[name].watts for name, share in shares.items()}
    best = max(narrow.values())
    if not any(CARDS[name].process_nm > 7 and share >= best for name, share in narrow.items()):
        best = max(best, _before_the_clock_falls(narrow, groups, rules, alone))
    limited = {name for name, share in narrow.items() if share < _LIMITED * best}
    old = {name for name in shares if CARDS[name].process_nm > 7}
    # A card that is not held back shows only what its process allows at least.
    at_12nm = max(per_watt[name] for name in (old & limited or old))
    at_7nm = [per_watt[name] for name in limited if CARDS[name].process_nm == 7]
    return {
        "share": best,
        "wide_share": mean(wide),
        "pascal_share": mean(share for name, share in shares.items() if CARDS[name].generation == "pascal"),
        "flops_per_watt": at_12nm,
        "flops_per_watt_7nm": max(at_7nm) if at_7nm else _between(per_watt, at_12nm),
    }


def _before_the_clock_falls(
    shares: Mapping[str, float], groups: Sequence[Group], rules: Rules, alone: float
) -> float:
    """Return the best share of cards that are all held back: their quickest tenth ran at the full clock."""
    best = 0.0
    for group in groups:
        if group.card in shares and group.kind != "gemm":
            card = replace(CARDS[group.card], compute_share=shares[group.card])
            off = logs(group, card, rules, alone)
            best = max(best, shares[group.card] * math.exp(float(np.quantile(off, 0.9))))
    return min(best, 1.0)


def _between(per_watt: Mapping[str, float], at_12nm: float) -> float:
    """Return FLOP/s per watt at 7 nm between 12 nm and the next process that was measured."""
    later = [(per_watt[name], CARDS[name].process_nm) for name in per_watt if CARDS[name].process_nm < 7]
    if not later:
        return at_12nm
    most, process = max(later)
    return float(at_12nm * (most / at_12nm) ** (math.log(12 / 7) / math.log(12 / process)))
