"""The ordinary CUDA device on an emulated card: everything is torch's own, only the card below it is not."""

import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from perfsuite.devices.cuda.device import CudaDevice
from perfsuite.devices.emulated.counts import read_counts, render_refused
from perfsuite.devices.emulated.launch import RUN, Wanted, leave_folder
from perfsuite.devices.emulated.runtime import Runtime
from perfsuite.devices.protocol import Measurer, Plan
from perfsuite.devices.torch_access import load_torch
from perfsuite.errors import DeviceMissing
from perfsuite.measure.measurer import ClockMeasurer
from perfsuite.metrics import Tolerance
from perfsuite.processes.world import Place
from perfsuite.records import Counted, DeviceFacts, Insight

_ENOUGH_SECONDS = 2.5


def open_emulated(wanted: Wanted, root: Path) -> "EmulatedDevice":
    """Return the card of this process's rank, the first where it has none."""
    torch = load_torch()
    if torch is None:
        raise DeviceMissing(f"emulated:{wanted.name}: torch is not installed")
    runtime = Runtime()
    if not torch.cuda.is_available():
        raise DeviceMissing(
            f"emulated:{wanted.name}: torch {torch.__version__} sees no card on the emulator's libraries; "
            "CUDA_VISIBLE_DEVICES may hide it, or this torch needs something the emulator does not have: "
            "try python -m perfsuite emulate a10 -- python -c 'import torch; torch.cuda.init()'"
        )
    place = Place.from_environment()
    return EmulatedDevice(torch, 0 if place is None else place.local_rank, wanted, root, runtime)


class EmulatedDevice(CudaDevice):
    """Measure as on CUDA; counts are exact, times the model's for the card and real for the host."""

    modelled = True
    origin = "emulated"
    learns = True
    lasts_a_session = True
    has_values = False
    collectives = "gloo"  # there is no NCCL
    compares_times = False  # the host's part of them is real, and hosts differ
    min_seconds = 2.0  # as many of NVML's periods as its utilization needs
    tolerances: Mapping[str, Tolerance] = {"peak_memory": Tolerance(0.0)}

    def __init__(self, torch: Any, index: int, wanted: Wanted, root: Path, runtime: Runtime) -> None:
        if index >= torch.cuda.device_count():
            raise DeviceMissing(
                f"emulated:{wanted.name}: this is rank {index} of more ranks than cards; "
                f"emulate more: --perf-device=emulated:{index + 1}x{wanted.card.name}"
            )
        super().__init__(torch, index)
        self._wanted = wanted
        self._root = root
        self._runtime = runtime
        self.name = f"emulated:{wanted.name}"

    @property
    def torch_name(self) -> str:
        """Return the card as torch spells it."""
        return f"cuda:{self._index}"

    def begin_test(self) -> None:
        """Let the test find cuBLAS without workspaces: those of another would be part of its peak."""
        self._torch._C._cuda_clearCublasWorkspaces()
        super().begin_test()

    def facts(self) -> DeviceFacts:
        """Return the card's name as that of an emulated one."""
        card = self._wanted.card
        return DeviceFacts(
            f"emulated-{self._wanted.name}",
            f"{card.title} emulated",
            "emulated, kernels last what the model predicts, the host's time is real",
            memory_bytes=int(card.memory_bytes),
            cuda=self._torch.version.cuda,
        )

    def _hides_others(self) -> bool:
        return False  # the card is this run's own

    def learn(self, step: Callable[[], object]) -> None:
        """Learn from one step how long its kernels take."""
        from perfsuite.devices.emulated.learn import learn

        learn(self._runtime, step, self._wanted.card)
        self.wait()

    def measurer(self, plan: Plan) -> Measurer:
        """Return the ordinary measurer, for a shorter time: no precision of times is promised."""
        brief = max(plan.min_seconds, _ENOUGH_SECONDS)
        return ClockMeasurer(self, replace(plan, max_seconds=min(plan.max_seconds, brief)))

    def counted(self, step: Callable[[], object]) -> Counted:
        """Count a few steps, every launch, copy and wait with its line, and predict what one takes."""
        from perfsuite.devices.emulated.learn import learn, predicted
        from perfsuite.devices.emulated.peak import peak_places
        from perfsuite.devices.emulated.tally import counted

        found = counted(self._runtime, step, self._root, self.wait)
        held, lines = peak_places(self._torch, self._index, step, self._root, self._memory.allocated)
        # Kernels of two variants may share name and geometry: what this one's take is learnt from it alone.
        lesson = learn(self._runtime, step, self._wanted.card)
        self.wait()
        return replace(
            found,
            places={**found.places, "peak_memory": held},
            lines={**found.lines, **lines},
            reported={**found.reported, **predicted(lesson, found.figures, self._wanted.card)},
        )

    def inspect(
        self,
        step: Callable[[], object],
        step_seconds: float,
        resident: Callable[[], object] | None = None,
    ) -> Insight:
        """Look into the step as on CUDA."""
        insight = super().inspect(step, step_seconds, resident)
        return replace(
            insight, clues={**insight.clues, "memory_capacity_bytes": self._wanted.card.memory_bytes}
        )

    def closing_words(self) -> tuple[str, ...]:
        """Name the functions called that the card does not have, in this process and those it started."""
        folder = os.environ.get(RUN)
        refused = render_refused([*self._runtime.counts(), *(read_counts(Path(folder)) if folder else ())])
        return (refused,) if refused else ()

    def leave(self) -> None:
        """Remove the run's folder, if this process is the one it was made for."""
        leave_folder()

    def cool_down(self, _seconds: float) -> None:
        """Return at once: it does not get warm."""
