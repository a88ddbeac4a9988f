"""The interface of a device; a new vendor is one folder here with a Device and a DeviceKind."""

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol

from perfsuite.metrics import Tolerance
from perfsuite.processes.world import ALONE, Together
from perfsuite.records import Counted, DeviceFacts, Insight, Reading

MIN_STEPS = 10

Progress = Callable[[str, int, float], None]  # phase, steps so far, seconds so far
Workload = Callable[[], object]


@dataclass(frozen=True)
class Timing:
    """What a device measured between start and stop."""

    step_seconds: tuple[float, ...]
    wall_seconds: float
    figures: Mapping[str, float] = field(default_factory=dict)  # metric → figure; not measured: no entry
    reported: Mapping[str, float] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    invalid: tuple[str, ...] = ()  # why the window does not count
    conditions: Mapping[str, float] = field(default_factory=dict)  # must not differ from the baseline's
    series: tuple[float, ...] = ()  # utilization over time, evenly spaced
    memory_series: tuple[float, ...] = ()  # bytes over time


class Window(Protocol):
    """A run of measured steps."""

    def mark(self) -> None:
        """Record the end of a step without waiting for the device."""

    def known(self) -> Sequence[float]:
        """Return the seconds of the steps that are known to have finished, without waiting."""

    def stop(self) -> Timing:
        """Wait for the device once and return what it measured."""

    def close(self) -> None:
        """Stop background work, also after a step that raised; may be called twice."""


@dataclass(frozen=True)
class Plan:
    """How long to measure, whether with references, where to show progress, which processes to agree with."""

    min_seconds: float = 1.0
    max_seconds: float = 10.0
    min_steps: int = MIN_STEPS
    progress: Progress = lambda *_: None
    together: Together = ALONE  # ranks must do the same number of steps, or a collective waits forever
    with_references: bool = False  # also time steps in turns with the device's references
    needs_utilization: bool = False  # a limit is on it: the window must be long enough for it


class Measurer(Protocol):
    """How steps, loops and pairs become readings on a device."""

    def step(self, step: Callable[[], Any], *, samples_per_step: int, name: str) -> Reading:
        """Measure a training step."""

    def loop(
        self,
        loader: Iterable[Any],
        step: Callable[[Any], Any],
        *,
        samples: int | Callable[[Any], int] | None,
        name: str,
        batch_seconds: float | None = None,
    ) -> Reading:
        """Measure a training loop; `batch_seconds` is the cost of a batch where it is not measured."""

    def pair(
        self,
        without: Callable[[], Any],
        with_: Callable[[], Any],
        *,
        samples_per_step: int,
        name: str,
    ) -> Reading:
        """Measure two variants against each other."""


class Device(ABC):
    """What steps run on, with its clock.

    Derive from it, also outside of perfsuite. Most devices need not override the methods that have a body.
    """

    name: str  # as --perf-device spells it
    is_accelerator: bool = False
    modelled: bool = False  # its times are predicted
    origin: str = ""  # the word for its figures, where neither «measured» nor «modelled» is it
    is_one_process: bool = False  # plays several cards by itself: no ranks are started for it
    learns: bool = False  # one step of the warm-up goes through learn()
    lasts_a_session: bool = False  # it has something to say, and to give back, when the session ends
    has_values: bool = True  # False: nothing is computed, so results can be neither compared nor learned from
    collectives: str = "gloo"  # the backend, in torch's words, that ranks on such devices talk by
    clock_repeats: bool = True  # False: many steps of exactly the same duration were not really timed
    compares_times: bool = True  # False: they vary with the host's load, and no stored ones stand beside them
    min_seconds: float = 1.0  # a shorter window is too short for this device's figures
    tolerances: Mapping[str, Tolerance] = MappingProxyType({})  # where the metric's default does not fit

    @property
    def torch_name(self) -> str:
        """Return the name torch knows the device by: `model.to(perf.device)`."""
        return self.name

    @abstractmethod
    def facts(self) -> DeviceFacts:
        """Return what identifies the device."""

    @abstractmethod
    def start(self) -> Window:
        """Open a window and start its clock."""

    def now(self) -> float:
        """Return the host's clock in seconds."""
        return time.perf_counter()

    def wait(self) -> None:
        """Block the host until the device has finished all its work."""

    def state(self) -> Hashable:
        """Return a value that changes as long as compilation or allocation is still going on."""
        return None

    def utilization_seconds(self) -> float:
        """Return how long a window must be for its utilization to be judged; called after the warm-up."""
        return 0.0

    def learn(self, step: Callable[[], object]) -> None:
        """Look at a step during the warm-up, where that is needed to time those that follow."""
        del step

    def count(self) -> int:
        """Return how many devices of this kind there are."""
        return 1

    def counted(self, step: Callable[[], object]) -> Counted:
        """Count what a few more steps do, after the window; nothing where that cannot be counted exactly."""
        del step
        return Counted()

    def closing_words(self) -> tuple[str, ...]:
        """Return what should be said of the device when the session ends."""
        return ()

    def leave(self) -> None:
        """Give back what lasts as long as the session."""

    def begin_test(self) -> None:
        """Take the current memory use as the test's zero, so that tests do not inherit peaks."""

    def end_test(self) -> None:
        """Stop watching the test; its fixtures still exist."""

    def release(self) -> None:
        """Free what is still held for a finished test: a fresh process may need it."""

    def inspect(
        self,
        step: Callable[[], object],
        step_seconds: float,
        resident: Callable[[], object] | None = None,
    ) -> Insight:
        """Profile a few more steps after the window, never in it; what cannot be observed is missing.

        `resident` is a loop's step on a batch that is already on the device.
        """
        del step, step_seconds, resident
        return Insight()

    def references(self) -> Mapping[str, Workload]:
        """Return workloads (metric → workload) timed in turns with a step, to detect a slow machine."""
        return {}

    def lock_names(self, *, needs_all: bool = False) -> tuple[str, ...]:
        """Return the locks that keep other runs off; with `needs_all`, of every device of this kind."""
        del needs_all
        return ()

    def measurer(self, plan: Plan) -> Measurer | None:
        """Return the device's special measurer; None for devices whose steps are simply timed."""
        del plan
        return None

    def cool_down(self, seconds: float) -> None:
        """Let the device rest before a measurement that did not count is repeated."""
        time.sleep(seconds)


@dataclass(frozen=True)
class DeviceKind:
    """A kind of device: how it is spelled, counted and opened. A folder in devices/ exports it as KIND."""

    name: str  # the part before the colon
    spellings: tuple[str, ...]  # for help and messages
    open: Callable[[str, Path | None], Device | None]  # takes the part after the colon; None: no such device
    count: Callable[[], int] = lambda: 0  # accelerators of this kind here; `auto` takes the first with any
    is_modelled: bool = False  # its times are predicted, in one process
    covers: str = ""  # the kind whose cards these really are: where it is present, that one is not asked
    # The environment a process must be started with to have the device; None where it has it as it is.
    environment: Callable[[str, Path | None, Mapping[str, str]], Mapping[str, str] | None] = lambda *_: None
    visible_variable: str = ""  # the environment variable that limits a process to single cards, if any
    visible_cards: Callable[[Mapping[str, str]], tuple[str, ...]] = lambda _: ()  # its values, card by card
