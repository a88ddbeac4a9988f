"""A CUDA device: one event per step, one wait at the end, the allocator's peak as the gated memory."""

import contextlib
import os
import time
from collections.abc import Callable, Hashable, Mapping
from dataclasses import replace
from typing import Any

from perfsuite.devices import DeviceFacts
from perfsuite.devices.cuda.cuda_window import CudaWindow
from perfsuite.devices.cuda.identity import contradiction, nvml_uuids
from perfsuite.devices.cuda.nvml import Nvml, open_nvml
from perfsuite.devices.cuda.profile import inspect
from perfsuite.devices.cuda.sampler import Sampler
from perfsuite.devices.torch_access import compile_state, load_torch
from perfsuite.errors import DeviceMissing, RunInvalid
from perfsuite.insight import Insight
from perfsuite.metrics import Tolerance
from perfsuite.processes.family import Family


def available_count() -> int:
    """Return how many CUDA devices torch sees, 0 without torch."""
    torch = load_torch()
    return int(torch.cuda.device_count()) if torch is not None and torch.cuda.is_available() else 0


def torch_told() -> str:
    """Say which torch there is and whether it reaches a GPU."""
    torch = load_torch()
    if torch is None:
        return "torch is not installed"
    if torch.version.cuda is None:
        return f"torch {torch.__version__} (a build without CUDA: nothing can be measured on a GPU with it)"
    count = available_count()
    return f"torch {torch.__version__} for CUDA {torch.version.cuda}, sees {count} of the cards"


def open_cuda(index: int | None) -> "CudaDevice":
    """Return the CUDA device of that index (torch's current one for None), or say why there is none."""
    torch = load_torch()
    wanted = "cuda" if index is None else f"cuda:{index}"
    if torch is None:
        raise DeviceMissing(f"device {wanted} was asked for, but torch is not installed")
    if torch.version.cuda is None:
        raise DeviceMissing(
            f"device {wanted} was asked for, but torch {torch.__version__} is a build without CUDA; "
            "install a CUDA build, or measure with --perf-device=cpu"
        )
    if not torch.cuda.is_available():
        raise DeviceMissing(
            f"device {wanted} was asked for, but torch {torch.__version__} for CUDA {torch.version.cuda} "
            "sees none; "
            "check nvidia-smi and CUDA_VISIBLE_DEVICES, or measure with --perf-device=cpu"
        )
    count = torch.cuda.device_count()
    number = torch.cuda.current_device() if index is None else index
    if number >= count:
        raise DeviceMissing(
            f"device {wanted} was asked for, but torch sees {count}: cuda:0 to cuda:{count - 1}"
        )
    return CudaDevice(torch, number)


class CudaDevice:
    """Measure on one GPU through torch's current stream."""

    is_accelerator = True
    modelled = False
    min_seconds = 5.0  # NVML renews its utilization every 1/6 to 1 s; fewer samples are a guess
    tolerances: Mapping[str, Tolerance] = {}

    def __init__(self, torch: Any, index: int, nvml: Nvml | None = None) -> None:
        self._torch = torch
        self._index = index
        self.name = f"cuda:{index}"
        # Tests say device="cuda"; it must mean the device that is measured.
        torch.cuda.set_device(index)
        self._nvml = open_nvml(nvml_uuids(self.bare_uuid(index), index, os.environ)) if nvml is None else nvml

    def facts(self) -> DeviceFacts:
        """Return the card's name, UUID and memory, the driver and CUDA."""
        properties = self._torch.cuda.get_device_properties(self._index)
        return DeviceFacts(
            "cuda",
            properties.name,
            "CUDA events",
            uuid=self._uuid(),
            memory_bytes=properties.total_memory,
            driver=self._driver(),
            cuda=self._torch.version.cuda,
        )

    def _driver(self) -> str | None:
        try:
            version = self._nvml.ask_system("nvmlSystemGetDriverVersion").value
        except RunInvalid:  # told by every window
            return None
        return None if version is None else str(version)

    def bare_uuid(self, index: int) -> str:
        """Return a card's UUID by torch's index, as torch prints it."""
        return str(self._torch.cuda.get_device_properties(index).uuid)

    def _uuid(self) -> str:
        # torch prints the bare number; baselines want the prefix that says what it names.
        bare = self.bare_uuid(self._index)
        return bare if bare.startswith(("GPU-", "MIG-")) else f"GPU-{bare}"

    def count(self) -> int:
        """Return how many CUDA devices torch sees."""
        return int(self._torch.cuda.device_count())

    def now(self) -> float:
        """Return the host's wall clock."""
        return time.perf_counter()

    def wait(self) -> None:
        """Wait for all streams of the device."""
        self._torch.cuda.synchronize(self._index)  # the CPU waits here

    def state(self) -> Hashable:
        """Return what still moves while compiling, autotuning and growing the allocator's pools."""
        stats = self._torch.cuda.memory_stats(self._index)
        return (compile_state(), stats.get("num_device_alloc", 0), stats.get("num_alloc_retries", 0))

    def begin_test(self) -> None:
        """Give cached blocks back, so that reserved memory is this test's own."""
        self.wait()
        self._torch.cuda.empty_cache()

    def release(self) -> None:
        """Give cached blocks back: fresh processes may measure next, and find the card full."""
        with contextlib.suppress(RuntimeError):  # after a failed step the device may be unusable
            self._torch.cuda.empty_cache()

    def start(self) -> CudaWindow:
        """Empty the queue, reset the peaks, start sampler and clock."""
        self.wait()
        self._torch.cuda.reset_peak_memory_stats(self._index)
        own_bytes = float(self._torch.cuda.memory_reserved(self._index))
        sampler = Sampler(self._nvml, kin=Family.from_environment(), own_bytes=own_bytes)
        other_card = contradiction(self._uuid(), self._index, os.environ)
        return CudaWindow(self._torch, self._index, sampler, (other_card,) if other_card else ())

    def inspect(
        self,
        step: Callable[[], object],
        step_seconds: float,
        resident: Callable[[], object] | None = None,  # noqa: ARG002  gaps behind the loader are wanted here
    ) -> Insight:
        """Return the kernel-busy share, launches and synchronisations per step, and where its time goes."""
        seen = inspect(self._torch, self._index, step, step_seconds)
        capacity = self._torch.cuda.get_device_properties(self._index).total_memory
        return replace(seen, clues={**seen.clues, "memory_capacity_bytes": float(capacity)})

    def cool_down(self, seconds: float) -> None:
        """Leave the card alone for a while."""
        self.wait()
        time.sleep(seconds)
