"""The modelled card chooses as CUDA does where torch chooses by device, and computes the same values."""

import pytest
import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from perfsuite.devices.kernels import Launch
from tests.unit.devices.model.test_device import device, on_card  # noqa: F401  a fixture


def ops_of(device, step):  # noqa: F811
    """Return the names of what a step launches, in order."""
    window = device.start()
    step()
    window.mark()
    events = window.steps[0]
    window.close()
    return [event.kernel.op for event in events if isinstance(event, Launch)]


@pytest.mark.parametrize(
    ("expected", "dtype", "width", "given"),
    [
        ("_scaled_dot_product_efficient_attention", torch.float32, 16, {}),
        ("_scaled_dot_product_flash_attention", torch.float16, 16, {}),
        ("_scaled_dot_product_flash_attention", torch.bfloat16, 16, {"is_causal": True}),
        ("_scaled_dot_product_efficient_attention", torch.float16, 16, {"attn_mask": True}),
        ("_safe_softmax", torch.float32, 18, {}),  # plain: the rows are no multiple of 16 bytes
    ],
)
def test_attention_is_chosen_as_on_cuda(device, expected, dtype, width, given):  # noqa: F811
    """By type, mask and width; a user's own switches count as well."""
    parts = [on_card(2, 4, 8, width).to(dtype) for _ in range(3)]
    if "attn_mask" in given:
        given = {"attn_mask": on_card(8, 8) > 0}
    assert expected in ops_of(device, lambda: F.scaled_dot_product_attention(*parts, **given))


def test_attention_switched_off_is_not_chosen(device):  # noqa: F811
    """`sdpa_kernel` says which may be used."""
    parts = [on_card(2, 4, 8, 16).half() for _ in range(3)]
    with sdpa_kernel([SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]):
        found = ops_of(device, lambda: F.scaled_dot_product_attention(*parts))
    assert ["_scaled_dot_product_efficient_attention"] == found


@pytest.mark.parametrize("given", [{}, {"is_causal": True}, {"scale": 0.3}])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 3e-2)])
def test_attention_has_the_values_of_plain_attention(device, dtype, tolerance, given):  # noqa: F811
    """Forward and backward: a modelled card computes."""
    torch.manual_seed(0)
    parts = [torch.randn(2, 3, 5, 8).to("cpu:0", dtype).requires_grad_() for _ in range(3)]
    out = F.scaled_dot_product_attention(*parts, **given)
    found = (out, *torch.autograd.grad(out.square().sum(), parts))
    device.end_test()
    expected = torch.ops.aten._scaled_dot_product_attention_math(*parts, **given)[0]
    wanted = (expected, *torch.autograd.grad(expected.square().sum(), parts))
    for one, other in zip(wanted, found, strict=True):
        assert torch.allclose(one, other, atol=tolerance * float(one.detach().abs().max()))


@pytest.mark.parametrize(
    ("function", "kernels"),
    [
        (lambda x: F.rms_norm(x, [6], torch.arange(1.0, 7.0).to("cpu:0")), ["_fused_rms_norm"]),
        (F.logsigmoid, ["log_sigmoid_forward"]),
    ],
)
def test_what_is_one_kernel_on_cuda_has_the_values_of_the_cpu(device, function, kernels):  # noqa: F811
    torch.manual_seed(0)
    x = torch.randn(4, 6).to("cpu:0").requires_grad_()
    out = function(x)
    found = (out, *torch.autograd.grad(out.square().sum(), [x]))
    assert kernels == [name for name in ops_of(device, lambda: function(x)) if name in kernels]
    device.end_test()
    out = function(x)
    wanted = (out, *torch.autograd.grad(out.square().sum(), [x]))
    for one, other in zip(wanted, found, strict=True):
        assert torch.allclose(one, other, atol=1e-5)


def test_dropout_is_one_kernel_on_the_card_and_the_cpu_s_on_the_host(device):  # noqa: F811
    """And none where nothing is dropped."""
    x, host = on_card(8, 8), torch.ones(8, 8)
    assert ["native_dropout"] == ops_of(device, lambda: F.dropout(x, 0.1))
    assert [] == ops_of(device, lambda: F.dropout(x, 0.0))
    assert [] == ops_of(device, lambda: F.dropout(x, 0.1, training=False))
    assert [] == ops_of(device, lambda: F.dropout(host, 0.1))


def test_autocast_keeps_to_cuda_s_list(device):  # noqa: F811
    """A layer norm is computed in float32 there, in bfloat16 on the CPU."""
    x = on_card(4, 8).bfloat16()
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.float32 == F.layer_norm(x, [8]).dtype
        assert torch.float32 == x.softmax(-1).dtype
        assert torch.bfloat16 == F.layer_norm(torch.ones(4, 8, dtype=torch.bfloat16), [8]).dtype
    device.end_test()
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.bfloat16 == F.layer_norm(x, [8]).dtype


def test_gradients_are_written_in_place_into_fresh_zeros(device):  # noqa: F811
    """As torch does where no mode looks on: no second tensor, no check of positions."""
    table, index = on_card(10, 4).requires_grad_(), torch.zeros(3, dtype=torch.long).to("cpu:0")
    found = ops_of(device, lambda: torch.autograd.grad(table[index].sum(), [table]))
    assert "_index_put_impl_" in found
    assert "index_put" not in found
    (gradient,) = torch.autograd.grad(table[index].sum(), [table])
    assert [3.0] * 4 == gradient[0].tolist()
    assert 12.0 == float(gradient.sum())


class Doubled(torch.autograd.Function):
    """A user's own gradient that keeps the zeros it added to."""

    @staticmethod
    def forward(ctx, x):
        return 2 * x

    @staticmethod
    def backward(ctx, gradient):
        zeros = gradient.new_zeros(gradient.shape)
        index = torch.zeros(gradient.shape, dtype=torch.long).to("cpu:0")
        return zeros.scatter_add(0, index, gradient) + zeros


def test_a_users_own_gradient_keeps_its_zeros(device):  # noqa: F811
    """What is written in place for torch's gradients would be wrong for others'."""
    x = on_card(3, 2).requires_grad_()
    assert "scatter_add" in ops_of(device, lambda: torch.autograd.grad(Doubled.apply(x).sum(), [x]))
    (gradient,) = torch.autograd.grad(Doubled.apply(x).sum(), [x])
    assert [[3.0, 3.0], [0.0, 0.0], [0.0, 0.0]] == gradient.tolist()
