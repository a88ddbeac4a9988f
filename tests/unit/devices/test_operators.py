"""Cost rules of operators: recurrent layers, whose weights each backend has in another form."""

import pytest
import torch

from perfsuite.devices.kernels import KernelKind
from perfsuite.devices.operators import kernel_of, tensors_of

TIME, BATCH, INPUTS, HIDDEN = 12, 8, 16, 32
WEIGHTS = [
    torch.ones(4 * HIDDEN, INPUTS),
    torch.ones(4 * HIDDEN, HIDDEN),
    torch.ones(4 * HIDDEN),
    torch.ones(4 * HIDDEN),
]
FLOPS = 2.0 * TIME * BATCH * 4 * HIDDEN * (INPUTS + HIDDEN)


def cost(func, sequence, *weights):
    args = (sequence, *weights)
    return kernel_of(func, tensors_of(args), [torch.empty(*sequence.shape[:-1], HIDDEN)], args)


@pytest.mark.parametrize("shape", [(TIME, BATCH, INPUTS), (BATCH, TIME, INPUTS), (TIME * BATCH, INPUTS)])
def test_cudnn_has_its_weights_in_a_list(shape):
    """Also with the batch first, and with packed sequences, which have one dimension less."""
    kernel = cost(torch.ops.aten._cudnn_rnn.default, torch.ones(shape), WEIGHTS)
    assert (KernelKind.RECURRENCE, FLOPS) == (kernel.kind, kernel.flops)
    backward = cost(torch.ops.aten._cudnn_rnn_backward.default, torch.ones(shape), WEIGHTS)
    assert 2 * FLOPS == backward.flops


def test_all_layers_of_a_list_count():
    """Two layers take twice the products, if the second is as wide as the first."""
    sequence = torch.ones(TIME, BATCH, INPUTS)
    kernel = cost(torch.ops.aten._cudnn_rnn.default, sequence, WEIGHTS * 2)
    assert 2 * FLOPS == kernel.flops


def test_onednn_has_its_weights_one_by_one():
    """Two matrices and two biases, of one layer."""
    kernel = cost(torch.ops.aten.mkldnn_rnn_layer.default, torch.ones(TIME, BATCH, INPUTS), *WEIGHTS)
    assert FLOPS == kernel.flops
