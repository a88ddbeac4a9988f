"""Under torch.compile the blocks in C stay in the graph as operators and compute the same."""

import pytest
import torch
from torch import nn

from social_xlstm.config import ModelConfig, XLSTMConfig
from social_xlstm.model.cells import build_stack
from social_xlstm.model.cpu import library
from social_xlstm.model.encoder import build_encoder

pytestmark = pytest.mark.skipif(library.library() is None, reason="no C library on this machine")


class Graphs:
    """A backend that keeps the graphs it is given and runs them as they are."""

    def __init__(self) -> None:
        self.seen: list[torch.fx.GraphModule] = []

    def __call__(self, graph, inputs):
        """Compile nothing."""
        self.seen.append(graph)
        return graph.forward

    def blocks(self) -> int:
        """How many of the operators are blocks in C."""
        return sum("social_xlstm" in str(node.target) for graph in self.seen for node in graph.graph.nodes)


def passes(module: nn.Module, compiled: nn.Module, x: torch.Tensor) -> dict[str, torch.Tensor]:
    """The output and all gradients."""
    module.zero_grad(set_to_none=True)
    x = x.detach().requires_grad_()
    torch.manual_seed(3)
    output = compiled(x)
    output.square().sum().backward()
    return {"output": output.detach(), "input": x.grad} | {n: p.grad for n, p in module.named_parameters()}


@pytest.fixture(autouse=True)
def fresh():
    """No test sees another's compiled code."""
    torch.compiler.reset()
    yield
    torch.compiler.reset()


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_compiled_blocks_give_the_eager_results(backend, dropout):
    """Outputs and every gradient, of strided inputs too, with dropout's numbers as eagerly drawn."""
    torch.manual_seed(0)
    stack = build_stack(XLSTMConfig(16, 2, (1,), dropout=dropout), "fast")
    x = torch.randn(12, 3, 16).transpose(0, 1)
    expected = passes(stack, stack, x)
    actual = passes(stack, torch.compile(stack, backend=backend, fullgraph=True), x)
    for name, tensor in expected.items():
        torch.testing.assert_close(actual[name], tensor, atol=1e-5, rtol=1e-5, msg=name)


def test_the_operators_keep_their_contract():
    """Schema, fake tensors and the autograd registration, by torch's own check."""
    block = build_stack(XLSTMConfig(16, 1, dropout=0.0, slstm_at=()), "fast").blocks[0]
    weights = [weight.detach().requires_grad_() for weight in block._own_weights()]
    x = torch.randn(3, 12, 16, requires_grad=True)
    given = ("mlstm", x, None, list(block._sizes()), weights)
    torch.library.opcheck(torch.ops.social_xlstm.block.default, given)


def test_every_block_is_an_operator_in_one_graph():
    """Three of them (mLSTM, sLSTM, feed-forward), traced once for one shape."""
    graphs = Graphs()
    stack = build_stack(XLSTMConfig(16, 2, (1,), dropout=0.0), "fast")
    compiled = torch.compile(stack, backend=graphs, fullgraph=True)
    for _ in range(3):
        compiled(torch.randn(3, 12, 16))
    assert (1, 3) == (len(graphs.seen), graphs.blocks())


@pytest.mark.parametrize("kind", ["autocast", "float64", "long", "off"])
def test_what_c_does_not_take_is_traced_as_formulas(kind, monkeypatch):
    """The conditions are the eager ones."""
    graphs = Graphs()
    stack = build_stack(XLSTMConfig(16, 2, (1,), dropout=0.0), "fast")
    x = torch.randn(3, 200 if kind == "long" else 5, 16)
    if kind == "float64":
        stack, x = stack.double(), x.double()
    if kind == "off":
        monkeypatch.setattr(library, "library", lambda: None)
    with torch.autocast("cpu", enabled=kind == "autocast"):
        torch.compile(stack, backend=graphs, fullgraph=True)(x)
    assert (1, 0) == (len(graphs.seen), graphs.blocks())


@pytest.mark.parametrize(("cell", "blocks"), [("fast", 3), ("sync_free", 0)])
def test_stacked_weights_compile(cell, blocks):
    """All detectors in one operator each; what runs under vmap is left to vmap."""
    graphs = Graphs()
    torch.manual_seed(0)
    encoder = build_encoder(ModelConfig(XLSTMConfig(16, 2, (1,), dropout=0.0), "stacked", cell), 4, 2)
    x = torch.randn(3, 4, 12, 2)
    actual = torch.compile(encoder, backend=graphs)(x)
    torch.testing.assert_close(actual, encoder(x), atol=1e-5, rtol=1e-5)
    assert blocks == graphs.blocks()
