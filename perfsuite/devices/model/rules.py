"""The constants of the rules that predict kernel times, read from rules.toml; what each of them means.

All were fitted to measured kernels by `python -m benchmarks.modelled_gpu`, which also writes the file.
"""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cache
from importlib import resources
from typing import Any, Self


@dataclass(frozen=True)
class _Constants:
    @classmethod
    def from_table(cls, table: Mapping[str, float]) -> Self:
        return cls(**{item.name: table[item.name] for item in fields(cls)})


@dataclass(frozen=True)
class SheetRule(_Constants):
    """What cards sustain of their sheets."""

    share: float  # of the FP32 peak, where an SM has 64 lanes
    wide_share: float  # where it has 128: shared memory cannot feed them all
    pascal_share: float  # on Pascal, which has Maxwell's kernels
    tensor_share: float  # of the tensor cores' peak
    flops_per_watt: float  # FP32, at 12 and 16 nm
    flops_per_watt_7nm: float
    tensor_flops_per_watt: float  # at 12 nm
    hbm_share: float  # of the bandwidth, by simple kernels: HBM of Volta and later
    gddr_share: float  # other memory


@dataclass(frozen=True)
class ProductRule(_Constants):
    """Matrix products: whole waves of whole tiles."""

    narrow_64: float  # what a tile with a side of 64 reaches of one with 128
    narrow_32: float
    narrow_16: float
    short: float  # and if its longer side is 64; twice if it is 32
    batched_64: float  # of that, in a batch of products: cuBLAS chooses among fewer kernels
    batched_32: float
    prologue: float  # loading and storing a tile takes the time of this many steps along the contraction
    whole_waves: float  # 1: a started wave takes as long as a full one; 0: a part of it
    sharpness: float  # of the roofline's corner
    bandwidth_share: float  # of the bandwidth that products sustain
    long_contraction: float  # log2 of the length from which on rows lie too far apart for the TLB
    long_slope: float  # slower by this share each time the length doubles
    long_slope_pascal: float


@dataclass(frozen=True)
class RowRule(_Constants):
    """Kernels that move memory; softmax and norms fetch a row again if those in flight exceed the cache."""

    softmax_extra: float  # of the bytes are moved again
    softmax_low: float  # from this share of the cache on, growing up to the next
    softmax_high: float
    norm_extra: float
    norm_low: float
    norm_high: float


@dataclass(frozen=True)
class ConvolutionRule(_Constants):
    """Convolutions: what each way of cuDNN reaches of a product of the same sizes."""

    direct: float
    direct_by_input: float
    direct_by_input_strided: float
    direct_by_weight: float
    fused_winograd: float
    batched_winograd: float
    transform_share: float  # of a simple kernel's bandwidth, by the transforms of the batched form
    weight_share: float  # by those of the weights
    bandwidth_share: float  # by the others
    in_torch: float  # how much longer it takes than in DeepBench, which tries all ways
    tensor: float  # of the direct ways, on tensor cores
    depthwise_passes: float  # over the memory


@dataclass(frozen=True)
class RecurrenceRule(_Constants):
    """Recurrent layers: what a time step costs beside its product."""

    step_seconds: float  # gates, and what starts and ends a step
    backward_step_seconds: float
    by_weight: float  # what the products for the weights' gradients reach


@dataclass(frozen=True, eq=False)  # told apart by identity: predictions are cached by it
class Rules:
    """All rules, and the errors they had on cards that were left out of the fit."""

    sheet: SheetRule
    products: ProductRule
    rows: RowRule
    convolutions: ConvolutionRule
    recurrences: RecurrenceRule
    errors: Mapping[str, float]  # kind of kernel → median relative error on the worst card, left out

    @classmethod
    def from_tables(cls, tables: Mapping[str, Any]) -> Self:
        """Read what the file holds."""
        return cls(
            SheetRule.from_table(tables["sheet"]),
            ProductRule.from_table(tables["products"]),
            RowRule.from_table(tables["rows"]),
            ConvolutionRule.from_table(tables["convolutions"]),
            RecurrenceRule.from_table(tables["recurrences"]),
            dict(tables["errors"]),
        )


@cache
def shipped_rules() -> Rules:
    """Return the rules of this version, fitted on all measured cards."""
    text = resources.files("perfsuite.devices.model").joinpath("rules.toml").read_text("utf-8")
    return Rules.from_tables(tomllib.loads(text))
