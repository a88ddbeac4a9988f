"""Number formats of a training: autocast and loss scaling, TF32, and compilation with a visible fallback."""

import subprocess
import sys
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from social_xlstm import config
from social_xlstm.errors import InputError

_AUTOCAST_DTYPE = {"32-true": None, "16-mixed": torch.float16, "bf16-mixed": torch.bfloat16}


@dataclass(frozen=True)
class Precision:
    """One number format on one device: the autocast to compute under and the scaler of its loss."""

    name: config.Precision
    device: torch.device
    scaler: torch.amp.GradScaler
    note: str | None = None

    @classmethod
    def from_name(cls, name: config.Precision, device: torch.device | str) -> "Precision":
        """Choose autocast and scaler for a precision, and note where the device makes it a poor choice."""
        device = torch.device(device)
        if name not in _AUTOCAST_DTYPE:
            known = ", ".join(_AUTOCAST_DTYPE)
            raise InputError(f"precision {name!r} is unknown; choose one of {known}")
        note = None
        if name == "bf16-mixed" and device.type == "cuda" and not _has_bfloat16():
            note = "bf16-mixed: this GPU has no bfloat16 units and emulates them; 16-mixed is faster here"
        if name == "16-mixed" and device.type == "cpu":
            # It runs, with real float16 and a real scaler, so that a GPU configuration can be tried and its
            # activations counted anywhere; it is not a way to train on a CPU.
            note = (
                "16-mixed on the CPU is for trying out only: slower than 32-true; take bf16-mixed or 32-true"
            )
        # Only float16 has too few exponent bits for small gradients; a disabled scaler passes through.
        scaler = torch.amp.GradScaler(device.type, enabled=name == "16-mixed")
        return cls(name, device, scaler, note)

    def autocast(self) -> AbstractContextManager[Any]:
        """Return the context under which forward and loss are computed."""
        dtype = _AUTOCAST_DTYPE[self.name]
        if dtype is None:
            return nullcontext()
        return torch.autocast(self.device.type, dtype=dtype)


def _has_bfloat16() -> bool:
    """Return whether the GPU itself computes in bfloat16; by default torch counts emulation as support."""
    return bool(torch.cuda.is_bf16_supported(including_emulation=False))


def check_bfloat16(name: config.Precision, device: torch.device) -> None:
    """Refuse bf16-mixed where the processor's bfloat16 products would end the whole process.

    Some virtual machines advertise AMX and do not let it run; the first product then dies of an illegal
    instruction, without a message. Only another process can try that safely; it costs the import of torch.
    """
    if name != "bf16-mixed" or device.type != "cpu":
        return
    trial = "import torch; x = torch.ones(2, 64, 64, dtype=torch.bfloat16); torch.bmm(x, x)"
    done = subprocess.run([sys.executable, "-c", trial], capture_output=True, check=False)
    if done.returncode < 0:
        raise InputError(
            "precision bf16-mixed does not run here: this CPU's bfloat16 products end in signal "
            f"{-done.returncode} (a virtual machine that forbids AMX?); start with "
            "ONEDNN_MAX_CPU_ISA=AVX512_CORE in the environment, or use 32-true"
        )


def set_tf32(enabled: bool, device: torch.device | str) -> bool:
    """Let CUDA multiply float32 in TF32 (O15) or forbid it, and return whether that took effect.

    Elsewhere nothing is touched: on a CPU the same switch could lower the precision of its products.
    """
    if torch.device(device).type != "cuda":
        return False
    torch.set_float32_matmul_precision("high" if enabled else "highest")
    torch.backends.cudnn.allow_tf32 = enabled
    return enabled


@dataclass(frozen=True)
class Compiled:
    """What to call instead of the model, and a message about it."""

    call: Callable[..., Any]
    took_effect: bool
    message: str


def compile_or_eager(model: nn.Module, example: torch.Tensor, *, mode: str | None = None) -> Compiled:
    """Compile the model and try it forward and backward; fall back to the model itself if that fails.

    `torch.compile` returns at once and fails at the first call, so only a trial shows whether it took effect.
    The trial leaves weights, gradients and random state as they were.
    """
    devices = [example.device] if example.device.type == "cuda" else []
    try:
        with warnings.catch_warnings(), torch.random.fork_rng(devices=devices):
            # torch's own, while it loads its compiler and traces; as errors they would pass for failures.
            warnings.simplefilter("ignore", DeprecationWarning)
            warnings.filterwarnings("ignore", "The .grad attribute of a Tensor that is not", UserWarning)
            compiled = torch.compile(model, mode=mode)
            _trial(compiled, model, example)
    # RuntimeError is the common parent of Dynamo's and Inductor's errors (no compiler, unsupported operation,
    # a GPU that is too old); an OSError is a compiler that cannot be started.
    except (RuntimeError, OSError, ImportError, AssertionError) as error:
        torch._dynamo.reset()
        reason = str(error).strip().splitlines()[0][:160] if str(error).strip() else type(error).__name__
        return Compiled(model, False, f"torch.compile failed, training runs without it: {reason}")
    return Compiled(compiled, True, f"torch.compile took effect (torch {torch.__version__})")


def _trial(compiled: Callable[..., Any], model: nn.Module, example: torch.Tensor) -> None:
    """Run one forward and backward, keeping the model's buffers and dropping the gradients."""
    buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
    try:
        compiled(example).float().sum().backward()
    finally:
        for name, buffer in model.named_buffers():
            buffer.data.copy_(buffers[name])
        for parameter in model.parameters():
            parameter.grad = None
