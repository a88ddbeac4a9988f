"""Sizes of convolutions and recurrent layers, read off the calls torch makes."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from perfsuite.devices.kernels import KernelKind
from perfsuite.devices.operators import kernel_of, tensors_of
from perfsuite.devices.problems import BY_INPUT, BY_WEIGHT, FORWARD, recurrence_problem, ways_of


class Recorded(TorchDispatchMode):
    """The kernels of the calls that run inside."""

    def __init__(self):
        super().__init__()
        self.kernels = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        outputs = tensors_of(result if isinstance(result, tuple) else (result,))
        kernel = kernel_of(func, tensors_of((*args,)), outputs, args, kwargs or {})
        if kernel.kind in (KernelKind.CONVOLUTION, KernelKind.RECURRENCE):
            self.kernels.append(kernel)
        return result


def recorded(layer, *shape):
    x = torch.rand(*shape, requires_grad=True)
    with Recorded() as seen:
        result = layer(x)
        (result[0] if isinstance(result, tuple) else result).sum().backward()
    return [kernel.problem for kernel in seen.kernels]


def test_a_convolution_and_its_gradients():
    """Channels, pixels in and out, taps and stride; both gradients in one call."""
    forward, backward = recorded(torch.nn.Conv2d(6, 8, 3, stride=2, padding=1, groups=2), 5, 6, 16, 12)
    sizes = (5, 6, 8, 16 * 12, 8, 6, 3, 3, 4, 2)
    assert (*sizes, 1 << FORWARD) == forward
    assert sizes == backward[:-1]
    assert [BY_INPUT, BY_WEIGHT] == ways_of(backward[-1])


def test_a_convolution_over_a_sequence_has_one_row():
    """Height and kernel height are 1."""
    forward, _ = recorded(torch.nn.Conv1d(6, 8, 5), 4, 6, 20)
    assert (4, 6, 8, 20, 1, 16, 1, 5, 1, 1, 1 << FORWARD) == forward


def test_a_transposed_convolution_is_the_gradient_of_a_plain_one():
    """Its forward pass is the other's gradient by input."""
    forward, backward = recorded(torch.nn.ConvTranspose2d(8, 6, 4, stride=2), 5, 8, 7, 7)
    assert (5, 6, 8, 16 * 16, 7, 7, 4, 4, 4, 1, 1 << BY_INPUT) == forward
    assert [FORWARD, BY_WEIGHT] == ways_of(backward[-1])


def test_a_recurrent_layer():
    """Steps, batch, inputs, hidden and gates, by layer as oneDNN calls it."""
    first, second, *backward = recorded(torch.nn.LSTM(10, 16, num_layers=2), 7, 3, 10)
    assert (7, 3, 10, 10, 16, 4, 1, 0, 1 << FORWARD) == first
    assert (7, 3, 16, 16, 16, 4, 1, 0, 1 << FORWARD) == second
    assert [[BY_INPUT, BY_WEIGHT]] * 2 == [ways_of(problem[-1]) for problem in backward]


@pytest.mark.parametrize(("layers", "directions"), [(1, 1), (2, 1), (1, 2), (3, 2)])
def test_cudnn_takes_all_layers_at_once(layers, directions):
    """The first layer has other inputs than the rest."""
    weights = []
    for layer in range(layers):
        inputs = 10 if layer == 0 else 16 * directions
        shapes = ((48, inputs), (48, 16), (48,), (48,))
        weights += [torch.empty(shape) for _ in range(directions) for shape in shapes]
    state = torch.empty(layers * directions, 3, 16)
    found = recurrence_problem("_cudnn_rnn", (torch.empty(3, 7, 10), weights, 4, None, state))
    later = 10 if layers == 1 else 16 * directions
    assert (7, 3, 10, later, 16, 3, directions, (layers - 1) * directions, 1 << FORWARD) == found


def test_a_packed_sequence_has_as_many_steps_as_batches():
    """Four sequences of 10, 8, 5 and 2 steps are 25 rows in 10 steps."""
    weights = [torch.empty(shape) for shape in ((192, 32), (192, 48), (192,), (192,))]
    sizes = [4, 4, 3, 3, 3, 2, 2, 2, 1, 1]
    args = (
        torch.empty(25, 32),
        weights,
        4,
        None,
        torch.empty(1, 4, 48),
        None,
        2,
        48,
        0,
        1,
        False,
        0.0,
        True,
        False,
    )
    assert (10, 2) == recurrence_problem("_cudnn_rnn", (*args, sizes, None))[:2]
    assert (10, 2) == recurrence_problem("_cudnn_rnn_backward", (*args, sizes, None, [True] * 4))[:2]
