"""A kernel launch and the other events of a step; plain records without torch."""

from dataclasses import dataclass
from enum import Enum
from typing import Literal

from perfsuite.devices.code_lines import UNKNOWN, Place


class KernelKind(Enum):
    """The cost rule a kernel follows."""

    LINEAR = "linear"  # one matrix product
    BMM = "bmm"  # a batch of them
    CONVOLUTION = "convolution"
    ATTENTION = "attention"
    RECURRENCE = "recurrence"
    ELEMENTWISE = "element-wise"
    REDUCTION = "reduction"
    SOFTMAX = "softmax"
    LAYER_NORM = "layer norm"
    MULTI_TENSOR = "multi-tensor"  # foreach and fused optimizers
    BYTES = "bytes only"  # an operator without a rule


@dataclass(frozen=True)
class Kernel:
    """One operator's work on the device."""

    op: str
    kind: KernelKind
    flops: float
    read_bytes: int
    written_bytes: int
    precision: str  # float32, tf32, float16, bfloat16, …
    launches: int = 1
    # batch, m, n, k of a product; 1, rows, width, 0 of a row op; others: devices/problems.py
    problem: tuple[int, ...] = (1, 0, 0, 0)
    copies: int = 0  # within the card, beside its kernels or in their place
    scratch_bytes: int = 0  # memory it takes and returns itself

    @property
    def commands(self) -> int:
        """Return what the host gives the card for it."""
        return self.launches + self.copies

    @property
    def moved_bytes(self) -> int:
        """Return the bytes the kernel reads and writes."""
        return self.read_bytes + self.written_bytes


@dataclass(frozen=True, eq=False)  # shared by all launches of a kernel from a line, and counted by identity
class Launch:
    """A kernel put into the device's queue."""

    kernel: Kernel
    place: Place


@dataclass(frozen=True)
class Sync:
    """The host waits until the device's queue is empty."""

    op: str
    place: Place


@dataclass(frozen=True)
class Copy:
    """A copy over the bus."""

    direction: Literal["h2d", "d2h"]
    size_bytes: int
    pinned: bool
    blocking: bool  # the host waits for it
    place: Place


@dataclass(frozen=True)
class HostWork:
    """An operator on host tensors: costs host time and launches nothing."""

    op: str
    size_bytes: int
    place: Place


@dataclass(frozen=True)
class OptimizerMark:
    """The begin or end of an optimizer step; costs nothing."""

    is_begin: bool


@dataclass(frozen=True)
class Gradient:
    """A parameter's gradient is ready; recorded where several cards are modelled, and costs nothing."""

    parameter: int
    size_bytes: int


@dataclass(frozen=True)
class Reduce:
    """A bucket of gradients is full: its all-reduce may start."""

    size_bytes: int
    seconds: float


@dataclass(frozen=True)
class Reduced:
    """The following work on the device needs every bucket sent so far."""


REDUCED = Reduced()
VIEW = HostWork("view", 0, UNKNOWN)  # launches nothing, but costs the host time
Event = Launch | Sync | Copy | HostWork | OptimizerMark | Gradient | Reduce | Reduced
