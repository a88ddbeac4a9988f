"""The whole model: every parameter is there, learns, and the pieces are wired as said."""

import itertools
import math

import pytest
import torch
import torch.nn.functional as F

from social_xlstm.config import ModelConfig, PoolingConfig, XLSTMConfig
from social_xlstm.errors import InputError
from social_xlstm.model.social_xlstm import SocialXLSTM

ENCODERS = ("per_vd", "grouped", "shared", "shared_heads", "stacked")
CELLS = ("package", "sync_free", "fast", "lstm")
OFF = PoolingConfig(enabled=False)
OPTIONS = {
    "plain": ({}, PoolingConfig()),
    "no pooling": ({}, OFF),
    "embedding": ({"detector_embedding": True}, PoolingConfig()),
    "attention": ({"attention_readout": True}, PoolingConfig()),
    "gate": ({"context_gate": True}, PoolingConfig()),
    "residual": ({"residual": True}, OFF),
    "max": ({}, PoolingConfig(pool_type="max")),
    "learnt": ({}, PoolingConfig(learnable=True)),
    "learnt sparse": ({}, PoolingConfig(learnable=True, sparse=True, kernel="exponential")),
}
POSITIONS = torch.tensor([[0.0, 0.0], [300.0, 0.0], [0.0, 900.0], [1500.0, 200.0]])


def build(
    options=None, pooling=None, *, encoder="shared", cell="fast", dropout=0.1, **changes
) -> SocialXLSTM:
    torch.manual_seed(0)
    xlstm = XLSTMConfig(8, 2, (1,), num_heads=2, dropout=dropout)
    arguments = {"n_detectors": 4, "n_features": 2, "prediction_length": 3, "positions_xy": POSITIONS}
    model = ModelConfig(xlstm, encoder, cell, group_size=3, **(options or {}))
    return SocialXLSTM(model, pooling or PoolingConfig(), **{**arguments, **changes})


@pytest.mark.parametrize("option", OPTIONS)
@pytest.mark.parametrize(
    ("encoder", "cell"),
    [pair for pair in itertools.product(ENCODERS, CELLS) if pair != ("stacked", "package")],
)
def test_every_parameter_exists_learns_and_moves(encoder, cell, option):
    """The optimizer made right after the model moves every weight, of every detector, in one step."""
    # In double precision a gradient that is mathematically zero is far below any real one.
    model = build(*OPTIONS[option], encoder=encoder, cell=cell).double()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    features, targets = torch.randn(16, 5, 4, 2).double(), torch.randn(16, 3, 4, 2).double()
    F.mse_loss(model(features), targets).backward()
    optimizer.step()
    after = dict(model.named_parameters())
    assert before.keys() == after.keys()
    for name, parameter in after.items():
        own = (encoder == "stacked" and name.startswith("encoder.")) or (
            name.startswith("head.last") and parameter.ndim == 3
        )
        for part in range(len(parameter)) if own or name.startswith("detector_embedding") else [...]:
            assert parameter.grad[part].abs().max() > 1e-12, f"{name}[{part}] receives no gradient"
            assert not torch.equal(before[name][part], parameter[part]), f"{name}[{part}] does not move"


@pytest.mark.parametrize("cell", CELLS)
def test_a_forecast_has_all_steps_detectors_and_features(cell):
    """[B,T,N,F] in, [B,P,N,F] out, whatever the number of windows."""
    for windows in (1, 5):
        assert (windows, 3, 4, 2) == build(cell=cell)(torch.randn(windows, 12, 4, 2)).shape


def test_the_reference_model_has_the_reference_head():
    """concat[h_T, context] → 2E→E → E/2 → P·F."""
    model = SocialXLSTM(
        ModelConfig(),
        PoolingConfig(),
        n_detectors=4,
        n_features=3,
        prediction_length=3,
        positions_xy=POSITIONS,
    )
    shapes = [tuple(weight.shape) for weight in model.head.parameters() if weight.ndim == 2]
    assert [(128, 256), (64, 128), (9, 64)] == shapes
    assert 654_496 == sum(parameter.numel() for parameter in model.encoder.parameters())


def test_each_output_is_its_own_detectors():
    """Without pooling a forecast depends on its detector's window only, on every value of it."""
    model = build(pooling=OFF, dropout=0.0)
    features = torch.randn(1, 12, 4, 2, requires_grad=True)
    for detector in range(4):
        (gradient,) = torch.autograd.grad(model(features)[0, :, detector].sum(), features)
        assert [detector] == gradient.abs().sum(dim=(0, 1, 3)).nonzero()[:, 0].tolist()
        assert (gradient[0, :, detector] != 0).all()


def test_pooling_lets_neighbours_speak():
    """With pooling the forecast depends on neighbours within R as well, and not on detectors beyond."""
    model = build(pooling=PoolingConfig(radius=1000.0), dropout=0.0)
    features = torch.randn(1, 12, 4, 2, requires_grad=True)
    (gradient,) = torch.autograd.grad(model(features)[0, :, 0].sum(), features)
    assert [0, 1, 2] == gradient.abs().sum(dim=(0, 1, 3)).nonzero()[:, 0].tolist()


def test_steps_and_features_are_not_mixed_up():
    """Output [p, f] comes from the head's unit p·F + f of that detector."""
    model = build(dropout=0.0, pooling=OFF)
    with torch.no_grad():
        model.head.last.weight.zero_()
        model.head.last.bias.copy_(torch.arange(6.0))
    expected = torch.tensor([[0.0, 1.0], [2.0, 3.0], [4.0, 5.0]])
    assert torch.equal(expected[None, :, None].expand(2, 3, 4, 2), model(torch.randn(2, 12, 4, 2)))


def test_a_residual_forecast_starts_from_the_last_value():
    """With a head that says nothing the forecast is the last observed value."""
    model = build({"residual": True})
    with torch.no_grad():
        for parameter in model.head.last.parameters():
            parameter.zero_()
    features = torch.randn(2, 12, 4, 2)
    assert torch.equal(features[:, -1:].expand(2, 3, 4, 2), model(features))


def test_an_embedding_tells_detectors_apart():
    """Equal windows give equal forecasts without an embedding and different ones with it."""
    features = torch.randn(1, 12, 1, 2).expand(1, 12, 4, 2)
    for options, alike in (({}, True), ({"detector_embedding": True}, False)):
        forecast = build(options, OFF, dropout=0.0)(features)
        assert alike == torch.allclose(forecast[:, :, 0], forecast[:, :, 1], atol=1e-7)


def test_own_heads_tell_detectors_apart():
    """shared_heads gives every detector its own last layer on the shared encoder."""
    features = torch.randn(1, 12, 1, 2).expand(1, 12, 4, 2)
    forecast = build({}, OFF, encoder="shared_heads", dropout=0.0)(features)
    assert not torch.allclose(forecast[:, :, 0], forecast[:, :, 1], atol=1e-3)


def test_a_closed_gate_is_no_pooling():
    """A context gate driven to zero leaves no trace of the neighbours."""
    model = build({"context_gate": True}, dropout=0.0)
    torch.nn.init.constant_(model.context_gate.gate.bias, -200.0)
    features = torch.randn(1, 12, 4, 2, requires_grad=True)
    (gradient,) = torch.autograd.grad(model(features)[0, :, 0].sum(), features)
    assert [0] == gradient.abs().sum(dim=(0, 1, 3)).nonzero()[:, 0].tolist()


def test_an_open_gate_is_plain_pooling():
    """A context gate driven to one passes the whole context."""
    gated, plain = build({"context_gate": True}, dropout=0.0), build(dropout=0.0)
    torch.nn.init.constant_(gated.context_gate.gate.bias, 200.0)
    plain.load_state_dict({k: w for k, w in gated.state_dict().items() if not k.startswith("context_gate.")})
    features = torch.randn(2, 12, 4, 2)
    assert torch.equal(plain(features), gated(features))


@pytest.mark.parametrize("encoder", ENCODERS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_mixed_precision_stays_near(encoder, dtype, monkeypatch):
    """Under autocast the forecast is float32, near the full-precision one, and gradients are finite."""
    # Some virtual machines advertise AMX, and oneDNN's bfloat16 kernels then die there.
    monkeypatch.setattr(torch.backends.mkldnn, "enabled", False)
    model = build({"attention_readout": True, "context_gate": True}, encoder=encoder, dropout=0.0)
    features = torch.randn(2, 12, 4, 2)
    exact = model(features)
    with torch.autocast("cpu", dtype):
        forecast = model(features)
    forecast.square().mean().backward()
    assert torch.float32 == forecast.dtype
    assert (exact - forecast).abs().max().item() <= 0.05
    assert all(parameter.grad.isfinite().all() for parameter in model.parameters())


def test_weights_of_the_package_and_ours_are_interchangeable():
    """A whole model trained with one cell forecasts the same with the other."""
    package, ours = build(cell="package").eval(), build(cell="fast").eval()
    torch.nn.init.normal_(package.encoder.encoder.stack.blocks[1].xlstm.slstm_cell._recurrent_kernel_)
    ours.load_state_dict(package.state_dict(), strict=True)
    features = torch.randn(2, 12, 4, 2)
    assert torch.allclose(package(features), ours(features), atol=1e-5)


@pytest.mark.parametrize(
    ("options", "pooling", "changes", "message"),
    [
        ({}, PoolingConfig(), {"positions_xy": None}, "no positions.*social_pooling.enabled: false"),
        ({}, PoolingConfig(), {"positions_xy": POSITIONS[:3]}, "3 positions were given for 4 detectors"),
        ({}, PoolingConfig(), {"positions_xy": POSITIONS * math.nan}, "4 of 4 detectors have no position"),
        ({"context_gate": True}, OFF, {}, "context_gate is on but pooling is off"),
        ({}, OFF, {"n_detectors": 0}, "n_detectors is 0"),
        ({}, OFF, {"n_features": 0}, "n_features is 0"),
        ({}, OFF, {"prediction_length": 0}, "prediction_length is 0"),
    ],
)
def test_models_that_cannot_be_are_refused(options, pooling, changes, message):
    """Missing positions and impossible sizes end in one clear error."""
    with pytest.raises(InputError, match=message):
        build(options, pooling, **changes)


def test_positions_are_not_needed_without_pooling():
    """Pooling switched off asks for no positions, nor for good ones."""
    assert build(pooling=OFF, positions_xy=None).pooling is None
    assert build(pooling=OFF, positions_xy=POSITIONS * math.nan).pooling is None


@pytest.mark.parametrize("shape", [(2, 12, 4), (2, 12, 5, 2), (2, 12, 4, 3), (2, 0, 4, 2)])
def test_features_of_another_shape_are_refused(shape):
    """The message says which shape this model takes."""
    with pytest.raises(InputError, match="4 detectors, 2 features"):
        build()(torch.randn(shape))
