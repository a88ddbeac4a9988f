"""Stacked weights in C are the loop and what vmap computes of them: outputs, gradients, dropout."""

import pytest
import torch
from torch import Tensor, nn

from social_xlstm.config import ModelConfig, XLSTMConfig
from social_xlstm.model.cpu import library, operators
from social_xlstm.model.encoder import build_encoder
from social_xlstm.model.stacked import StackedEncoder, stack_weights

pytestmark = pytest.mark.skipif(library.library() is None, reason="no C library on this machine")
MIXED = XLSTMConfig(16, 3, (1,), dropout=0.0)


def encoders(xlstm: XLSTMConfig = MIXED, n: int = 5) -> tuple[nn.Module, nn.Module]:
    """The loop and the stacked encoder with the same random weights."""
    torch.manual_seed(0)
    loop, stacked = (build_encoder(ModelConfig(xlstm, kind), n, 2) for kind in ("per_vd", "stacked"))
    with torch.no_grad():
        for parameter in loop.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    stacked.load_state_dict(stack_weights(loop.state_dict()))
    return loop, stacked


def run(encoder: nn.Module, x: Tensor, identity: Tensor | None, upstream: Tensor) -> dict[str, Tensor]:
    """The output and all gradients, the windows' and the embeddings' too."""
    inputs = [tensor.detach().requires_grad_() for tensor in (x, identity) if tensor is not None]
    encoder.zero_grad(set_to_none=True)
    output = encoder(*inputs)
    output.backward(upstream)
    found = {name: parameter.grad for name, parameter in encoder.named_parameters()}
    if not isinstance(encoder, StackedEncoder):
        found = stack_weights(found)
    of_inputs = {f"input {place}": tensor.grad for place, tensor in enumerate(inputs)}
    return {"output": output.detach()} | of_inputs | found


def by_vmap(encoder: nn.Module, *given: Tensor | None) -> dict[str, Tensor]:
    """The same without the library."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(StackedEncoder, "_runs_in_c", lambda *_: False)
        return run(encoder, *given)


def far(expected: dict[str, Tensor], actual: dict[str, Tensor]) -> dict[str, float]:
    """What is further off than 1e-5 (the output) or 1e-4 (gradients), relative to what is larger than one."""
    assert expected.keys() == actual.keys()
    found = {}
    for name, tensor in expected.items():
        assert tensor.shape == actual[name].shape, name
        off = ((tensor - actual[name]).abs().max() / tensor.abs().max().clamp(min=1.0)).item()
        if not off <= (1e-5 if name == "output" else 1e-4):
            found[name] = off
    return found


@pytest.fixture
def called(monkeypatch) -> list[str]:
    """The C functions called, in order."""
    names, call = [], operators._call
    monkeypatch.setattr(operators, "_call", lambda name, *rest: (names.append(name), call(name, *rest)))
    return names


@pytest.mark.parametrize("with_identity", [False, True])
@pytest.mark.parametrize("threads", [1, 2, 7])
@pytest.mark.parametrize("width", [12, 16, 40])
def test_stacked_weights_in_c_are_the_loop_and_vmap(with_identity, threads, width):
    """More groups than threads or fewer, whole vectors or not, strided windows and upstream gradients."""
    loop, stacked = encoders(XLSTMConfig(width, 3, (1,), dropout=0.0))
    x = torch.randn(6, 5, 3, 2).permute(2, 1, 0, 3)
    identity = torch.randn(width, 5).t() if with_identity else None
    upstream = torch.randn(5, 3, 1, width).transpose(0, 1).expand(3, 5, 6, width)
    expected = run(loop, x, identity, upstream)
    vmapped = by_vmap(stacked, x, identity, upstream)
    torch.set_num_threads(threads)
    try:
        actual = run(stacked, x, identity, upstream)
    finally:
        torch.set_num_threads(1)
    assert {} == far(expected, actual)
    assert {} == far(vmapped, actual)


def test_every_block_is_one_call_for_all_detectors(called):
    """Not one per detector; under a transform, in float64 and for long windows none."""
    _, stacked = encoders(XLSTMConfig(16, 2, (1,), dropout=0.0, context_length=200))
    stacked(torch.randn(3, 5, 6, 2)).sum().backward()
    forward = ["mlstm_forward", "slstm_forward", "ffn_forward"]
    assert [*forward, "ffn_backward", "slstm_backward", "mlstm_backward"] == called
    called.clear()
    stacked(torch.randn(1, 5, operators._MOST_STEPS + 1, 2))
    torch.func.vmap(stacked)(torch.randn(2, 3, 5, 6, 2))
    with torch.autocast("cpu"):
        stacked(torch.randn(3, 5, 6, 2))
    stacked.double()(torch.randn(3, 5, 6, 2, dtype=torch.float64))
    assert [] == called


def test_any_number_of_threads_gives_the_same_bits():
    """Every group is summed by one thread, in the order of its rows."""
    _, stacked = encoders()
    given = torch.randn(3, 5, 6, 2), None, torch.randn(3, 5, 6, 16)
    one = run(stacked, *given)
    torch.set_num_threads(2)
    try:
        two = run(stacked, *given)
    finally:
        torch.set_num_threads(1)
    assert all(torch.equal(one[name], two[name]) for name in one)


@pytest.mark.parametrize("slstm_at", [(), (0,)])
def test_dropout_draws_what_it_drew_under_vmap(slstm_at):
    """The same seed drops the same channels; without training nothing is dropped."""
    _, stacked = encoders(XLSTMConfig(16, 1, slstm_at, dropout=0.3))
    given = torch.randn(3, 5, 6, 2), None, torch.randn(3, 5, 6, 16)
    torch.manual_seed(7)
    expected = by_vmap(stacked, *given)
    torch.manual_seed(7)
    assert {} == far(expected, run(stacked, *given))
    stacked.eval()
    assert {} == far(by_vmap(stacked, *given), run(stacked, *given))


def test_a_nan_stays_with_its_detector():
    """Neither the others' states nor their weights' gradients see it."""
    _, stacked = encoders()
    x = torch.randn(3, 5, 6, 2)
    x[1, 2, 3, 0] = torch.nan
    found = run(stacked, x, None, torch.randn(3, 5, 6, 16))
    assert found.pop("output")[:, [0, 1, 3, 4]].isfinite().all()
    del found["input 0"]
    for name, gradient in found.items():
        assert gradient[2].isnan().any(), name
        assert gradient[[0, 1, 3, 4]].isfinite().all(), name


def test_frozen_weights_get_no_gradient():
    """The others' gradients do not depend on which are frozen."""
    _, stacked = encoders()
    given = torch.randn(3, 5, 6, 2), None, torch.randn(3, 5, 6, 16)
    expected = run(stacked, *given)
    frozen = "encoder.stack.blocks.0.xlstm.proj_up.weight"
    stacked.get_parameter(frozen).requires_grad_(False)
    actual = run(stacked, *given)
    assert actual.pop(frozen) is None
    assert all(torch.equal(expected[name], gradient) for name, gradient in actual.items())
