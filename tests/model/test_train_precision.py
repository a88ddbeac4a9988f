"""Number formats, TF32 and compilation do what they say, or say that they do not."""

import subprocess
from typing import Any

import pytest
import torch
from torch import nn

from social_xlstm.errors import InputError
from social_xlstm.train.precision import Precision, check_bfloat16, compile_or_eager, set_tf32


class Noisy(nn.Module):
    """A linear layer with dropout and a counting buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.drop = nn.Linear(3, 2), nn.Dropout(0.5)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return self.layer(self.drop(features))


@pytest.mark.parametrize(
    ("name", "dtype", "scales"),
    [
        ("32-true", torch.float32, False),
        ("bf16-mixed", torch.bfloat16, False),
        ("16-mixed", torch.float16, True),
    ],
)
def test_precision_sets_autocast_and_scaler(name: Any, dtype: torch.dtype, scales: bool) -> None:
    """Products are computed in the named format, and only float16 scales its loss."""
    precision = Precision.from_name(name, "cpu")
    with precision.autocast():
        assert dtype == nn.Linear(2, 2)(torch.ones(1, 2)).dtype
    assert scales == precision.scaler.is_enabled()


def test_sixteen_bit_on_the_cpu_says_what_it_is_for() -> None:
    """16-mixed runs on a CPU, and tells the user that it is no way to train there."""
    assert "slower than 32-true" in str(Precision.from_name("16-mixed", "cpu").note)
    assert Precision.from_name("32-true", "cpu").note is None


def test_an_unknown_precision_is_refused() -> None:
    """The message lists what is known."""
    with pytest.raises(InputError, match="32-true, 16-mixed, bf16-mixed"):
        Precision.from_name("fp8", "cpu")  # type: ignore[arg-type]


def test_bfloat16_that_kills_the_process_is_refused_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """A CPU whose bfloat16 products die is found out in another process, and the user told what to do."""
    asked: list[Any] = []

    def dies(*args: Any, **kwargs: Any) -> Any:
        asked.append(args)
        return subprocess.CompletedProcess(args, -4)

    monkeypatch.setattr(subprocess, "run", dies)
    check_bfloat16("32-true", torch.device("cpu"))
    check_bfloat16("bf16-mixed", torch.device("cuda"))
    assert [] == asked
    with pytest.raises(InputError, match="ONEDNN_MAX_CPU_ISA=AVX512_CORE"):
        check_bfloat16("bf16-mixed", torch.device("cpu"))


def test_tf32_leaves_the_cpu_alone() -> None:
    """On a CPU the switch takes no effect and says so."""
    before = torch.get_float32_matmul_precision()
    assert not set_tf32(True, "cpu")
    assert before == torch.get_float32_matmul_precision()


def test_tf32_is_switched_on_and_off_for_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    """On CUDA the switch sets both products and convolutions (O15)."""
    asked: list[str] = []
    monkeypatch.setattr(torch, "set_float32_matmul_precision", asked.append)
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", torch.backends.cudnn.allow_tf32)
    assert set_tf32(True, "cuda")
    assert torch.backends.cudnn.allow_tf32 is True
    assert not set_tf32(False, "cuda")
    assert ["high", "highest"] == asked
    assert torch.backends.cudnn.allow_tf32 is False


@pytest.mark.parametrize(
    "error", [RuntimeError("no C++ compiler\nat all"), OSError("cannot start"), RuntimeError()]
)
def test_a_failed_compile_falls_back_with_a_message(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Training goes on with the model itself, and the user reads why (O16)."""

    def fails_when_called(features: torch.Tensor) -> torch.Tensor:
        raise error

    monkeypatch.setattr(torch, "compile", lambda model, mode: fails_when_called)
    model = Noisy()
    compiled = compile_or_eager(model, torch.ones(2, 3))
    assert (model, False) == (compiled.call, compiled.took_effect)
    assert compiled.message.startswith("torch.compile failed, training runs without it: ")
    assert compiled.message == compiled.message.splitlines()[0]


def test_the_compile_trial_leaves_no_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights, buffers, gradients and random state are as before the trial."""
    monkeypatch.setattr(torch, "compile", lambda model, mode: model)
    model = Noisy()
    before, state = torch.get_rng_state(), {k: v.clone() for k, v in model.state_dict().items()}
    compiled = compile_or_eager(model, torch.ones(2, 3))
    assert compiled.took_effect
    assert torch.equal(before, torch.get_rng_state())
    assert all(torch.equal(state[name], value) for name, value in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())


@pytest.mark.slow
def test_a_real_compile_gives_the_same_output() -> None:
    """Where a compiler exists, the compiled model computes what the model computes."""
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
    compiled = compile_or_eager(model, torch.ones(2, 3))
    features = torch.randn(2, 3)
    torch.testing.assert_close(model(features), compiled.call(features))
    assert compiled.message.startswith("torch.compile ")
