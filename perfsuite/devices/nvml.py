"""NVIDIA's management library: the card by its UUID, its utilization sampled beside the measured steps."""

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

_PERIOD_SECONDS = 0.5  # NVML takes the driver's lock: asking more often slows what is measured
_MIN_SAMPLES = 4


@dataclass(frozen=True)
class Sampled:
    """What the sampler saw; notes say why something is absent."""

    utilization: float | None = None
    reported: Mapping[str, float] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


class Nvml:
    """One card behind the binding, or the reason why there is none."""

    def __init__(self, binding: Any = None, handle: Any = None, absent: str = "") -> None:
        self._binding = binding
        self._handle = handle
        self.absent = absent

    def driver(self) -> str | None:
        """Return the driver's version."""
        version, _ = self._ask(lambda: self._binding.nvmlSystemGetDriverVersion())
        return None if version is None else str(version)

    def utilization(self) -> tuple[float | None, str]:
        """Return the share of the last sample period with at least one kernel running."""
        rates, why = self._ask(lambda: self._binding.nvmlDeviceGetUtilizationRates(self._handle))
        return (None if rates is None else rates.gpu / 100), why

    def used_bytes(self) -> tuple[float | None, str]:
        """Return total minus free memory of the card, other processes included."""
        memory, why = self._ask(lambda: self._binding.nvmlDeviceGetMemoryInfo(self._handle))
        return (None if memory is None else float(memory.total - memory.free)), why

    def _ask(self, question: Callable[[], Any]) -> tuple[Any, str]:
        if self._binding is None:
            return None, self.absent
        try:
            return question(), ""
        except self._binding.NVMLError as error:
            return None, f"NVML: {error}"


def open_nvml(uuid: str) -> Nvml:
    """Return the card with that UUID, never one by its index: NVML and CUDA number differently."""
    try:
        import pynvml
    except ModuleNotFoundError:
        return Nvml(absent="nvidia-ml-py is not installed")
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        return Nvml(absent=f"NVML: {error}")
    bare = uuid.removeprefix("GPU-").removeprefix("MIG-")
    for name in (f"GPU-{bare}", f"MIG-{bare}"):
        try:
            return Nvml(pynvml, pynvml.nvmlDeviceGetHandleByUUID(name))
        except pynvml.NVMLError as error:
            why = f"NVML does not know {name}: {error}"
    return Nvml(absent=why)


class Sampler:
    """Ask NVML in a thread of its own until stopped."""

    def __init__(self, nvml: Nvml, period_seconds: float = _PERIOD_SECONDS) -> None:
        self._nvml = nvml
        self._period = period_seconds
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="perfsuite-nvml", daemon=True)
        self._shares: list[float] = []
        self._used: list[float] = []
        self._why = nvml.absent

    def start(self) -> None:
        """Begin sampling; without a card there is nothing to start."""
        if not self._nvml.absent:
            self._thread.start()

    def _run(self) -> None:
        # The first answer describes the time before the window: wait one period first.
        while not self._over.wait(self._period):
            share, why = self._nvml.utilization()
            used, _ = self._nvml.used_bytes()
            self._why = why or self._why
            if share is not None:
                self._shares.append(share)
            if used is not None:
                self._used.append(used)

    def stop(self) -> Sampled:
        """End sampling and return the mean; too few samples are no utilization."""
        self._over.set()
        if self._thread.is_alive():
            # A call stuck in the driver must not hang the test; the thread is a daemon.
            self._thread.join(timeout=2 * self._period)
        count = len(self._shares)
        reported = {"utilization_samples": float(count)}
        if self._used:
            reported["device_used_bytes"] = max(self._used)
        if count >= _MIN_SAMPLES:
            return Sampled(sum(self._shares) / count, reported)
        why = self._why or f"{count} samples are too few to judge, measure longer with --perf-min-time"
        return Sampled(None, reported, (f"utilization: {why}",))
