"""How far a predicted time may be off, by the rules' errors on cards that were left out of their fit."""

import math
from collections.abc import Iterable

from perfsuite.devices.kernels import Kernel, KernelKind
from perfsuite.devices.model.cards import Card
from perfsuite.devices.model.rules import shipped_rules

# Not measured, so assumptions: attention's kernels, operators without a rule, and the host's microseconds.
_UNMEASURED_ERROR = 0.5
_HOST_ERROR = 0.3
_COMPUTE = (
    *(KernelKind.LINEAR, KernelKind.BMM, KernelKind.CONVOLUTION),
    *(KernelKind.ATTENTION, KernelKind.RECURRENCE),
)
_LAYERS = {1: "rnn", 3: "gru", 4: "lstm"}  # by gates
_GATES_PLACE = 5


def kernel_error(kernel: Kernel, card: Card) -> float:
    """Return the typical error of a kernel's time: half of those measured were closer, on the worst card."""
    errors = shipped_rules().errors
    if kernel.kind in (KernelKind.ATTENTION, KernelKind.BYTES):
        return _UNMEASURED_ERROR
    if kernel.kind.value in card.corrections and f"{kernel.kind.value}, calibrated" in errors:
        return errors[f"{kernel.kind.value}, calibrated"]
    return max(errors[name] for name in _measured_as(kernel, card))


def _measured_as(kernel: Kernel, card: Card) -> list[str]:
    """Return the kinds of measured kernels that stand for a kernel."""
    is_tensor = card.peak(kernel.precision) > card.float32
    suffix = ", tensor cores" if is_tensor else ""
    ways = ("by input", "by weight") if "backward" in kernel.op else ("forward",)
    if kernel.kind is KernelKind.CONVOLUTION:
        return [f"convolution {way}{suffix}" for way in ways]
    if kernel.kind is KernelKind.RECURRENCE:
        gates = kernel.problem[_GATES_PLACE] if len(kernel.problem) > _GATES_PLACE else 4
        return [f"{_LAYERS.get(gates, 'lstm')} {way}" for way in ways]
    if kernel.kind in (KernelKind.LINEAR, KernelKind.BMM):
        return ["gemm, tensor cores"] if is_tensor else [kernel.kind.value]
    is_row = kernel.kind in (KernelKind.SOFTMAX, KernelKind.LAYER_NORM)
    return [kernel.kind.value if is_row else KernelKind.ELEMENTWISE.value]


def combined_error(
    kernels: Iterable[tuple[Kernel, float]], card: Card, idle_seconds: float = 0.0
) -> float | None:
    """Return the relative error of a time: of kernels with their seconds, and of waiting for the host.

    What computes shares a sustained clock, what moves memory a bandwidth: these errors add up. The two,
    and the host's, are independent. None for a processor calibrated as a card, and where nothing takes time.
    """
    if card.is_host:
        return None
    compute = moved = total = 0.0
    for kernel, seconds in kernels:
        total += seconds
        off = seconds * kernel_error(kernel, card)
        if kernel.kind in _COMPUTE:
            compute += off
        else:
            moved += off
    total += idle_seconds
    return math.hypot(compute, moved, _HOST_ERROR * idle_seconds) / total if total else None
