"""A training step waits for the device nowhere, and compiles to one graph."""

import subprocess
import sys

import pytest
import torch
import torch.nn.functional as F

from social_xlstm.config import ModelConfig, PoolingConfig, XLSTMConfig
from social_xlstm.model.social_xlstm import SocialXLSTM
from tests.model.sync_counter import HostSyncs

ENCODERS = ("per_vd", "grouped", "shared", "shared_heads", "stacked")


def build(
    n: int = 3,
    *,
    cell: str = "sync_free",
    encoder: str = "shared",
    xlstm: XLSTMConfig | None = None,
    pooling: PoolingConfig | None = None,
    **options,
) -> SocialXLSTM:
    torch.manual_seed(0)
    xlstm = xlstm or XLSTMConfig(8, 2, (1,), num_heads=2, dropout=0.1)
    model = ModelConfig(xlstm, encoder, cell, group_size=2, **options)
    positions = torch.rand(n, 2) * 1000
    return SocialXLSTM(
        model,
        pooling or PoolingConfig(),
        n_detectors=n,
        n_features=2,
        prediction_length=3,
        positions_xy=positions,
    )


def syncs_of_a_step(model: SocialXLSTM) -> int:
    features, targets = torch.randn(2, 12, model.n_detectors, 2), torch.randn(2, 3, model.n_detectors, 2)
    # Fused, as otherwise Adam reads its own step counters, which live on the host and wait for nothing.
    optimizer = torch.optim.Adam(model.parameters(), fused=True)
    with HostSyncs() as syncs:
        F.mse_loss(model(features), targets).backward()
        optimizer.step()
        optimizer.zero_grad()
    return syncs.count


@pytest.mark.parametrize(("cell", "expected"), [("package", 24), ("sync_free", 0), ("fast", 0), ("lstm", 0)])
def test_syncs_of_the_reference_model(cell, expected):
    """Two sLSTM blocks over 12 steps: 24 host syncs with the package's cell, none with ours."""
    xlstm = XLSTMConfig(embedding_dim=32, num_blocks=6, slstm_at=(1, 3))
    assert expected == syncs_of_a_step(build(cell=cell, xlstm=xlstm))


def test_syncs_of_the_loop_grow_with_the_detectors():
    """One encoder per detector waits 24 times for each of them: 7,800 times at 325."""
    xlstm = XLSTMConfig(8, 4, (1, 3), num_heads=2)
    assert [24, 72] == [
        syncs_of_a_step(build(n, cell="package", encoder="per_vd", xlstm=xlstm)) for n in (1, 3)
    ]


@pytest.mark.parametrize("encoder", ENCODERS)
@pytest.mark.parametrize("pool_type", ["mean", "max"])
@pytest.mark.parametrize("sparse", [False, True])
def test_no_choice_of_encoder_and_pooling_waits(encoder, pool_type, sparse):
    """Every encoder, with every option, makes a step without a host sync."""
    pooling = PoolingConfig(pool_type=pool_type, sparse=sparse, learnable=pool_type == "mean")
    options = {"attention_readout": True, "detector_embedding": True, "context_gate": True, "residual": True}
    assert 0 == syncs_of_a_step(build(encoder=encoder, pooling=pooling, **options))


@pytest.mark.parametrize(
    ("name", "wait"),
    [
        ("item", lambda x: x.sum().item()),
        ("if", lambda x: bool((x > 0).all())),
        ("mask", lambda x: x[x > 0]),
        ("masked assignment", lambda x: x.clone().__setitem__(x > 0, torch.zeros(1).squeeze())),
        ("nonzero", lambda x: x.nonzero()),
        ("masked_select", lambda x: x.masked_select(x > 0)),
        ("unique", lambda x: x.unique()),
        ("equal", lambda x: torch.equal(x, x)),
    ],
)
def test_the_counter_sees_what_waits(name, wait):
    """A count of zero means something only if each of these is counted."""
    with HostSyncs() as syncs:
        wait(torch.ones(3))
    assert syncs.count >= 1, name


@pytest.mark.parametrize("encoder", ENCODERS)
def test_every_encoder_compiles_to_one_graph(encoder):
    """fullgraph=True accepts the whole model, and the result is unchanged."""
    torch.compiler.reset()
    model = build(encoder=encoder, attention_readout=True, detector_embedding=True, context_gate=True).eval()
    features = torch.randn(2, 3, 3, 2)
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    assert torch.allclose(model(features), compiled(features), atol=1e-6)


def test_the_packages_cell_does_not_compile_to_one_graph():
    """Its question to the data breaks the graph: the reason for our own cell."""
    torch.compiler.reset()
    compiled = torch.compile(build(cell="package"), backend="eager", fullgraph=True)
    with pytest.raises(torch._dynamo.exc.Unsupported, match="Data-dependent"):
        compiled(torch.randn(2, 4, 3, 2))


@pytest.mark.slow
@pytest.mark.filterwarnings(
    "ignore:`torch.jit.script_method` is deprecated:DeprecationWarning"
)  # torch's own
def test_inductor_trains_like_eager():
    """Compiled for real, loss and gradients are eager's."""
    torch.compiler.reset()
    model = build(xlstm=XLSTMConfig(8, 1, (0,), num_heads=2, context_length=4, dropout=0.0))
    features, targets = torch.randn(2, 4, 3, 2), torch.randn(2, 3, 3, 2)
    gradients = []
    for run in (model, torch.compile(model, fullgraph=True)):
        model.zero_grad()
        F.mse_loss(run(features), targets).backward()
        gradients.append([parameter.grad.clone() for parameter in model.parameters()])
    for eager, compiled in zip(*gradients, strict=True):
        assert torch.allclose(eager, compiled, atol=1e-5)


def test_importing_the_model_is_quiet_and_leaves_the_xlstm_package_alone():
    """Import warns of nothing and loads the package only when a stack of its cells is built."""
    code = (
        "import sys, social_xlstm.model.social_xlstm as m; from social_xlstm.model.cells import build_stack; "
        "from social_xlstm.config import XLSTMConfig; build_stack(XLSTMConfig(8), 'lstm'); "
        "assert 'xlstm' not in sys.modules; build_stack(XLSTMConfig(8), 'package')"
    )
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=False
    )
    assert (0, "", "") == (done.returncode, done.stdout, done.stderr)
