"""How long convolutions take: the best of the ways cuDNN knows, forward and for both gradients.

A direct convolution is one product over all pixels (implicit GEMM). Winograd's form of a 3×3 convolution
multiplies less: by 2.25 in one kernel, for tiles of 2×2 pixels, or by 4 in batches of products, for tiles of
4×4, with two more passes over memory. Tensor cores are only used for direct ones.
"""

from typing import Any, NamedTuple

import numpy as np

from perfsuite.devices.model.products import corner, tiled_seconds
from perfsuite.devices.model.rules import ConvolutionRule, ProductRule
from perfsuite.devices.model.sustained import Rates
from perfsuite.devices.problems import BY_INPUT, BY_WEIGHT, FORWARD

_SMALL_TILE, _SMALL_GAIN = 2, 2.25  # pixels of a side, fewer multiplications
_LARGE_TILE, _LARGE_PRODUCTS = 4, 36  # pixels of a side, products in the batch


class ConvolutionSizes(NamedTuple):
    """The sizes of convolutions: numbers, or an array for each."""

    images: Any
    in_channels: Any
    out_channels: Any
    in_pixels: Any
    out_height: Any
    out_width: Any
    kernel_height: Any
    kernel_width: Any
    stride: Any  # both directions together: 4 where every second pixel of either is taken
    groups: Any

    @property
    def out_pixels(self) -> Any:
        """Return the pixels of an image that comes out."""
        return self.out_height * self.out_width

    @property
    def taps(self) -> Any:
        """Return the weights of a channel pair."""
        return self.kernel_height * self.kernel_width

    @property
    def flops(self) -> Any:
        """Return the operations of one direct pass."""
        pairs = self.in_channels * self.out_channels / self.groups
        return 2.0 * self.images * self.out_pixels * self.taps * pairs

    @property
    def elements(self) -> Any:
        """Return the numbers one pass reads and writes."""
        weights = self.in_channels * self.out_channels / self.groups * self.taps
        return (
            self.images * (self.in_channels * self.in_pixels + self.out_channels * self.out_pixels) + weights
        )


def convolution_seconds(  # noqa: PLR0917
    sizes: ConvolutionSizes,
    way: int,
    on: Rates,
    products: ProductRule,
    rule: ConvolutionRule,
    element_bytes: int = 4,
    is_bare: bool = False,
) -> Any:
    """Return the seconds of a convolution: forward, or one of its gradients; bare: without torch."""
    sizes = ConvolutionSizes(*(np.asarray(size, float) for size in sizes))
    moved = sizes.elements * element_bytes / (on.simple_bandwidth * rule.bandwidth_share)
    direct = corner(_direct(sizes, way, on, products, rule), moved, products.sharpness)
    if not on.has_tensor_cores:
        fits = (sizes.taps == 9) & (sizes.kernel_height == 3) & (sizes.stride == 1) & (sizes.groups == 1)
        large = _batched_winograd(sizes, way, on, products, rule)
        direct = np.where(fits, np.minimum(direct, large), direct)
        if way != BY_WEIGHT:
            small = corner(_fused_winograd(sizes, way, on, products, rule), moved, products.sharpness)
            direct = np.where(fits, np.minimum(direct, small), direct)
    is_depthwise = (sizes.groups > 1) & (sizes.groups == sizes.in_channels)
    direct = direct if is_bare else rule.in_torch * direct
    return np.where(is_depthwise, rule.depthwise_passes * moved, direct) + on.start_seconds


def _direct(
    sizes: ConvolutionSizes,
    way: int,
    on: Rates,
    products: ProductRule,
    rule: ConvolutionRule,
) -> Any:
    """Return the compute time of one product over all pixels; every group is one of a batch."""
    into, out = sizes.in_channels / sizes.groups, sizes.out_channels / sizes.groups
    rows = sizes.images * sizes.out_pixels
    quality: Any
    if way == FORWARD:
        problem, quality = (sizes.groups, rows, out, into * sizes.taps), rule.direct
    elif way == BY_INPUT:
        # Each stride has its own set of taps; together they are those of the forward pass.
        rows_in = sizes.images * sizes.in_pixels
        problem = (sizes.groups, rows_in, into, out * sizes.taps / sizes.stride)
        quality = np.where(sizes.stride > 1, rule.direct_by_input_strided, rule.direct_by_input)
    else:
        problem, quality = (sizes.groups, out, into * sizes.taps, rows), rule.direct_by_weight
    if on.has_tensor_cores:
        quality = quality * rule.tensor
    if way == BY_WEIGHT:  # many pixels, few weights: parts are added up, at the clock of a product
        return tiled_seconds(problem, on, products) / quality
    return tiled_seconds(problem, on, products, quality, is_plain=True)


def _fused_winograd(
    sizes: ConvolutionSizes, way: int, on: Rates, products: ProductRule, rule: ConvolutionRule
) -> Any:
    """Return the compute time of the 2×2 form, a product over whole tiles of pixels."""
    into, out, pixels = _channels_and_pixels(sizes, way, _SMALL_TILE)
    problem = (1, sizes.images * pixels, out, into * sizes.taps / _SMALL_GAIN)
    return tiled_seconds(problem, on, products, rule.fused_winograd, is_plain=True)


def _batched_winograd(
    sizes: ConvolutionSizes, way: int, on: Rates, products: ProductRule, rule: ConvolutionRule
) -> Any:
    """Return the time of the 4×4 form: transform, 36 products, transform back."""
    into, out, pixels = _channels_and_pixels(sizes, way, _LARGE_TILE)
    tiles = sizes.images * pixels / _LARGE_TILE**2
    problem = (_LARGE_PRODUCTS, tiles, out, into) if way != BY_WEIGHT else (_LARGE_PRODUCTS, into, out, tiles)
    images = sizes.elements + 2 * _LARGE_PRODUCTS * tiles * (into + out)
    weights = 2 * _LARGE_PRODUCTS * into * out
    moved = 4 * (images / rule.transform_share + weights / rule.weight_share) / on.simple_bandwidth
    return tiled_seconds(problem, on, products, rule.batched_winograd) + moved + 3 * on.start_seconds


def _channels_and_pixels(sizes: ConvolutionSizes, way: int, side: int) -> tuple[Any, Any, Any]:
    """Return channels in and out of a pass, and an image's pixels in whole tiles."""
    pixels = side * np.ceil(sizes.out_height / side) * side * np.ceil(sizes.out_width / side)
    if way == BY_INPUT:
        return sizes.out_channels, sizes.in_channels, pixels
    return sizes.in_channels, sizes.out_channels, pixels
