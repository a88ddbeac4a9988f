"""A window on a modelled card: events and memory in, counted figures and predicted times out."""

import itertools
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from perfsuite.devices.code_lines import Place, largest, per_step
from perfsuite.devices.kernels import Copy, Event, Gradient, Launch, Sync
from perfsuite.devices.model.cards import Card, Ring
from perfsuite.devices.model.data_parallel import Exchange, exchange, seconds_in_all
from perfsuite.devices.model.memory import Peak, classify_gradients, find_parameters
from perfsuite.devices.model.timeline import Played, Timeline, utilization_series
from perfsuite.devices.model.watcher import Watcher
from perfsuite.devices.model.what_if import resident_seconds, what_if
from perfsuite.devices.protocol import Timing
from perfsuite.devices.torch_access import watch_gradients
from perfsuite.records import Insight

_KINDS = {
    "parameter_memory": "parameters",
    "gradient_memory": "gradients",
    "optimizer_memory": "optimizer",
    "activation_memory": "activations",
}
_COUNTED = ("kernels", "syncs", "h2d_bytes", "d2h_bytes", "blocking_copies", "d2d_copies", "flops")
_ENOUGH_LAUNCHES, _ENOUGH_FLOPS = 20_000, 1e11  # of a window: more steps would show nothing new
_HUGE_LAUNCHES, _HUGE_FLOPS = 300_000, 2e12  # of a step: it is run only once
_SERIES_POINTS = 200
_MOST_PLAYED = 300_000  # events: about a second


@dataclass(frozen=True)
class Tally:
    """The counted figures of a step, under the names of their metrics."""

    figures: dict[str, float]
    places: dict[str, dict[str, float]] = field(default_factory=dict)  # metric → place → figure
    lines: dict[str, int] = field(default_factory=dict)  # place → its line number now
    reported: dict[str, float] = field(default_factory=dict)  # counted, and no metric


def tally(steps: Sequence[Sequence[Event]], peak: Peak) -> Tally:
    """Return the means over all steps: whole numbers if all steps do the same."""
    by: dict[str, Counter[Place]] = {name: Counter() for name in _COUNTED}
    copies = Counter({"h2d_copies": 0, "d2h_copies": 0})
    for events in steps:
        for event, times in Counter(events).items():
            if isinstance(event, Launch):
                by["kernels"][event.place] += times * event.kernel.launches
                if event.kernel.copies:
                    by["d2d_copies"][event.place] += times * event.kernel.copies
                by["flops"][event.place] += times * round(event.kernel.flops)
            elif isinstance(event, Sync):
                by["syncs"][event.place] += times
            elif isinstance(event, Copy):
                by[f"{event.direction}_bytes"][event.place] += times * event.size_bytes
                by["blocking_copies"][event.place] += times * event.blocking
                copies[f"{event.direction}_copies"] += times
    figures = {name: per_step(sum(counts.values()), len(steps)) for name, counts in by.items()}
    figures |= {name: float(peak.by_kind.get(kind, 0)) for name, kind in _KINDS.items()}
    by["peak_memory"] = Counter(peak.by_place)
    counted = {name: counts for name, counts in by.items() if counts}
    return Tally(
        figures,
        {
            name: largest(counts, 1 if name == "peak_memory" else len(steps))
            for name, counts in counted.items()
        },
        {place.key: place.line for counts in counted.values() for place in counts},
        {name: per_step(count, len(steps)) for name, count in copies.items()},
    )


@dataclass(frozen=True)
class ModelTiming(Timing):
    """A predicted timing, with the counted figures."""

    tally: Tally = field(default_factory=lambda: Tally({}))
    data_wait: float | None = None
    insight: Insight = field(default_factory=Insight)
    resident_seconds: float = 0.0  # of a step whose batch is already there
    first_wait_seconds: float = 0.0  # for the first batches of epochs


class ModelWindow:
    """A window of steps, each a list of events."""

    def __init__(self, watcher: Watcher, card: Card, ring: Ring | None = None) -> None:
        self._watcher = watcher
        self._card = card
        self._ring = ring
        self.steps: list[list[Event]] = []
        if not watcher.has_residents:
            watcher.all_resident = True
        self._parameters = find_parameters(watcher.memory)
        watched = () if ring is None else self._parameters
        self._end_gradients = watch_gradients(watched, self._note_gradient)
        watcher.events = []
        watcher.later.let_go()
        self._unknown_before = watcher.later.not_computed
        watcher.memory.open()
        watcher.is_counting = True

    def _note_gradient(self, number: int, parameter: Any) -> None:
        block = self._watcher.memory.block(parameter.untyped_storage())
        if self._watcher.is_counting and block is not None and block.resident:
            size_bytes = parameter.numel() * parameter.element_size()
            self._watcher.events.append(Gradient(number, size_bytes))

    def mark(self) -> None:
        """Record the end of a step."""
        events, self._watcher.events = self._watcher.events, []
        classify_gradients(self._watcher.memory, self._parameters)
        self._watcher.places.forget_forward()
        self.steps.append(events)

    def is_huge(self) -> bool:
        """Return whether a step is too large to run twice."""
        launches, flops = self._effort()
        return launches >= _HUGE_LAUNCHES or flops >= _HUGE_FLOPS

    def is_enough(self) -> bool:
        """Return whether further steps would only repeat what is known."""
        launches, flops = self._effort()
        return launches >= _ENOUGH_LAUNCHES or flops >= _ENOUGH_FLOPS

    def _effort(self) -> tuple[int, float]:
        launches = [event for events in self.steps for event in events if isinstance(event, Launch)]
        return len(launches), sum(event.kernel.flops for event in launches)

    def known(self) -> Sequence[float]:
        """Return nothing: times are only known at the end."""
        return ()

    def stop(self, wait: Callable[[float], float] | None = None, plays: int = 0) -> ModelTiming:
        """Add up the counts and play the steps on the timeline, at least `plays` of them."""
        peak = self._watcher.memory.close()
        self.close()
        shared = None if self._ring is None else exchange(self.steps, self._ring)
        steps = self.steps if shared is None else shared.steps
        timeline = Timeline(self._card)
        events = max(sum(map(len, self.steps)) // len(self.steps), 1)
        plays = max(len(self.steps), min(plays, _MOST_PLAYED // events))
        for i in range(plays):
            timeline.play(steps[i % len(steps)], wait)
        played = timeline.result()
        ends, counted = (0.0, *played.step_ends), tally(self.steps, peak)
        return ModelTiming(
            step_seconds=tuple(after - before for before, after in itertools.pairwise(ends)),
            wall_seconds=played.seconds,
            figures={
                **({} if played.busy_share is None else {"utilization": played.busy_share}),
                "peak_memory": float(peak.size_bytes),
                **counted.figures,
            },
            reported={
                **_reported(played, self._watcher),
                **counted.reported,
                **self._reported_of(shared, played, plays),
            },
            notes=(*(shared.notes(self._card) if shared else ()), *self._notes()),
            tally=counted,
            series=tuple(utilization_series(played, played.seconds / _SERIES_POINTS)),
            data_wait=played.wait_seconds / played.seconds if wait is not None and played.seconds else None,
            insight=self._insight(steps, played),
            resident_seconds=resident_seconds(steps, self._card) if wait is not None else 0.0,
            first_wait_seconds=getattr(wait, "first_wait_seconds", 0.0),
        )

    def _reported_of(self, shared: Exchange | None, played: Played, plays: int) -> dict[str, float]:
        if shared is None:
            return {}
        # Both without the loader: how the loaders of several cards affect each other is not known.
        alone, together = (seconds_in_all(steps, self._card, plays) for steps in (self.steps, shared.steps))
        return shared.reported(played, alone, together)

    def _insight(self, steps: Sequence[Sequence[Event]], played: Played) -> Insight:
        insight = what_if(steps, self._card, played)
        capacity = {"memory_capacity_bytes": self._card.memory_bytes}
        return Insight(insight.figures, insight.shares, {**insight.clues, **capacity})

    def close(self) -> None:
        """Stop counting."""
        self._end_gradients()
        self._watcher.is_counting = False
        self._watcher.events = []

    def _notes(self) -> tuple[str, ...]:
        watcher, notes = self._watcher, []
        if watcher.all_resident:
            notes.append("nothing was moved to perf.device: every tensor counts as on the modelled card")
        if watcher.by_bytes:
            notes.append(f"no cost rule, costed by their bytes: {', '.join(sorted(watcher.by_bytes))}")
        if watcher.misplaced:
            place, count = next(iter(watcher.misplaced.items()))
            where = f"{place.key.partition(': ')[0]}:{place.line}"
            notes.append(
                f"{count} host tensor(s) were used as if they were on the card, first at {where}: "
                "a real card would raise an error"
            )
        if unknown := watcher.later.not_computed - self._unknown_before:
            notes.append(
                f"{unknown} value(s) read were too expensive to compute: taken as 0, weights as they were"
            )
        if self._card.memory_bytes < watcher.memory.highest_bytes:
            notes.append(f"more than the {self._card.memory_bytes / 1e9:.0f} GB of the {self._card.title}")
        return tuple(notes)


def _reported(played: Played, watcher: Watcher) -> dict[str, float]:
    total = played.seconds or 1.0
    return {
        **{f"modelled_{cause}_gap_share": seconds / total for cause, seconds in played.gaps.items()},
        "operators_without_rule": float(len(watcher.by_bytes)),
        **({} if played.relative_error is None else {"modelled_step_error": played.relative_error}),
    }
