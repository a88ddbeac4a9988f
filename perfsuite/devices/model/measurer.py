"""Count and predict steps, loops and pairs on a modelled device; every reading is marked as modelled."""

import itertools
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

from perfsuite.devices.model.loader import LoaderCosts, LoaderSchedule
from perfsuite.devices.model.window import ModelTiming, ModelWindow
from perfsuite.devices.protocol import Device, Plan, Progress
from perfsuite.host import Stopwatch
from perfsuite.measure.loader_watch import WAIT_WORTH_CHECKING, sample_clues, usable_cores
from perfsuite.measure.loop import Feed, LoaderFacts
from perfsuite.measure.step import Warmup, gc_paused, read
from perfsuite.metrics import Kind
from perfsuite.records import Clue, Reading, with_data_wait

_MOST_STEPS = 10  # all steps of most trainings are alike; ten show what happens only in some
_WORKER_START_SECONDS = 0.1  # an interpreter is forked and imports nothing; an assumption, not measured
_TIMED_BATCHES = 3
_EPOCHS = 3  # played on the timeline: workers restart at each unless they persist


class CountingDevice(Device):
    """A modelled card: what it has beyond other devices."""

    @abstractmethod
    def start(self) -> ModelWindow:
        """Open a window and start counting."""

    @abstractmethod
    def unwatched(self) -> AbstractContextManager[None]:
        """Count nothing inside the context: a loader works on the host."""

    @abstractmethod
    def pin(self, batch: Any) -> None:
        """Treat a batch's tensors as pinned."""


class ModelMeasurer:
    """Count steps, loops and pairs on a modelled card and predict their times."""

    def __init__(self, device: CountingDevice, plan: Plan) -> None:
        self._device = device
        self._progress = plan.progress

    def step(self, step: Callable[[], Any], *, samples_per_step: int, name: str) -> Reading:
        """Count and predict a training step."""
        run = _run(step, self._device, self._progress)
        return _reading(run, self._device, "step", name, samples_per_step * len(run[0].step_seconds))

    def loop(
        self,
        loader: Iterable[Any],
        step: Callable[[Any], Any],
        *,
        samples: int | Callable[[Any], int] | None,
        name: str,
        batch_seconds: float | None = None,
    ) -> Reading:
        """Count and predict a loop; the loader's settings and cost decide when a batch is ready."""
        device = self._device
        feed = Feed(loader, device.now, samples)

        def run() -> None:
            with device.unwatched():
                batch = feed.next()
            if getattr(loader, "pin_memory", False):
                device.pin(batch)  # torch does not pin where there is no accelerator
            step(batch)

        with device.unwatched():
            costs = _loader_costs(loader, batch_seconds)
        timing, warmup = _run(run, device, self._progress, feed.reset, costs)
        # Epochs are played, not run: few counted steps are enough to show what their ends cost.
        sample_count = feed.samples * len(timing.step_seconds) // max(feed.batches, 1)
        reading = _reading((timing, warmup), device, "loop", name, sample_count)
        with device.unwatched():
            clues = _loader_clues(loader, costs, timing, reading)
        return replace(
            reading.with_figures(data_wait=timing.data_wait),
            shares=with_data_wait(reading.shares, timing.data_wait),
            clues={**reading.clues, **clues},
            reported={
                **reading.reported,
                "num_workers": float(costs.workers),
                "batch_seconds": costs.batch_seconds,
            },
            notes=reading.notes if batch_seconds is not None else (*reading.notes, _measured_note(costs)),
        )

    def pair(
        self,
        without: Callable[[], Any],
        with_: Callable[[], Any],
        *,
        samples_per_step: int,
        name: str,
    ) -> Reading:
        """Count and predict two variants; their ratio is a prediction, so its interval has no width."""
        readings = []
        for variant in (without, with_):
            run = _run(variant, self._device, self._progress)
            samples = samples_per_step * len(run[0].step_seconds)
            readings.append(_reading(run, self._device, "comparison", name, samples))
        slow, fast = readings
        ratio = None
        if slow.step_seconds and fast.step_seconds:
            ratio = slow.step_seconds / fast.step_seconds
        return replace(
            fast.with_figures(speedup=ratio),
            notes=(*fast.notes, *_undecided(ratio, slow, fast)),
            intervals={} if ratio is None else {"speedup": (ratio, ratio)},
            without=replace(slow, name="without"),
        )


def _undecided(ratio: float | None, *arms: Reading) -> Iterator[str]:
    """Yield a note if two predicted steps differ by less than each of them is typically off."""
    errors = [error for arm in arms if (error := arm.reported.get("modelled_step_error")) is not None]
    if ratio and errors and max(ratio, 1 / ratio) - 1 < max(errors):
        yield (
            f"speedup: which variant is faster is undecided, {ratio:.2f}× is within the error "
            f"of a predicted step (±{100 * max(errors):.0f} %)"
        )


def _measured_note(costs: LoaderCosts) -> str:
    # A cost stated by the caller needs no note; one that was measured, perhaps on a busy host, does.
    return f"loader: {1e3 * costs.batch_seconds:.3g} ms per batch (measured here)"


def _run(
    run: Callable[[], Any],
    device: CountingDevice,
    progress: Progress,
    begin: Callable[[], None] = lambda: None,
    costs: LoaderCosts | None = None,
) -> tuple[ModelTiming, Warmup]:
    """Run one step to let optimizers create their state, then count until steps show nothing new."""
    wait = None if costs is None else LoaderSchedule(costs)
    plays = 0 if costs is None else _EPOCHS * (costs.batches_per_epoch or 0)
    with gc_paused():
        window = device.start()
        try:
            progress("warm-up", 0, 0.0)
            run()
            window.mark()
            first = window.stop(wait, plays) if window.is_huge() else None
        finally:
            window.close()
        if first is not None:
            return first, Warmup(0, ("counted in its first step: it is too large to be run twice",))
        begin()
        window = device.start()
        try:
            for count in range(1, _MOST_STEPS + 1):
                progress("counting", count, 0.0)
                run()
                window.mark()
                if window.is_enough():
                    break
            return window.stop(wait, plays), Warmup(1)
        finally:
            window.close()


def _reading(
    run: tuple[ModelTiming, Warmup], device: CountingDevice, kind: Kind, name: str, samples: int
) -> Reading:
    timing, warmup = run
    reading = read(timing, warmup, device, kind=kind, name=name, samples=samples)
    return replace(
        reading,
        places=timing.tally.places,
        lines=timing.tally.lines,
        shares=timing.insight.shares,
        clues=timing.insight.clues,
    )


def _loader_costs(loader: Any, batch_seconds: float | None) -> LoaderCosts:
    facts = LoaderFacts.from_loader(loader)
    length = len(loader) if hasattr(loader, "__len__") else None
    return LoaderCosts(
        _timed(loader) if batch_seconds is None else batch_seconds,
        facts.num_workers,
        facts.prefetch_factor or 2,
        bool(getattr(loader, "persistent_workers", False)),
        length or None,
        _WORKER_START_SECONDS if facts.num_workers else 0.0,
    )


def _loader_clues(loader: Any, costs: LoaderCosts, timing: ModelTiming, reading: Reading) -> dict[str, Clue]:
    """Return what the diagnosis needs to know about the loader; the step without waiting is predicted too."""
    clues: dict[str, Clue] = {
        "num_workers": float(costs.workers),
        "prefetch_factor": float(costs.prefetch if costs.workers else 0),
        "persistent_workers": float(costs.persistent),
        "cores": float(usable_cores()),
        "batch_seconds": costs.batch_seconds,
        "resident_step_seconds": timing.resident_seconds,
    }
    if costs.batches_per_epoch and timing.data_wait:
        mean_step = timing.wall_seconds / len(timing.step_seconds)
        clues |= {"epoch_steps": float(costs.batches_per_epoch), "epochs": float(_EPOCHS)}
        clues["epoch_seconds"] = mean_step * costs.batches_per_epoch
        clues["epoch_wait_share"] = timing.first_wait_seconds / (timing.data_wait * timing.wall_seconds)
    if (reading.data_wait or timing.data_wait or 0.0) >= WAIT_WORTH_CHECKING:
        clues = {**sample_clues(loader), **clues}  # a stated cost of a batch takes precedence
    return clues


def _timed(loader: Any) -> float:
    """Return the time one process needs for a batch, by making a few here: workers would hide it."""
    sampler = getattr(loader, "batch_sampler", None)
    dataset: Any
    dataset, collate = getattr(loader, "dataset", None), getattr(loader, "collate_fn", None)
    if sampler is None or collate is None or not hasattr(dataset, "__getitem__"):
        return 0.0
    best = float("inf")
    for indices in itertools.islice(sampler, _TIMED_BATCHES):
        # Only time on a core counts: a card's steps do not compete with the loader for it.
        with Stopwatch() as timed:  # the clock runs here
            collate([dataset[index] for index in indices])
        best = min(best, timed.unqueued_seconds)
    return best if best < float("inf") else 0.0
