"""Contracts of arithmetic: mixed precision (O6), TF32 (O15), compilation (O16), density (O22)."""

import contextlib

import pytest
import torch

from social_xlstm.train.precision import compile_or_eager
from tests.perf.contract import contract
from tests.perf.subject import Size, plain_products, training


@pytest.mark.parametrize("precision", ["16-mixed", "bf16-mixed"])
@contract("O6", "gpu")
def test_mixed_precision_halves_activations_and_learns_as_well(case, precision):
    """Half precision keeps fewer bytes for the backward pass, and thirty steps reach the same loss."""
    if precision == "bf16-mixed":
        _skip_before_ampere(case, "bfloat16")
    size = case.size("precision")
    plain = training(case.device, size)
    mixed = training(case.device, size, precision=precision)
    with plain_products() if precision == "bf16-mixed" else contextlib.nullcontext():
        case.compare(without=plain.step, with_=mixed.step, samples=size.windows)
        reached = [_loss_after(30, case.device, p) for p in ("32-true", precision)]
    case.tell(f"loss after 30 steps {reached[0]:.4f} → {reached[1]:.4f}")
    case.agree("the loss after 30 steps", *(torch.tensor(loss) for loss in reached), case.limits["loss"])


def _skip_before_ampere(case, units: str) -> None:
    """Skip what older cards have no units for: torch would compute it in a slower way."""
    if case.device.startswith("cuda") and torch.cuda.get_device_capability(case.device) < (8, 0):
        name = torch.cuda.get_device_name(case.device)
        pytest.skip(f"{name} has no {units} units: they came with capability 8.0")


def _loss_after(steps: int, device: str, precision: str) -> float:
    trained = training(device, Size(windows=4, detectors=4), precision=precision, lr=3e-3)
    return float([trained.step() for _ in range(steps)][-1])


@contract("O15", "gpu")
def test_tf32_multiplies_faster(case):
    """Float32 products through TF32 units take less time, and the loss is the same to three digits."""
    _skip_before_ampere(case, "TF32")
    size = case.size("tf32")
    exact, rounded = training(case.device, size), training(case.device, size)

    def step(trained, tf32):
        with tf32_products(tf32):
            return trained.step()

    case.compare(
        without=lambda: step(exact, False),
        with_=lambda: step(rounded, True),
        samples=size.windows,
        result=lambda loss: loss,
    )


@contextlib.contextmanager
def tf32_products(allowed: bool):
    """Allow TF32 for CUDA's products, and put the setting back."""
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = allowed
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before


@pytest.mark.filterwarnings(
    "ignore:`torch.jit.script_method` is deprecated:DeprecationWarning"
)  # torch's own
@contract("O16", "cpu")
def test_compiling_pays_after_its_warm_up(case):
    """The compiled model gives the same loss faster, from one graph that is never compiled again."""
    # The package's cells: ours run in C where there is a compiler, and leave little to gain.
    # Four small blocks: many operators with little arithmetic, which is what compiling joins.
    size = Size(windows=1, detectors=2, width=16, blocks=4, slstm_at=())
    eager, compiled = (training(case.device, size, cell="package") for _ in range(2))
    made = compile_or_eager(compiled.model, compiled.batch.features)
    assert made.took_effect, made.message
    compiled = compiled.calling(made.call)
    graphs = _graphs()
    case.compare(without=eager.step, with_=compiled.step, samples=size.windows, result=lambda loss: loss)
    assert graphs == _graphs(), "something was compiled again while it was measured"


def _graphs() -> int:
    import torch._dynamo

    return torch._dynamo.utils.counters["stats"]["unique_graphs"]


@contract("O22", "gpu")
def test_a_wider_model_keeps_the_card_busier(case):
    """More arithmetic per launch: the busy share rises where a small model only waits for launches."""
    size = case.size("wide")
    narrow, wide = training(case.device, case.size("narrow")), training(case.device, size)

    def half() -> None:
        for _ in range(32):  # take much longer than one wide step, also on a slow card
            narrow.step()
        wide.step()

    case.compare(without=narrow.step, with_=wide.step, half=half, samples=size.windows)
