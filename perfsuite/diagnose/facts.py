"""Input and output of a rule of the diagnosis: the facts of a reading, and a cause."""

import math
from collections.abc import Callable
from dataclasses import dataclass

from perfsuite.records import Reading
from perfsuite.units import Unit, show

MINOR = 0.02  # share of the step: less is not worth a line
_HEADROOM = 1.25  # workers do not keep pace evenly
_FEW_WORKERS, _MANY_WORKERS = 8, 32


@dataclass(frozen=True)
class Cause:
    """One cause of lost time: its evidence, what to try, and how much of the step it takes."""

    name: str  # also the anchor in docs/diagnosis.md
    title: str
    evidence: str
    advice: str
    weight: float  # share of the step's time, by which causes are ranked
    share: str = ""  # the name of its share of the step, if it has one
    explains: tuple[str, ...] = ()  # metrics whose growth it would explain


class Facts:
    """A reading's shares and numbers under short names."""

    def __init__(self, reading: Reading) -> None:
        self.reading = reading
        self.shares = reading.shares
        self.clues = reading.clues
        self.waited = reading.data_wait or 0.0
        self.batch = reading.samples / reading.steps if reading.steps else 0.0
        self.is_gpu = reading.is_accelerator
        self.step_seconds = reading.wall_seconds / reading.steps if reading.steps else 0.0

    def share(self, name: str) -> float:
        """Return a share of the step, 0 if the device did not measure it."""
        return self.shares.get(name, 0.0)

    def number(self, name: str, default: float = 0.0) -> float:
        """Return a clue that is a number."""
        value = self.reading.clues.get(name, default)
        return value if isinstance(value, float | int) else default

    def text(self, name: str) -> str:
        """Return a clue that is text."""
        return str(self.reading.clues.get(name, ""))

    @property
    def gain_without_loader(self) -> float | None:
        """Return the share of the step that the rerun on one resident batch saved, None without a rerun."""
        resident = self.number("resident_step_seconds")
        return max(1 - resident / self.step_seconds, 0.0) if resident > 0 and self.step_seconds > 0 else None

    @property
    def useful_workers(self) -> int:
        """Return the number of workers beyond which more never help on this host."""
        return max(_FEW_WORKERS, min(int(self.number("cores", 1)), _MANY_WORKERS))

    @property
    def helpful_workers(self) -> int:
        """Return the largest number of workers worth trying: at most one per core if samples compute."""
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


def percent(share: float) -> str:
    """Return a share in percent."""
    return show(share, Unit.FRACTION)


def seconds_text(seconds: float) -> str:
    """Return a time in human units."""
    return show(seconds, Unit.SECONDS)
