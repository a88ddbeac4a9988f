"""Our cells are the package's, computed without asking the data anything; in C and by torch's operations."""

import contextlib
import copy
import pickle
from collections.abc import Iterator

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from social_xlstm.config import XLSTMConfig
from social_xlstm.errors import InputError
from social_xlstm.model.cells import build_stack
from social_xlstm.model.cpu import library, operators

OURS = ("sync_free", "fast")
in_c = pytest.mark.skipif(library.library() is None, reason="no C library on this machine")

FORWARD_TOLERANCE = 1e-5
GRADIENT_TOLERANCE = 1e-4


def twins(config: XLSTMConfig, seed: int, cell: str) -> tuple[nn.Module, nn.Module]:
    """The package's stack with random weights everywhere, and ours with the same."""
    torch.manual_seed(seed)
    package, ours = build_stack(config, "package"), build_stack(config, cell)
    with torch.no_grad():
        for parameter in package.parameters():
            # The recurrence and most biases start at zero, where a wrong one would not show.
            parameter.add_(0.1 * torch.randn_like(parameter))
    ours.load_state_dict(package.state_dict())
    return package, ours


def run(stack: nn.Module, x: Tensor, upstream: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
    """The output, and the gradients of the input and of every weight, by name."""
    x = x.clone().requires_grad_()
    stack.zero_grad()
    output = stack(x)
    output.backward(upstream)
    # A single step has no past, so our recurrence is not even asked: no gradient stands for zero.
    weights = {
        name: torch.zeros_like(p) if p.grad is None else p.grad for name, p in stack.named_parameters()
    }
    return output.detach(), {"input": x.grad} | weights


@contextlib.contextmanager
def formulas(path: str) -> Iterator[None]:
    """Run the C library where there is one, or the formulas."""
    with pytest.MonkeyPatch.context() as patch:
        if path == "plain":
            patch.setattr(operators, "applies", lambda *given: False)
        yield


@contextlib.contextmanager
def plain_half_precision() -> Iterator[None]:
    """Keep oneDNN out: some virtual machines advertise AMX, and its bfloat16 kernels then die there."""
    before = torch.backends.mkldnn.enabled
    torch.backends.mkldnn.enabled = False
    try:
        yield
    finally:
        torch.backends.mkldnn.enabled = before


def worst(expected: dict[str, Tensor], actual: dict[str, Tensor]) -> float:
    """The largest gradient error, relative to gradients larger than one."""
    assert expected.keys() == actual.keys()
    return max(
        ((expected[name] - actual[name]).abs().max() / expected[name].abs().max().clamp(min=1.0)).item()
        for name in expected
    )


@pytest.mark.parametrize("path", [pytest.param("native", marks=in_c), "plain"])
@pytest.mark.parametrize("cell", OURS)
@settings(derandomize=True, deadline=None, max_examples=40)
@given(
    heads=st.sampled_from([1, 2, 4]),
    head_width=st.sampled_from([4, 8, 12]),
    sequences=st.integers(1, 6),
    steps=st.integers(1, 20),
    kernel=st.integers(2, 5),
    slstm_at=st.sampled_from([(), (0,), (1,), (0, 1)]),
    dtype=st.sampled_from([torch.float32, torch.float64]),
    seed=st.integers(0, 10_000),
)
def test_outputs_and_gradients_are_the_packages(
    cell, path, heads, head_width, sequences, steps, kernel, slstm_at, dtype, seed
):
    """For any shape, length and weights: forward within 1e-5, every gradient within 1e-4."""
    config = XLSTMConfig(
        heads * head_width, 2, slstm_at, num_heads=heads, conv_kernel=kernel, context_length=20, dropout=0.0
    )
    package, ours = (stack.to(dtype) for stack in twins(config, seed, cell))
    x, upstream = torch.randn(2, sequences, steps, heads * head_width, dtype=dtype)
    expected, expected_gradients = run(package, x, upstream)
    with formulas(path):
        actual, actual_gradients = run(ours, x, upstream)
    assert (expected - actual).abs().max().item() <= FORWARD_TOLERANCE
    assert worst(expected_gradients, actual_gradients) <= GRADIENT_TOLERANCE


@pytest.mark.parametrize("cell", OURS)
def test_the_reference_stack_is_the_packages(cell):
    """Six blocks of width 128 stay within the same bounds."""
    package, ours = twins(XLSTMConfig(dropout=0.0), 0, cell)
    x, upstream = torch.randn(2, 4, 12, 128)
    expected, expected_gradients = run(package, x, upstream)
    actual, actual_gradients = run(ours, x, upstream)
    assert (expected - actual).abs().max().item() <= FORWARD_TOLERANCE
    assert worst(expected_gradients, actual_gradients) <= GRADIENT_TOLERANCE


@pytest.mark.parametrize("cell", OURS)
def test_in_float64_the_two_agree_to_rounding(cell):
    """What is left in float32 is rounding, not a different formula (but for 1e-6 beside the normalizer)."""
    config = XLSTMConfig(16, 4, (0, 2), dropout=0.0)
    package, ours = (stack.double() for stack in twins(config, 1, cell))
    x, upstream = torch.randn(2, 5, 12, 16, dtype=torch.float64)
    expected, expected_gradients = run(package, x, upstream)
    actual, actual_gradients = run(ours, x, upstream)
    assert (expected - actual).abs().max().item() <= 1e-13
    assert worst(expected_gradients, actual_gradients) <= 1e-5


@pytest.mark.parametrize("cell", OURS)
def test_inputs_and_upstream_gradients_are_left_alone(cell):
    """The passes work in buffers of their own: a single sequence, whose views alias, changes nothing."""
    ours = build_stack(XLSTMConfig(16, 2, (0,), dropout=0.0), cell)
    x, upstream = torch.randn(2, 1, 12, 16)
    before = x.clone(), upstream.clone()
    run(ours, x, upstream)
    first = ours(x)
    assert torch.equal(before[0], x)
    assert torch.equal(before[1], upstream)
    assert torch.equal(first, ours(x))


@in_c
@pytest.mark.parametrize("slstm_at", [(), (0,)])
def test_a_second_derivative_of_c_is_refused_not_wrong(slstm_at):
    """A backward pass of our own cannot be differentiated again, and says so."""
    ours = build_stack(XLSTMConfig(16, 1, slstm_at, dropout=0.0), "fast")
    x = torch.randn(2, 12, 16, requires_grad=True)
    (gradient,) = torch.autograd.grad(ours(x).sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        gradient.sum().backward()


@pytest.mark.parametrize("slstm_at", [(), (0,)])
def test_the_formulas_can_be_differentiated_twice(slstm_at):
    """Where C does not run, autograd has every step, and a second derivative is the first one's slope."""
    torch.manual_seed(0)
    ours = build_stack(XLSTMConfig(8, 1, slstm_at, num_heads=2, dropout=0.0), "fast").double()
    x = torch.randn(1, 3, 8, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradgradcheck(ours, (x,))


def test_blocks_that_do_not_fill_a_head_are_refused_by_the_fast_cells():
    """The folded weights need whole blocks in every head; the message names the way out."""
    config = XLSTMConfig(32, 1, (), num_heads=16, qkv_block_size=8)
    with pytest.raises(InputError, match=r"model\.cell: sync_free"):
        build_stack(config, "fast")


@pytest.mark.slow
def test_the_fast_cells_compile_to_one_graph_once():
    """No graph break and no second compilation for the same shapes; the result is the eager one."""
    ours = build_stack(XLSTMConfig(16, 2, (1,), dropout=0.0), "fast")
    graphs = []

    def count(graph, inputs):
        graphs.append(graph)
        return graph.forward

    compiled = torch.compile(ours, backend=count, fullgraph=True)
    for _ in range(3):
        x = torch.randn(3, 12, 16)
        assert torch.allclose(compiled(x), ours(x), atol=FORWARD_TOLERANCE)
    assert 1 == len(graphs)


@pytest.mark.parametrize(("cell", "slstm_at"), [("sync_free", (0,)), ("fast", (0,)), ("fast", ())])
@settings(derandomize=True, deadline=None, max_examples=10)
@given(steps=st.integers(1, 16), seed=st.integers(0, 10_000), autocast=st.booleans())
def test_bfloat16_is_as_close_to_the_truth_as_the_packages(cell, slstm_at, steps, seed, autocast):
    """In bfloat16, as weights or by autocast, we stay near float32, as near as the package."""
    package, ours = twins(XLSTMConfig(16, 1, slstm_at, context_length=16, dropout=0.0), seed, cell)
    if not autocast:
        package, ours = package.bfloat16(), ours.bfloat16()
    truth = copy.deepcopy(ours).float()
    x = torch.randn(8, steps, 16).bfloat16()
    exact = truth(x.float())
    with plain_half_precision(), torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        theirs = (package(x.float() if autocast else x).float() - exact).abs()
        own = (ours(x.float() if autocast else x).float() - exact).abs()
    assert own.mean().item() <= theirs.mean().item() * 1.25
    assert own.mean().item() <= 0.02
    assert own.max().item() <= 0.25


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("cell", OURS)
def test_extreme_gates_stay_finite(cell, dtype):
    """Pre-activations far beyond exp's range give finite outputs and gradients."""
    torch.manual_seed(0)
    ours = build_stack(XLSTMConfig(16, 2, (0,), dropout=0.0), cell)
    with torch.no_grad():
        for parameter in [p for block in ours.blocks for p in block.xlstm.parameters()]:
            parameter.mul_(300.0)
    x, upstream = torch.randn(2, 4, 12, 16, dtype=dtype)
    with plain_half_precision():
        output, gradients = run(ours.to(dtype), x, upstream)
    assert output.isfinite().all()
    assert all(gradient.isfinite().all() for gradient in gradients.values())


@pytest.mark.parametrize("cell", OURS)
def test_state_dicts_are_interchangeable(cell):
    """Names and shapes are the package's, in both directions and strictly."""
    config = XLSTMConfig(32, 3, (1,))
    package, ours = build_stack(config, "package"), build_stack(config, cell)
    shapes = [{name: w.shape for name, w in stack.state_dict().items()} for stack in (package, ours)]
    assert shapes[0] == shapes[1]
    package.load_state_dict(ours.state_dict(), strict=True)


@pytest.mark.parametrize("cell", OURS)
def test_fresh_weights_have_the_packages_distribution(cell):
    """Constant initial weights are equal, random ones have the same spread."""
    config = XLSTMConfig(64, 4, (0, 1, 3))
    torch.manual_seed(0)
    theirs, ours = (dict(build_stack(config, cell).named_parameters()) for cell in ("package", cell))
    for name, weight in theirs.items():
        if weight.std() == 0 or name.endswith(("_bias_", "fgate.bias")):
            assert torch.equal(weight, ours[name]), name
        else:
            assert ours[name].std().item() == pytest.approx(weight.std().item(), rel=0.25), name


@pytest.mark.parametrize("cell", OURS)
def test_the_names_igate_and_fgate_are_exchanged_as_in_the_package(cell):
    """The matrix called fgate drives the input gate: it acts in the first step, igate only later."""
    ours = build_stack(XLSTMConfig(16, 1, (0,), dropout=0.0), cell)
    layer = ours.blocks[0].xlstm
    x = torch.randn(3, 2, 16)
    gates = layer.gates(x).view(2, 4, 3, 4, 4)
    with torch.no_grad():
        layer.fgate.weight.mul_(2.0)
    changed = layer.gates(x).view(2, 4, 3, 4, 4)
    assert [True, False, False, False] == [
        not torch.equal(gates[..., g, :], changed[..., g, :]) for g in range(4)
    ]


@pytest.mark.parametrize("cell", OURS)
def test_our_stack_can_be_copied_and_pickled(cell):
    """Copies and pickles (the package's sLSTM refuses both) compute the same."""
    ours = build_stack(XLSTMConfig(16, 2, (1,), dropout=0.0), cell)
    x = torch.randn(2, 12, 16)
    assert torch.equal(ours(x), copy.deepcopy(ours)(x))
    assert torch.equal(ours(x), pickle.loads(pickle.dumps(ours))(x))


@pytest.mark.parametrize("cell", OURS)
def test_the_future_does_not_reach_the_past(cell):
    """A changed step changes no state before it."""
    ours = build_stack(XLSTMConfig(16, 3, (1,), dropout=0.0), cell)
    x = torch.randn(2, 12, 16)
    changed = x.clone()
    changed[:, 7] = torch.randn(2, 16)
    assert torch.allclose(ours(x)[:, :7], ours(changed)[:, :7], atol=1e-6)
    assert not torch.allclose(ours(x)[:, 7:], ours(changed)[:, 7:], atol=1e-3)


@pytest.mark.parametrize("cell", OURS)
def test_dropout_acts_in_training_only(cell):
    """Two training passes differ, two evaluations do not."""
    ours = build_stack(XLSTMConfig(16, 2, (0,), dropout=0.5), cell)
    x = torch.randn(2, 12, 16)
    assert not torch.equal(ours(x), ours(x))
    ours.eval()
    assert torch.equal(ours(x), ours(x))
