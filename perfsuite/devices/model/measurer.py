"""Count and predict steps, loops and pairs on a modelled device; every reading says that it is modelled."""

import itertools
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from perfsuite.devices.model.loader import LoaderCosts, Starving
from perfsuite.host import Stretch
from perfsuite.insight import Clue, with_data_wait
from perfsuite.measure.feed import Feed
from perfsuite.measure.loader_watch import WORTH_A_LOOK, sample_clues, usable_cores
from perfsuite.measure.loop import LoaderFacts
from perfsuite.measure.step import Progress, quiet_garbage, read
from perfsuite.measure.warmup import Warmup
from perfsuite.metrics import Kind
from perfsuite.records import Reading

if TYPE_CHECKING:
    from perfsuite.devices.model.device import ModelDevice
    from perfsuite.devices.model.window import ModelTiming

_MOST_STEPS = 10  # all steps of most trainings are alike; ten show what happens now and then
_WORKER_START_SECONDS = 0.1  # an interpreter is forked and imports nothing; stated, not measured
_TIMED_BATCHES = 3
_EPOCHS = 3  # played on the lanes: workers start anew at each unless they persist


def model_step(
    step: Callable[[], Any], device: "ModelDevice", progress: Progress, samples_per_step: int
) -> Reading:
    """Count and predict a callable that takes nothing and does one training step."""
    timing, warmup = _run(step, device, progress)
    return _reading(timing, warmup, device, "step", samples_per_step * len(timing.step_seconds))


def model_loop(
    loader: Iterable[Any],
    step: Callable[[Any], Any],
    device: "ModelDevice",
    progress: Progress,
    *,
    samples: int | Callable[[Any], int] | None,
    batch_seconds: float | None,
) -> Reading:
    """Count and predict a loop; batches are ready as their cost and the loader's settings tell."""
    feed = Feed(loader, device.now, samples)

    def run() -> None:
        with device.unwatched():
            batch = feed.next()
        if getattr(loader, "pin_memory", False):
            device.pin(batch)  # torch leaves it undone where there is no accelerator
        step(batch)

    with device.unwatched():
        costs = _loader_costs(loader, batch_seconds)
    timing, warmup = _run(run, device, progress, feed.reset, costs)
    # Epochs are played, not run: what their ends cost shows in few counted steps.
    samples_seen = feed.samples * len(timing.step_seconds) // max(feed.batches, 1)
    reading = _reading(timing, warmup, device, "loop", samples_seen)
    with device.unwatched():
        clues = _loader_clues(loader, costs, timing, reading)
    return replace(
        reading,
        data_wait=timing.data_wait,
        shares=with_data_wait(reading.shares, timing.data_wait),
        clues={**reading.clues, **clues},
        reported={
            **reading.reported,
            "num_workers": float(costs.workers),
            "batch_seconds": costs.batch_seconds,
        },
        notes=reading.notes if batch_seconds is not None else (*reading.notes, _measured_note(costs)),
    )


def _measured_note(costs: LoaderCosts) -> str:
    # What the caller stated needs no telling; what was measured on a busy host does.
    return f"loader: {1e3 * costs.batch_seconds:.3g} ms per batch (measured here)"


def model_pair(
    without: Callable[[], Any],
    with_: Callable[[], Any],
    device: "ModelDevice",
    progress: Progress,
    *,
    samples_per_step: int,
    difference: float | None,
) -> Reading:
    """Count and predict two variants; the ratio is one of predictions and has no interval."""
    readings = []
    for arm in (without, with_):
        timing, warmup = _run(arm, device, progress)
        samples = samples_per_step * len(timing.step_seconds)
        readings.append(_reading(timing, warmup, device, "comparison", samples))
    slow, fast = readings
    ratio = None
    if slow.step_seconds and fast.step_seconds:
        ratio = slow.step_seconds / fast.step_seconds
    return replace(
        fast,
        speedup=ratio,
        speedup_low=ratio,
        speedup_high=ratio,
        difference=difference,
        without=replace(slow, name="without"),
    )


def _run(
    run: Callable[[], Any],
    device: "ModelDevice",
    progress: Progress,
    begin: Callable[[], None] = lambda: None,
    costs: LoaderCosts | None = None,
) -> "tuple[ModelTiming, Warmup]":
    """Run one step to let optimizers make their state, then count until steps tell nothing new."""
    wait = None if costs is None else Starving(costs)
    plays = 0 if costs is None else _EPOCHS * (costs.batches_per_epoch or 0)
    with quiet_garbage():
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
    timing: "ModelTiming", warmup: Warmup, device: "ModelDevice", kind: Kind, samples: int
) -> Reading:
    reading = read(timing, warmup, device, kind=kind, name="", samples=samples)
    return replace(
        reading,
        counts=timing.tally.figures,
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


def _loader_clues(
    loader: Any, costs: LoaderCosts, timing: "ModelTiming", reading: Reading
) -> dict[str, Clue]:
    """Return what the diagnosis needs to know of the loader; the rerun without waiting is predicted too."""
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
    if (reading.data_wait or timing.data_wait or 0.0) >= WORTH_A_LOOK:
        clues = {**sample_clues(loader), **clues}  # a stated cost of a batch is what counts
    return clues


def _timed(loader: Any) -> float:
    """Return what one process needs for a batch, by making a few here: workers would hide it."""
    sampler = getattr(loader, "batch_sampler", None)
    dataset: Any
    dataset, collate = getattr(loader, "dataset", None), getattr(loader, "collate_fn", None)
    if sampler is None or collate is None or not hasattr(dataset, "__getitem__"):
        return 0.0
    best = float("inf")
    for indices in itertools.islice(sampler, _TIMED_BATCHES):
        with Stretch() as batch:  # the clock runs here, and only with a core: a card's steps wait for none
            collate([dataset[index] for index in indices])
        best = min(best, batch.own_seconds)
    return best if best < float("inf") else 0.0
