"""Encoders over many detectors differ in speed and memory, not in what they compute."""

import pytest
import torch
from torch import Tensor, nn

from social_xlstm.config import ModelConfig, XLSTMConfig
from social_xlstm.errors import InputError
from social_xlstm.model.encoder import build_encoder
from social_xlstm.model.sequence_encoder import SequenceEncoder
from social_xlstm.model.stacked import stack_weights, unstack_weights
from tests.model.live_bytes import LiveBytes
from tests.model.sync_counter import Launches

SMALL = XLSTMConfig(8, 2, (1,), num_heads=2, dropout=0.0)


def build(kind: str, n: int = 4, *, cell: str = "fast", group_size: int = 3, xlstm=SMALL) -> nn.Module:
    torch.manual_seed(0)
    return build_encoder(ModelConfig(xlstm, kind, cell, group_size), n, 2)


def windows(n: int = 4, batch: int = 3, steps: int = 6) -> Tensor:
    return torch.randn(batch, n, steps, 2, generator=torch.Generator().manual_seed(1))


def gradients(module: nn.Module, x: Tensor, identity: Tensor | None = None) -> dict[str, Tensor]:
    module.zero_grad()
    module(x, identity).square().sum().backward()
    return {name: parameter.grad.clone() for name, parameter in module.named_parameters()}


def close(expected: Tensor, actual: Tensor, tolerance: float = 1e-4) -> bool:
    scale = expected.abs().max().clamp(min=1.0)
    return expected.shape == actual.shape and ((expected - actual).abs().max() / scale).item() <= tolerance


def count(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


@pytest.mark.parametrize("cell", ["package", "sync_free", "fast"])
def test_the_reference_encoder_has_its_published_size(cell):
    """Linear(3→128), six blocks, the last norm and Linear(128→3): 654,883 parameters."""
    encoder = SequenceEncoder(XLSTMConfig(), cell, 3, out_features=3)
    assert 654_883 == count(encoder)
    assert [108_032 if at in (1, 3) else 109_448 for at in range(6)] == [
        count(b) for b in encoder.stack.blocks
    ]
    assert [512, 128, 387] == [
        count(encoder.embed),
        count(encoder.stack.post_blocks_norm),
        count(encoder.project),
    ]
    assert (5, 12, 3) == encoder(torch.randn(5, 12, 3)).shape


def test_lifted_features_are_dropped_out():
    """Dropout acts before the stack, also where the stack itself has none."""
    encoder, x = SequenceEncoder(XLSTMConfig(8, 1, dropout=0.5), "lstm", 2), torch.randn(3, 6, 2)
    assert not torch.equal(encoder(x), encoder(x))
    encoder.eval()
    assert torch.equal(encoder(x), encoder(x))


def test_weights_per_detector_multiply_and_shared_ones_do_not():
    """N encoders have N times the weights of one; shared and grouped have one."""
    one = count(build("shared"))
    expected = {"shared": one, "grouped": one, "shared_heads": one, "per_vd": 4 * one, "stacked": 4 * one}
    assert expected == {kind: count(build(kind)) for kind in expected}


@pytest.mark.parametrize("cell", ["package", "sync_free", "fast", "lstm"])
@pytest.mark.parametrize("with_identity", [False, True])
def test_shared_is_the_loop_with_tied_weights(cell, with_identity):
    """One large batch gives the loop's states, loss and gradients, summed over the tied copies."""
    shared, loop = build("shared", cell=cell), build("per_vd", cell=cell)
    for member in loop.encoders:
        member.load_state_dict(shared.encoder.state_dict())
    x, identity = windows(), torch.randn(4, 8) if with_identity else None
    assert close(loop(x, identity), shared(x, identity), 1e-5)
    expected, actual = gradients(loop, x, identity), gradients(shared, x, identity)
    for name, gradient in actual.items():
        tied = sum(expected[f"encoders.{n}.{name.removeprefix('encoder.')}"] for n in range(4))
        # Each is within 1e-4 of float64: beside an upstream gradient of 200 small ones are rounding.
        assert close(tied, gradient, 2e-4), name


@pytest.mark.parametrize("cell", ["package", "sync_free", "fast", "lstm"])
@pytest.mark.parametrize("group_size", [1, 3, 4, 99])
def test_groups_do_not_change_the_result(cell, group_size):
    """Any group size, also one that does not divide N, gives the shared encoder's states and gradients."""
    shared, grouped = build("shared", cell=cell), build("grouped", cell=cell, group_size=group_size)
    x, identity = windows(), torch.randn(4, 8)
    assert close(shared(x, identity), grouped(x, identity), 1e-5)
    expected, actual = gradients(shared, x, identity), gradients(grouped, x, identity)
    assert all(close(expected[name], actual[name]) for name in expected)


def test_groups_drop_out_alike_in_both_passes():
    """The recomputation in the backward pass uses the forward pass's dropout, or gradients would be wrong."""
    noisy = XLSTMConfig(8, 1, (0,), num_heads=2, dropout=0.5)
    encoder, x = build("grouped", xlstm=noisy), windows()
    torch.manual_seed(5)
    actual = gradients(encoder, x)
    torch.manual_seed(5)
    plain = torch.cat(
        [encoder.encoder(g.flatten(0, 1)).unflatten(0, g.shape[:2]) for g in x.split(3, dim=1)], 1
    )
    encoder.zero_grad()
    plain.square().sum().backward()
    assert all(close(p.grad, actual[name], 1e-5) for name, p in encoder.named_parameters())


@pytest.mark.parametrize("cell", ["sync_free", "fast", "lstm"])
@pytest.mark.parametrize("with_identity", [False, True])
def test_stacked_weights_are_the_loop(cell, with_identity):
    """Independent weights computed at once give the loop's states and gradients."""
    # In float64: the norm at the end leaves gradients of rounding's size in float32.
    loop, stacked = build("per_vd", cell=cell).double(), build("stacked", cell=cell).double()
    stacked.load_state_dict(stack_weights(loop.state_dict()))
    x, identity = windows().double(), torch.randn(4, 8, dtype=torch.float64) if with_identity else None
    assert close(loop(x, identity), stacked(x, identity), 1e-12)
    expected, actual = stack_weights(gradients(loop, x, identity)), gradients(stacked, x, identity)
    assert expected.keys() == actual.keys()
    assert all(close(expected[name], actual[name], 1e-10) for name in expected)


@pytest.mark.parametrize("cell", ["sync_free", "fast", "lstm"])
def test_weights_convert_there_and_back(cell):
    """per_vd → stacked → per_vd is the identity, and loads strictly."""
    weights = build("per_vd", cell=cell).state_dict()
    back = unstack_weights(stack_weights(weights))
    assert weights.keys() == back.keys()
    assert all(torch.equal(weights[name], back[name]) for name in weights)
    build("per_vd", cell=cell).load_state_dict(back, strict=True)


def test_stacked_members_start_different():
    """Independent weights are drawn independently."""
    weight = build("stacked").encoder.embed.weight
    assert 4 == len({tuple(member.flatten().tolist()) for member in weight})


def test_stacked_dropout_differs_between_detectors():
    """Detectors with equal weights and inputs are dropped out differently, as in the loop."""
    encoder = build("stacked", xlstm=XLSTMConfig(8, 1, (0,), num_heads=2, dropout=0.5))
    with torch.no_grad():
        for parameter in encoder.parameters():
            parameter.copy_(parameter[:1].expand_as(parameter))
    x = windows(1).expand(-1, 4, -1, -1)
    first, second, *_ = encoder(x).unbind(1)
    assert not torch.allclose(first, second)
    first, second, *_ = encoder.eval()(x).unbind(1)
    assert torch.allclose(first, second, atol=1e-6)


@pytest.mark.parametrize("kind", ["shared", "shared_heads", "stacked"])
def test_launches_do_not_grow_with_the_detectors(kind):
    """Forward and backward of vectorized encoders launch as many operations for 12 detectors as for 3."""
    assert launches(kind, 3) == launches(kind, 12)


def test_launches_of_the_loop_grow_with_the_detectors():
    """The loop launches everything once per detector: four times the detectors, about four times as much."""
    assert launches("per_vd", 12) == pytest.approx(4 * launches("per_vd", 3), rel=0.05)
    assert launches("shared", 12) < launches("per_vd", 12) / 8


def launches(kind: str, n: int) -> int:
    encoder = build(kind, n)
    with Launches() as counter:
        encoder(windows(n)).square().sum().backward()
    return counter.count


def test_memory_of_groups_is_bounded_by_the_group():
    """Groups of 2 need far less than all 16 at once, and more detectors add little but their results."""

    def peak(kind: str, n: int) -> int:
        encoder, x = build(kind, n, group_size=2), windows(n)
        gradients(encoder, x)  # gradients exist from here on, so they do not count
        with LiveBytes() as memory:
            encoder(x)[:, :, -1].square().sum().backward()
        return memory.peak

    shared, grouped = (peak(kind, 16) - peak(kind, 8) for kind in ("shared", "grouped"))
    assert peak("grouped", 16) < peak("shared", 16) / 3
    assert grouped < shared / 8


def test_without_gradients_groups_are_not_recomputed():
    """Evaluation runs each group once."""
    encoder = build("grouped", group_size=2)
    calls = []
    encoder.encoder.register_forward_hook(lambda *_: calls.append(1))
    with torch.no_grad():
        encoder(windows())
    assert 2 == len(calls)


@pytest.mark.parametrize(
    ("kind", "cell", "message"),
    [("stacked", "package", "model.cell: fast"), ("pairwise", "sync_free", "choose per_vd")],
)
def test_impossible_encoders_are_refused(kind, cell, message):
    """The message names what to choose instead."""
    with pytest.raises(InputError, match=message):
        build(kind, cell=cell)


def test_a_group_of_nothing_is_refused():
    """group_size starts at one."""
    with pytest.raises(InputError, match="group_size is 0"):
        build("grouped", group_size=0)


@pytest.mark.parametrize("kind", ["per_vd", "grouped", "shared", "stacked"])
def test_windows_beyond_the_context_are_refused(kind):
    """A window longer than context_length names the key to raise."""
    with pytest.raises(InputError, match="context_length is 12;"):
        build(kind)(windows(steps=13))
    assert (3, 4, 13, 8) == build(kind, cell="lstm")(windows(steps=13)).shape
