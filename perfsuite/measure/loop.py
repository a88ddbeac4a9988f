"""Measure a training loop: the time of its steps, and how long they wait for the loader."""

import operator
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any

from perfsuite.devices.protocol import Device, Plan
from perfsuite.errors import UnusableStep
from perfsuite.measure.loader_watch import (
    RERUN_ERRORS,
    WAIT_WORTH_CHECKING,
    LoaderWatch,
    sample_clues,
    shallow_copy,
)
from perfsuite.measure.step import gc_paused, look_into, read, run_window, warm_up
from perfsuite.records import Clue, Reading, with_data_wait
from perfsuite.statistics import median

_RERUN_SHARE = 0.2  # of the window's length, for the rerun on one resident batch


@dataclass(frozen=True)
class LoaderFacts:
    """How many batches a loader prepares ahead."""

    num_workers: int = 0
    prefetch_factor: int = 0

    @classmethod
    def from_loader(cls, loader: object) -> "LoaderFacts":
        """Read the settings of a DataLoader, or of any object with the same attribute names."""
        workers = getattr(loader, "num_workers", 0) or 0
        ahead = getattr(loader, "prefetch_factor", 0) or 0
        return cls(
            workers if isinstance(workers, int) else 0,
            ahead if isinstance(ahead, int) else 0,
        )

    @property
    def prefetched(self) -> int:
        """Return how many batches are ready after a pause."""
        return self.num_workers * self.prefetch_factor


def count_samples(batch: Any, samples: int | Callable[[Any], int] | None) -> int:
    """Return the samples in a batch: as given, counted by a function, or its first tensor's length."""
    if callable(samples):
        return _whole(samples(batch))
    if samples is not None:
        return samples
    length = _first_length(batch)
    if length is None:
        raise UnusableStep(
            f"cannot tell how many samples a batch of type {type(batch).__name__} holds; "
            "give samples_per_step=64, or samples_per_step=lambda batch: ..."
        )
    return length


def _whole(count: Any) -> int:
    """Return a caller's count as an int; it may be the integer of an array or tensor library."""
    try:
        whole = operator.index(count) if hasattr(count, "__index__") else int(count)
        is_whole = whole == count
    except (TypeError, ValueError, RuntimeError, OverflowError):  # RuntimeError: a tensor of many elements
        is_whole = False
    if not is_whole or whole < 0:
        raise UnusableStep(f"samples_per_step must return a whole number of samples, got {count!r:.60}")
    return whole


def _first_length(value: Any) -> int | None:
    shape = getattr(value, "shape", None)
    if shape is not None:
        return int(shape[0]) if len(shape) else None
    inner: Iterable[Any] = ()
    if isinstance(value, Mapping):
        inner = value.values()
    elif isinstance(value, list | tuple):
        inner = value
    elif is_dataclass(value) and not isinstance(value, type):
        inner = (getattr(value, item.name) for item in fields(value))
    return next((length for part in inner if (length := _first_length(part)) is not None), None)


class Feed:
    """Hand out batches endlessly, counting samples and the seconds spent waiting for them."""

    def __init__(
        self,
        loader: Iterable[Any],
        now: Callable[[], float],
        samples: int | Callable[[Any], int] | None,
    ) -> None:
        self._loader = loader
        self._now = now
        self._count = samples
        self._iterator: Iterator[Any] = iter(())
        self._is_used = False
        self.reset()

    def reset(self) -> None:
        """Reset all counters."""
        self.samples = 0
        self.batches = 0
        self.waited_seconds = 0.0
        self.epochs = 0
        self.epoch_waited_seconds = 0.0  # for the first batch of each epoch

    def next(self) -> Any:
        """Return the next batch, starting a new epoch when one ends."""
        started, epochs = self._now(), self.epochs
        batch = self._take()
        self._is_used = True
        waited = self._now() - started
        self.waited_seconds += waited
        if self.epochs > epochs:
            self.epoch_waited_seconds += waited
        self.samples += count_samples(batch, self._count)
        self.batches += 1
        return batch

    def _take(self) -> Any:
        for batch in self._iterator:
            return batch
        self.epochs += 1
        self._iterator = iter(self._loader)
        for batch in self._iterator:
            return batch
        if self._is_used:
            raise UnusableStep(
                "the loader ended and cannot be iterated again: hand over the loader itself, not an iterator"
            )
        raise UnusableStep("the loader gave no batch: an empty loader cannot be measured")


def measure_loop(
    loader: Iterable[Any],
    step: Callable[[Any], Any],
    device: Device,
    plan: Plan,
    *,
    samples: int | Callable[[Any], int] | None,
    name: str = "",
) -> Reading:
    """Measure a training loop; the time blocked in the loader is counted separately."""
    feed = Feed(loader, device.now, samples)

    def run() -> None:
        step(feed.next())

    facts = LoaderFacts.from_loader(loader)
    with gc_paused():
        watch = LoaderWatch(loader)
        warmup = warm_up(run, device, plan.max_seconds, plan.progress, plan.together)
        # These batches were prepared during the warm-up: they cost no waiting and would hide a slow loader.
        for _ in range(facts.prefetched):
            run()
        device.wait()
        feed.reset()
        watch.begin()
        longer = replace(plan, min_steps=max(plan.min_steps, 5 * facts.prefetched))
        timing = run_window(run, device, longer, warmup.step_seconds)
        waited = feed.waited_seconds / timing.wall_seconds if timing.wall_seconds > 0 else None
        sample_count = feed.samples  # before the inspection takes more batches
        clues = watch.clues(feed, timing.wall_seconds)
        batch = feed.next()

        def resident() -> None:
            step(shallow_copy(batch))

        insight, counted = look_into(run, device, plan, median(timing.step_seconds), resident)
        if plan.together.any(waited is not None and waited >= WAIT_WORTH_CHECKING):
            clues |= {**sample_clues(loader), **_without_waiting(resident, device, longer)}
    shares = with_data_wait(insight.shares, None if waited is None else min(waited, 1.0))
    insight = replace(insight, shares=shares, clues={**insight.clues, **clues})
    return read(
        timing,
        warmup,
        device,
        kind="loop",
        name=name,
        samples=sample_count,
        figures={} if waited is None else {"data_wait": min(waited, 1.0)},
        reported={"num_workers": float(facts.num_workers)},
        insight=insight,
        counted=counted,
    )


def _without_waiting(resident: Callable[[], Any], device: Device, plan: Plan) -> dict[str, Clue]:
    """Run the step on one resident batch: the time it saves is the proven share of the loader."""
    brief = Plan(
        _RERUN_SHARE * plan.min_seconds,
        _RERUN_SHARE * plan.max_seconds,
        progress=plan.progress,
        together=plan.together,
    )
    try:
        resident()
        device.wait()
        timing = run_window(resident, device, brief)
    except RERUN_ERRORS as error:
        return {"resident_refusal": f"{type(error).__name__}: {error}"}
    return {"resident_step_seconds": timing.wall_seconds / len(timing.step_seconds)}
