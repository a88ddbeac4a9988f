"""What the diagnosis knows of a reading, and the rules that need no module of their own."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from perfsuite.records import Reading
from perfsuite.units import Unit, show

DATA_BOUND, LAUNCH_BOUND, TRANSFER_BOUND, SYNC_BOUND = 0.05, 0.15, 0.10, 0.10
HIGHLY = 0.20  # of the step: from here on the input is what a training is bound by
MEMORY_TIGHT = 0.90
_UNDER_FILLED_BATCH = 16
_LOOPED = 16  # the same kernel from the same line this often in a step is worth naming the line
_LOOPED_SURELY = 50  # no network is that deep; fewer may be layers, and a small batch the likelier reason
MINOR = 0.02  # of the step: less is not worth a line
_HEADROOM = 1.25  # workers do not keep pace evenly
_FEW_WORKERS, _MANY_WORKERS = 8, 32


@dataclass(frozen=True)
class Cause:
    """One thing that costs time, what speaks for it, what to try, and how much of the step it takes."""

    name: str  # also the anchor in docs/diagnosis.md
    title: str
    evidence: str
    advice: str
    weight: float  # share of the step's time, by which causes are ranked


class Facts:
    """A reading's shares and numbers under short names."""

    def __init__(self, reading: Reading) -> None:
        self.reading = reading
        self.shares = reading.shares
        self.waited = reading.data_wait or 0.0
        self.batch = reading.samples / reading.steps if reading.steps else 0.0
        self.is_gpu = reading.modelled or reading.device.startswith("cuda")
        self.step_seconds = reading.wall_seconds / reading.steps if reading.steps else 0.0

    def share(self, name: str) -> float:
        """Return a share of the step, 0 where the device does not tell it."""
        return self.shares.get(name, 0.0)

    def number(self, name: str, default: float = 0.0) -> float:
        """Return a clue that is a number."""
        value = self.reading.clues.get(name, default)
        return value if isinstance(value, float | int) else default

    def text(self, name: str) -> str:
        """Return a clue that is a text."""
        return str(self.reading.clues.get(name, ""))

    def has(self, name: str) -> bool:
        """Tell whether there is such a clue."""
        return name in self.reading.clues

    @property
    def gain_without_loader(self) -> float | None:
        """Return the share of the step that a rerun on one resident batch saved, None without a rerun."""
        resident = self.number("resident_step_seconds")
        return max(1 - resident / self.step_seconds, 0.0) if resident > 0 and self.step_seconds > 0 else None

    @property
    def useful_workers(self) -> int:
        """Return the number of workers beyond which more have never helped on this host."""
        return max(_FEW_WORKERS, min(int(self.number("cores", 1)), _MANY_WORKERS))

    @property
    def helpful_workers(self) -> int:
        """Return the most workers worth trying: as many as there are cores where samples compute."""
        is_computing = self.number("sample_cpu_share") >= 0.5
        return (
            min(self.useful_workers, max(int(self.number("cores", 1)), 1))
            if is_computing
            else self.useful_workers
        )

    @property
    def needed_workers(self) -> int:
        """Return how many workers would keep up with the step, from the cost of a batch and of the step."""
        resident = self.number("resident_step_seconds")
        batch = self.number("batch_seconds")
        return math.ceil(_HEADROOM * batch / resident) if resident > 0 and batch > 0 else 0


Rule = Callable[[Facts], Cause | None]


def transfer_bound(facts: Facts) -> Cause | None:
    """Waiting for copies to the device."""
    share = facts.share("transfer")
    pageable = facts.number("pageable_bytes") or facts.number("pageable_copies")
    if share < (MINOR if pageable else TRANSFER_BOUND):
        return None
    where = f" at {facts.text('copy_place')}" if facts.has("copy_place") else ""
    if pageable:
        title = "transfer-bound: copies from pageable memory block the host"
        advice = "Try pin_memory=True in the loader and .to(device, non_blocking=True)"
    elif facts.number("blocking_copies"):
        title = "transfer-bound: copies to the device block the host"
        advice = "Try .to(device, non_blocking=True): the batch is pinned already"
    else:
        title = "transfer-bound: copies to the device are not hidden behind kernels"
        advice = "Move smaller types (uint8, bfloat16), or keep data that fits on the device"
    moved = facts.number("pageable_bytes") + facts.number("pinned_bytes")
    size = f" for {show(moved, Unit.BYTES)} a step" if moved else ""
    return Cause("transfer-bound", title, f"transfer {percent(share)}{size}{where}", advice, share)


def percent(share: float) -> str:
    """Return a share as a person reads it."""
    return show(share, Unit.FRACTION)


def seconds_told(seconds: float) -> str:
    """Return a time as a person reads it."""
    return show(seconds, Unit.SECONDS)


def looped_calls(facts: Facts) -> Mapping[str, object] | None:
    """Return the line that launches the same kernel many times a step, None where none does."""
    times = facts.number("repeated_kernel_count")
    return {"times": times, "place": facts.text("repeated_kernel_place")} if times >= _LOOPED else None


def is_small_batch(facts: Facts) -> bool:
    """Tell whether few samples a step are the likelier reason for small kernels than a loop."""
    looped = facts.number("repeated_kernel_count") >= _LOOPED_SURELY
    return 1 < facts.batch <= _UNDER_FILLED_BATCH and not looped
