"""One stretch of steps on a modelled card: events and memory in, counted figures and predicted times out."""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from perfsuite.devices import Timing
from perfsuite.devices.gradient_marks import watch_gradients
from perfsuite.devices.kernels import Event, Gradient, Launch
from perfsuite.devices.model.cards import Card
from perfsuite.devices.model.data_parallel import Exchange, exchange, seconds_in_all
from perfsuite.devices.model.ghosts import Ghosts
from perfsuite.devices.model.kinds import classify_gradients, find_parameters
from perfsuite.devices.model.links import Ring
from perfsuite.devices.model.tally import Tally, tally
from perfsuite.devices.model.timeline import Played, Timeline, utilization_series
from perfsuite.devices.model.watcher import Watcher
from perfsuite.devices.model.what_if import resident_seconds, what_if
from perfsuite.insight import Insight

_ENOUGH_LAUNCHES, _ENOUGH_FLOPS = 20_000, 1e11  # of one window: more steps would tell nothing new
_HUGE_LAUNCHES, _HUGE_FLOPS = 300_000, 2e12  # of one step: it is run once
_BUDGET_BYTES = 2**30  # of activations kept whole on the host
_SERIES_POINTS = 200
_MOST_PLAYED = 300_000  # events: a second or so


@dataclass(frozen=True)
class ModelTiming(Timing):
    """A timing that was predicted, with what was counted."""

    tally: Tally = field(default_factory=lambda: Tally({}))
    data_wait: float | None = None
    insight: Insight = field(default_factory=Insight)
    resident_seconds: float = 0.0  # of a step whose batch is there
    first_wait_seconds: float = 0.0  # for the first batches of epochs


class ModelWindow:
    """Steps as lists of events."""

    def __init__(self, watcher: Watcher, card: Card, ring: Ring | None = None) -> None:
        self._watcher = watcher
        self._card = card
        self._ring = ring
        self.steps: list[list[Event]] = []
        self._ghosts = Ghosts(watcher.memory, _BUDGET_BYTES)
        if not watcher.has_residents:
            watcher.all_resident = True
        self._parameters = find_parameters(watcher.memory)
        watched = () if ring is None else self._parameters
        self._end_gradients = watch_gradients(watched, self._note_gradient)
        watcher.events = []
        watcher.ghosts = self._ghosts
        watcher.memory.open()
        watcher.is_counting = True

    def _note_gradient(self, number: int, parameter: Any) -> None:
        block = self._watcher.memory.block(parameter.untyped_storage())
        if self._watcher.is_counting and block is not None and block.resident:
            size_bytes = parameter.numel() * parameter.element_size()
            self._watcher.events.append(Gradient(number, size_bytes))

    def mark(self) -> None:
        """Note the end of a step."""
        self._ghosts.end()
        events, self._watcher.events = self._watcher.events, []
        classify_gradients(self._watcher.memory, self._parameters)
        self._watcher.places.forget_forward()
        self.steps.append(events)

    def is_huge(self) -> bool:
        """Tell whether a step is too large to be run twice."""
        launches, flops = self._effort()
        return bool(self._ghosts.count) or launches >= _HUGE_LAUNCHES or flops >= _HUGE_FLOPS

    def is_enough(self) -> bool:
        """Tell whether further steps would only repeat what is known."""
        launches, flops = self._effort()
        return launches >= _ENOUGH_LAUNCHES or flops >= _ENOUGH_FLOPS

    def _effort(self) -> tuple[int, float]:
        launches = [event for events in self.steps for event in events if isinstance(event, Launch)]
        return len(launches), sum(event.kernel.flops for event in launches)

    def known(self) -> Sequence[float]:
        """Return nothing: times are known at the end."""
        return ()

    def stop(self, wait: Callable[[float], float] | None = None, plays: int = 0) -> ModelTiming:
        """Add up what was counted and play it on the lanes, repeated if more plays are asked."""
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
        ends = (0.0, *played.step_ends)
        return ModelTiming(
            step_seconds=tuple(after - before for before, after in itertools.pairwise(ends)),
            wall_seconds=played.seconds,
            utilization=played.busy_share,
            peak_memory_bytes=float(peak.size_bytes),
            reported={**_reported(played, self._watcher), **self._reported_of(shared, played, plays)},
            notes=(*(shared.notes(self._card) if shared else ()), *self._notes()),
            tally=tally(self.steps, peak),
            series=tuple(utilization_series(played, played.seconds / _SERIES_POINTS)),
            data_wait=played.wait_seconds / played.seconds if wait is not None and played.seconds else None,
            insight=self._insight(steps, played),
            resident_seconds=resident_seconds(steps, self._card) if wait is not None else 0.0,
            first_wait_seconds=getattr(wait, "first_wait_seconds", 0.0),
        )

    def _reported_of(self, shared: Exchange | None, played: Played, plays: int) -> dict[str, float]:
        if shared is None:
            return {}
        # Without the loader on both sides: what several cards' loaders do to each other is not known.
        alone, together = (seconds_in_all(steps, self._card, plays) for steps in (self.steps, shared.steps))
        return shared.reported(played, alone, together)

    def _insight(self, steps: Sequence[Sequence[Event]], played: Played) -> Insight:
        seen = what_if(steps, self._card, played)
        held = {"memory_capacity_bytes": self._card.memory_bytes}
        return Insight(seen.figures, seen.shares, {**seen.clues, **held})

    def close(self) -> None:
        """Stop counting."""
        self._end_gradients()
        self._ghosts.end()
        self._watcher.is_counting = False
        self._watcher.events = []

    def _notes(self) -> tuple[str, ...]:
        watcher, notes = self._watcher, []
        if watcher.all_resident:
            notes.append("nothing was moved to perf.device: every tensor is taken to be on the modelled card")
        if watcher.by_bytes:
            notes.append(f"costed by their bytes, having no rule: {', '.join(sorted(watcher.by_bytes))}")
        if watcher.strangers:
            place, count = next(iter(watcher.strangers.items()))
            where = f"{place.key.partition(': ')[0]}:{place.line}"
            notes.append(
                f"{count} tensor(s) of the host were used as if they were on the card, first at {where}: "
                "a real card would have refused"
            )
        if self._ghosts.count:
            notes.append(
                f"activations beyond {_BUDGET_BYTES // 2**30} GiB were kept as shapes: values are void"
            )
        if self._card.memory_bytes < watcher.memory.highest_bytes:
            notes.append(f"more than the {self._card.memory_bytes / 1e9:.0f} GB of the {self._card.title}")
        return tuple(notes)


def _reported(played: Played, watcher: Watcher) -> dict[str, float]:
    total = played.seconds or 1.0
    return {
        **{f"modelled_{cause}_gap_share": seconds / total for cause, seconds in played.gaps.items()},
        "operators_without_rule": float(len(watcher.by_bytes)),
    }
