"""What every device offers, and how one is found by its name; imports torch only when asked."""

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from perfsuite.errors import DeviceMissing
from perfsuite.insight import Insight
from perfsuite.metrics import Tolerance

KNOWN = ("auto", "cpu", "cuda", "cuda:N", "model:CARD", "model:NxCARD@LINK")


@dataclass(frozen=True)
class DeviceFacts:
    """What identifies a device in a baseline; None where there is no such thing."""

    kind: str  # cpu, cuda
    name: str
    clock: str
    threads: int | None = None
    uuid: str | None = None
    memory_bytes: int | None = None
    driver: str | None = None
    cuda: str | None = None
    ranks: int | None = None  # how many processes measure together, each on one of these


@dataclass(frozen=True)
class Timing:
    """What a device saw between start and stop."""

    step_seconds: tuple[float, ...]
    wall_seconds: float
    utilization: float | None = None
    peak_memory_bytes: float | None = None
    reported: Mapping[str, float] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    utilization_swing: float | None = None
    idle_stretch_seconds: float | None = None
    invalid: tuple[str, ...] = ()  # why the window does not count
    conditions: Mapping[str, float] = field(default_factory=dict)  # what must not differ from the baseline's
    series: tuple[float, ...] = ()  # utilization over time, evenly spaced
    memory_series: tuple[float, ...] = ()  # bytes over time


class Window(Protocol):
    """One stretch of measured steps."""

    def mark(self) -> None:
        """Note the end of a step without waiting for the device."""

    def known(self) -> Sequence[float]:
        """Return the seconds of the steps that are known to be over, without waiting."""

    def stop(self) -> Timing:
        """Wait for the device once and return what it saw."""

    def close(self) -> None:
        """End whatever runs beside the steps, also after a step that raised; may be called twice."""


class Device(Protocol):
    """Something steps run on, with its own clock."""

    name: str
    is_accelerator: bool
    modelled: bool
    min_seconds: float  # a shorter window cannot carry this device's figures
    tolerances: Mapping[str, Tolerance]

    def facts(self) -> DeviceFacts:
        """Return what identifies the device."""

    def count(self) -> int:
        """Return how many devices of this kind there are."""

    def now(self) -> float:
        """Return the host's clock in seconds."""

    def wait(self) -> None:
        """Make the host wait until the device has nothing left to do."""

    def state(self) -> Hashable:
        """Return a value that changes while compiling or allocating is still going on."""

    def begin_test(self) -> None:
        """Take the present memory as the test's zero, so that tests do not inherit peaks."""

    def start(self) -> Window:
        """Open a window; the clock runs from here."""

    def inspect(
        self,
        step: Callable[[], object],
        step_seconds: float,
        resident: Callable[[], object] | None = None,
    ) -> Insight:
        """Look at a few more steps after the window, never in it; what cannot be seen is missing.

        `resident` is a loop's step on a batch that is there already.
        """

    def cool_down(self, seconds: float) -> None:
        """Let the device rest before a measurement that did not count is repeated."""


def open_device(name: str, root: Path | None = None) -> Device:
    """Return the device of that name, or say why it cannot be had."""
    if name == "cpu":
        from perfsuite.devices.cpu import CpuDevice

        return CpuDevice(root)
    if name == "auto":
        from perfsuite.devices.cuda.device import available_count

        return open_device("cuda" if available_count() else "cpu", root)
    kind, _, index = name.partition(":")
    if kind == "cuda" and (not index or index.isdecimal()) and name != "cuda:":
        from perfsuite.devices.cuda.device import open_cuda

        return open_cuda(int(index) if index else None)
    if kind == "model" and index:
        from perfsuite.devices.model.device import open_model

        return open_model(index, root)
    raise DeviceMissing(f"unknown device {name!r}; known: {', '.join(KNOWN)}")
