"""A CUDA device: one event per step, one synchronization at the end, the allocator's peak as memory."""

import contextlib
import gc
import os
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

from perfsuite.devices.cuda.allocations import AllocationWatch
from perfsuite.devices.cuda.card import Card
from perfsuite.devices.cuda.identity import Platform, bare_uuid, contradiction, lock_name, open_torch_card
from perfsuite.devices.cuda.nvml import Nvml
from perfsuite.devices.cuda.profile import inspect
from perfsuite.devices.cuda.sampler import Sampler, utilization_seconds
from perfsuite.devices.protocol import Device, Timing
from perfsuite.devices.torch_access import compile_state, load_torch
from perfsuite.errors import DeviceMissing, RunInvalid
from perfsuite.host import cpu_name
from perfsuite.metrics import Tolerance
from perfsuite.processes.world import RunProcesses, hides_others
from perfsuite.records import DeviceFacts, Insight

# If the events of one stream differ more from the wall time, work runs on other streams.
_STREAM_MISMATCH = 0.02
_READ_AT_ONCE = 64  # events in the window: reading one takes microseconds, of the step that comes next


@dataclass(frozen=True)
class MemoryBase:
    """The bytes that were there before a test: what earlier tests left, and cuBLAS's workspaces."""

    allocated: float = 0.0
    reserved: float = 0.0
    workspaces: float = 0.0

    @staticmethod
    def above(peak: float, base: float) -> float:
        """Return a test's own bytes; it may have freed what was there before."""
        return max(float(peak - base), 0.0)

    @classmethod
    def from_card(cls, torch: Any, index: int) -> "MemoryBase":
        """Free what earlier tests left behind, let cuBLAS take its workspaces, and read what remains.

        cuBLAS keeps a workspace for every thread and stream from its first product on. Taken now, they are
        the same for all tests, whichever came first; freeing them later would pull them from under graphs.
        """
        gc.collect()
        torch._C._cuda_clearCublasWorkspaces()
        torch.cuda.empty_cache()
        before = float(torch.cuda.memory_allocated(index))
        _multiply_once(torch, index)
        allocated = float(torch.cuda.memory_allocated(index))
        return cls(allocated, float(torch.cuda.memory_reserved(index)), allocated - before)


def _multiply_once(torch: Any, index: int) -> None:
    """Use cuBLAS and cuBLASLt in this thread and in autograd's: each has handles of its own.

    cuBLASLt adds a bias, under checkpointing in autograd's thread too. In torch 2.9 it has a workspace apart.
    """

    def multiply(values: Any) -> Any:
        return torch.addmm(values[0], values, values @ values)

    with torch.enable_grad():
        weight = torch.zeros(8, 8, device=f"cuda:{index}", requires_grad=True)
        weight.register_hook(multiply)
        multiply(weight).sum().backward()


class CudaWindow:
    """A window of events on the current stream; nothing waits before stop."""

    def __init__(
        self,
        torch: Any,
        index: int,
        sampler: Sampler,
        memory: "MemoryBase",
        notes: tuple[str, ...] = (),
    ) -> None:
        self._torch = torch
        self._index = index
        self._sampler = sampler
        self._memory = memory
        self._notes = notes
        self._compiled = sum(compile_state())
        self._sampler.start()
        self._allocator = AllocationWatch(torch, index)
        self._events: list[Any] = []
        self._seconds: list[float] = []
        self._wall_start = time.perf_counter()  # the clock runs from here
        self._record()

    def _record(self) -> None:
        event = self._torch.cuda.Event(enable_timing=True)
        event.record()
        self._events.append(event)

    def mark(self) -> None:
        """Record an event after the step's work."""
        self._record()
        self._allocator.after_step(len(self._events) - 1)

    def known(self) -> Sequence[float]:
        """Return the steps read so far, some more at each call; queries events, and never waits for them."""
        return self._read(_READ_AT_ONCE)

    def _read(self, most: int) -> list[float]:
        """Read up to that many events more, in order, as far as they have completed."""
        last = len(self._seconds) + 1
        end = min(last + most, len(self._events))
        while last < end and self._events[last].query():
            self._seconds.append(self._events[last - 1].elapsed_time(self._events[last]) / 1e3)
            last += 1
        return self._seconds

    def stop(self) -> Timing:
        """Wait once, then read all events, the allocator and NVML."""
        self._torch.cuda.synchronize(self._index)  # the CPU waits here, once per window
        wall = time.perf_counter() - self._wall_start
        self._allocator.end_block(len(self._events) - 1)
        sampled = self._sampler.stop()
        steps = tuple(self._read(len(self._events)))
        notes, invalid = self._allocator.check(steps)
        series, summary = sampled.utilization, sampled.summary
        advice = f" (--perf-min-time={series.needed_seconds}s)" if series.needed_seconds else ""
        absent = (f"utilization: {series.why}{advice}",) if series.why else ()
        reported = {
            **self._held(),
            "cublas_workspace_bytes": self._memory.workspaces,
            "alloc_retries": float(self._allocator.grown("num_alloc_retries")),
            "device_allocations": float(self._allocator.grown("num_device_alloc")),
            **({} if series.period_s is None else {"utilization_period_seconds": series.period_s}),
            **summary.reported,
        }
        return Timing(
            steps,
            wall,
            {
                **series.figures(),
                "peak_memory": self._memory.above(
                    self._torch.cuda.max_memory_allocated(self._index), self._memory.allocated
                ),
            },
            reported,
            (*absent, *self._notes, *summary.notes, *notes, *_streams(steps, wall)),
            invalid=(*summary.invalid, *invalid, *_compiled(sum(compile_state()) - self._compiled)),
            conditions=summary.conditions,
            series=series.points(),
            memory_series=summary.memory,
        )

    def close(self) -> None:
        """Stop the sampler without touching the device: after a failed step it may be unusable."""
        self._sampler.stop()

    def _held(self) -> dict[str, float]:
        """Return what the allocator took beyond the tensors in it, each at its own peak."""
        reserved = self._torch.cuda.max_memory_reserved(self._index)
        split = self._torch.cuda.memory_stats(self._index).get("inactive_split_bytes.all.peak")
        return {
            "reserved_memory_bytes": self._memory.above(reserved, self._memory.reserved),
            "unallocated_reserved_bytes": float(
                reserved - self._torch.cuda.max_memory_allocated(self._index)
            ),
            **({} if split is None else {"fragmented_bytes": float(split)}),
        }


def _compiled(count: int) -> tuple[str, ...]:
    """Return a reason if something was compiled in the window: that belongs in the warm-up."""
    return (f"something was compiled in the measured part ({count} graphs and frames)",) if count > 0 else ()


def _streams(steps: Sequence[float], wall: float) -> tuple[str, ...]:
    """Return a note if the current stream's events do not add up to the wall time."""
    total = sum(steps)
    if not steps or wall <= 0 or abs(total - wall) / wall <= _STREAM_MISMATCH:
        return ()
    return (f"events add up to {total:.3f} s of {wall:.3f} s wall time: work may run on other streams",)


def available_count() -> int:
    """Return the number of CUDA devices torch sees, 0 without torch."""
    torch = load_torch()
    return int(torch.cuda.device_count()) if torch is not None and torch.cuda.is_available() else 0


def torch_text() -> str:
    """Describe the installed torch and the GPUs it sees."""
    torch = load_torch()
    if torch is None:
        return "torch is not installed"
    platform = Platform.from_torch(torch)
    if platform is None:
        return f"torch {torch.__version__} (a build without CUDA: nothing can be measured on a GPU with it)"
    return f"torch {torch.__version__} for {platform}, sees {available_count()} of the cards"


def open_cuda(index: int | None) -> "CudaDevice":
    """Return the CUDA device of that index (None: torch's current one), or raise with the reason."""
    torch = load_torch()
    requested = "cuda" if index is None else f"cuda:{index}"
    if torch is None:
        raise DeviceMissing(f"device {requested} was requested, but torch is not installed")
    platform = Platform.from_torch(torch)
    if platform is None:
        raise DeviceMissing(
            f"device {requested} was requested, but torch {torch.__version__} is a build without CUDA; "
            "install a build for CUDA or ROCm, or measure with --perf-device=cpu"
        )
    if not torch.cuda.is_available():
        raise DeviceMissing(
            f"device {requested} was requested, but torch {torch.__version__} for {platform} sees none; "
            f"check {platform.tool} and CUDA_VISIBLE_DEVICES, or measure with --perf-device=cpu"
        )
    count = torch.cuda.device_count()
    number = torch.cuda.current_device() if index is None else index
    if number >= count:
        raise DeviceMissing(
            f"device {requested} was requested, but torch sees {count}: cuda:0 to cuda:{count - 1}"
        )
    return CudaDevice(torch, number)


class CudaDevice(Device):
    """Measure on one GPU through torch's current stream."""

    is_accelerator = True
    collectives = "cpu:gloo,cuda:nccl"
    min_seconds = 5.0  # NVML renews its utilization every 1/6 to 1 s; fewer samples are a guess
    tolerances: Mapping[str, Tolerance] = MappingProxyType(
        {
            # Counted in three steps: cuDNN and cuBLAS may choose other kernels the next time, and what
            # happens every tenth step falls into some of these three or into none.
            **dict.fromkeys(("kernels", "launches", "d2d_copies", "memsets"), Tolerance(0.05, absolute=0.5)),
            **dict.fromkeys(("syncs", "blocking_copies"), Tolerance(0.0, absolute=0.5)),
        }
    )

    def __init__(self, torch: Any, index: int, nvml: Nvml | None = None) -> None:
        self._torch = torch
        self._index = index
        self.name = f"cuda:{index}"
        # Tests write device="cuda"; it must mean the device that is measured.
        torch.cuda.set_device(index)
        self._memory = MemoryBase()
        self._nvml = open_torch_card(torch, index, os.environ) if nvml is None else nvml

    def facts(self) -> DeviceFacts:
        """Return the card's name, UUID and memory, and the versions of driver and platform."""
        properties = self._torch.cuda.get_device_properties(self._index)
        platform = Platform.from_torch(self._torch)
        return DeviceFacts(
            "cuda" if platform is None else platform.kind,
            properties.name,
            "CUDA events" if platform is None else platform.clock,
            uuid=self._uuid(),
            memory_bytes=properties.total_memory,
            driver=self._driver(),
            cuda=self._torch.version.cuda,
            host=cpu_name(),  # most steps are as fast as the host launches them
        )

    def _driver(self) -> str | None:
        try:
            version = self._nvml.ask_system("nvmlSystemGetDriverVersion").value
        except RunInvalid:  # every window reports it
            return None
        return None if version is None else str(version)

    def _uuid(self) -> str:
        # torch prints the UUID without a prefix; baselines need the prefix that says what it names.
        bare = bare_uuid(self._torch, self._index)
        return bare if bare.startswith(("GPU-", "MIG-")) else f"GPU-{bare}"

    def count(self) -> int:
        """Return the number of CUDA devices torch sees."""
        return int(self._torch.cuda.device_count())

    def wait(self) -> None:
        """Wait for all streams of the device."""
        self._torch.cuda.synchronize(self._index)  # the CPU waits here

    def state(self) -> Hashable:
        """Return the counters that change while compiling, autotuning or growing the allocator's pools."""
        stats = self._torch.cuda.memory_stats(self._index)
        return (compile_state(), stats.get("num_device_alloc", 0), stats.get("num_alloc_retries", 0))

    def utilization_seconds(self) -> float:
        """Return as many of this card's sample periods as utilization needs."""
        try:
            return utilization_seconds(Card(self._nvml))
        except RunInvalid:  # every window reports it
            return 0.0

    def begin_test(self) -> None:
        """Take the memory in use as the test's zero."""
        self.wait()
        self._memory = MemoryBase.from_card(self._torch, self._index)

    def lock_names(self, *, needs_all: bool = False) -> tuple[str, ...]:
        """Return the UUID of this card, or of all: a test for several cards does not say which it uses."""
        indices = range(self.count()) if needs_all else (self._index,)
        return tuple(lock_name(bare_uuid(self._torch, index), index) for index in indices)

    def release(self) -> None:
        """Release cached blocks: otherwise fresh processes that measure next may find the card full."""
        with contextlib.suppress(RuntimeError):  # after a failed step the device may be unusable
            self._torch.cuda.empty_cache()

    def start(self) -> CudaWindow:
        """Empty the queue, reset the peaks, start the sampler and the clock."""
        self.wait()
        self._torch.cuda.reset_peak_memory_stats(self._index)
        own_bytes = float(self._torch.cuda.memory_reserved(self._index))
        sampler = Sampler(
            self._nvml,
            ours=RunProcesses.from_environment(),
            own_bytes=own_bytes,
            hides_others=self._hides_others(),
        )
        other_card = contradiction(self._uuid(), self._index, os.environ)
        notes = (other_card,) if other_card else ()
        return CudaWindow(self._torch, self._index, sampler, self._memory, notes)

    def _hides_others(self) -> bool:
        return hides_others()

    def inspect(
        self,
        step: Callable[[], object],
        step_seconds: float,
        resident: Callable[[], object] | None = None,  # noqa: ARG002  the loader's gaps must show here
    ) -> Insight:
        """Return the kernel-busy share, kernels and waits per step, and where its time goes."""
        insight = inspect(self._torch, self._index, step, step_seconds)
        capacity = self._torch.cuda.get_device_properties(self._index).total_memory
        return replace(insight, clues={**insight.clues, "memory_capacity_bytes": float(capacity)})

    def cool_down(self, seconds: float) -> None:
        """Let the card rest for a while."""
        self.wait()
        time.sleep(seconds)
