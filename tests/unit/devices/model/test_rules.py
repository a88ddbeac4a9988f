"""The rules of kernels by themselves: what must hold whatever their constants are."""

import dataclasses

import pytest

from perfsuite.devices.kernels import Kernel, KernelKind
from perfsuite.devices.model.cards import find_card
from perfsuite.devices.model.convolutions import ConvolutionSizes, convolution_seconds
from perfsuite.devices.model.products import product_seconds
from perfsuite.devices.model.recurrences import RecurrenceSizes, recurrence_seconds
from perfsuite.devices.model.roofline import sheet_seconds
from perfsuite.devices.model.rules import shipped_rules
from perfsuite.devices.model.sustained import compute_share, rates_of
from perfsuite.devices.problems import BY_INPUT, BY_WEIGHT, FORWARD

RULES = shipped_rules()
V100 = rates_of(find_card("v100"), RULES.sheet)


def convolution(way=FORWARD, kernel=3, stride=1, channels=256, on=V100):
    side = 28 // stride
    sizes = ConvolutionSizes(32, channels, channels, 28 * 28, side, side, kernel, kernel, stride**2, 1)
    return float(convolution_seconds(sizes, way, on, RULES.products, RULES.convolutions)), sizes


def test_arrays_and_numbers_give_the_same():
    """A fit evaluates all kernels at once, a prediction one."""
    problems = [(1, 512, 64, 256), (48, 196, 196, 64), (1, 16, 4096, 1024)]
    together = product_seconds(list(zip(*problems, strict=True)), V100, RULES.products)
    alone = [float(product_seconds(problem, V100, RULES.products)) for problem in problems]
    assert alone == pytest.approx(together.tolist())


def test_winograd_multiplies_less_than_a_direct_convolution():
    """3×3 with stride 1 takes clearly less than nine times a 1×1, which a direct one needs; 5×5 does not."""
    one, three, five = (convolution(kernel=side)[0] for side in (1, 3, 5))
    assert three < 0.6 * 9 * one
    assert five > 0.8 * 25 * one


@pytest.mark.parametrize("way", [FORWARD, BY_INPUT, BY_WEIGHT])
def test_tensor_cores_are_faster(way):
    """By less than the sheet says."""
    card = find_card("v100")
    fast = rates_of(card, RULES.sheet, "float16")
    direct, sizes = convolution(way, kernel=1)
    half = float(convolution_seconds(sizes, way, fast, RULES.products, RULES.convolutions, 2))
    assert 1.5 < direct / half < card.float16 / card.float32


def test_a_small_lstm_costs_tens_of_microseconds_a_step():
    """Measured on a V100: 44 µs with 512 units and a batch of 16."""
    sizes = RecurrenceSizes(25, 16, 0, 512, 4)
    took = float(recurrence_seconds(sizes, FORWARD, V100, RULES.products, RULES.recurrences))
    assert 35e-6 < took / 25 < 60e-6


def test_steps_of_a_recurrence_follow_each_other():
    """Twice the steps take twice as long, twice the batch does not."""

    def seconds(steps, batch):
        sizes = RecurrenceSizes(steps, batch, 512, 512, 3)
        return float(recurrence_seconds(sizes, FORWARD, V100, RULES.products, RULES.recurrences))

    assert seconds(200, 32) > 1.9 * seconds(100, 32)
    assert seconds(100, 64) < 1.5 * seconds(100, 32)


def test_a_kernel_of_each_kind_follows_its_rule():
    """The card's kernels carry their sizes; both gradients add up."""
    card = find_card("v100")
    forward, sizes = convolution()
    numbers = tuple(int(size) for size in sizes)
    kernel = Kernel("convolution", KernelKind.CONVOLUTION, 1.0, 1, 1, "float32", 1, (*numbers, 1))
    assert forward == pytest.approx(sheet_seconds(kernel, card))
    both = dataclasses.replace(kernel, op="convolution_backward", launches=2, problem=(*numbers, 6))
    assert convolution(BY_INPUT)[0] + convolution(BY_WEIGHT)[0] == pytest.approx(sheet_seconds(both, card))
    layer = Kernel(
        "_cudnn_rnn", KernelKind.RECURRENCE, 1.0, 1, 1, "float32", 51, (25, 16, 512, 512, 512, 4, 1, 0, 1)
    )
    one = sheet_seconds(layer, card)
    two = sheet_seconds(dataclasses.replace(layer, problem=(25, 16, 512, 512, 512, 4, 1, 1, 1)), card)
    assert 2 * one == pytest.approx(two)


def test_a_card_of_few_watts_sustains_less():
    """Also on its tensor cores; the emptier a kernel leaves its lanes, the less the limit counts."""
    t4, v100 = find_card("t4"), find_card("v100")
    for precision in ("float32", "float16"):
        assert compute_share(t4, RULES.sheet, precision) < 0.7 * compute_share(v100, RULES.sheet, precision)
    rates = rates_of(t4, RULES.sheet)
    assert rates.free_flops > 1.5 * rates.flops
    assert compute_share(find_card("h100"), RULES.sheet) == RULES.sheet.wide_share


def test_a_step_back_through_a_recurrence_costs_more_than_its_product():
    """As many microseconds for each step as its rule says, whatever the sizes are."""
    sizes = RecurrenceSizes(100, 16, 0, 512, 4)
    free = dataclasses.replace(RULES.recurrences, backward_step_seconds=0.0)
    took, bare = (
        float(recurrence_seconds(sizes, BY_INPUT, V100, RULES.products, rule))
        for rule in (RULES.recurrences, free)
    )
    assert 100 * RULES.recurrences.backward_step_seconds == pytest.approx(took - bare)


@pytest.mark.parametrize("form", ["fused_winograd", "batched_winograd"])
@pytest.mark.parametrize("way", [FORWARD, BY_INPUT])
def test_both_forms_of_winograd_are_tried(form, way):
    """Each is taken where it is good and the other useless; the shipped constants leave one none."""
    useless = {"fused_winograd": 1e-6, "batched_winograd": 1e-6}

    def seconds(**quality):
        rule = dataclasses.replace(RULES.convolutions, **useless | quality)
        sizes = ConvolutionSizes(32, 256, 256, 28 * 28, 28, 28, 3, 3, 1, 1)
        return float(convolution_seconds(sizes, way, V100, RULES.products, rule))

    assert seconds(**{form: 0.9}) < 0.7 * seconds()


def test_a_depthwise_convolution_moves_memory():
    """It multiplies next to nothing: twice the taps take no longer but for their weights."""

    def seconds(kernel):
        sizes = ConvolutionSizes(32, 256, 256, 28 * 28, 28, 28, kernel, kernel, 1, 256)
        return float(convolution_seconds(sizes, FORWARD, V100, RULES.products, RULES.convolutions))

    assert seconds(7) < 1.01 * seconds(3)


def test_batch_norm_reads_its_input_once_more_than_a_copy():
    """For the statistics; its gradient for those of the weights."""
    card = find_card("v100")

    def seconds(op):
        kernel = Kernel(op, KernelKind.ELEMENTWISE, 0.0, 2**28, 2**28, "float32")
        return sheet_seconds(kernel, card)

    assert 1.5 == pytest.approx(seconds("native_batch_norm") / seconds("clone"), rel=0.02)
    assert 5 / 3 == pytest.approx(seconds("native_batch_norm_backward") / seconds("clone"), rel=0.02)
