"""Turn one card's steps into those of a data-parallel training: gradient buckets, sent as they fill."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from perfsuite.devices.kernels import REDUCED, Event, Gradient, OptimizerMark, Reduce
from perfsuite.devices.model.cards import Card, Ring, buckets
from perfsuite.devices.model.timeline import Played, Timeline
from perfsuite.units import Unit, show


@dataclass(frozen=True)
class Exchange:
    """Steps with their collectives, and the figures and notes about them."""

    steps: Sequence[Sequence[Event]]
    ring: Ring
    has_optimizer: bool
    gradients: int  # that arrived
    sent: int  # of them

    def reported(self, played: Played, alone: float, together: float) -> dict[str, float]:
        """Return the figures of a step, given the time all steps take on one card and on all cards."""
        reduces = list(_reduces(self.steps))
        figures = {
            "modelled_collective_seconds": sum(r.seconds for r in reduces) / max(len(self.steps), 1),
            "modelled_collective_bytes": sum(r.size_bytes for r in reduces) / max(len(self.steps), 1),
        }
        if played.collective_seconds > 0:
            exposed = min(played.exposed_seconds / played.collective_seconds, 1.0)
            figures["modelled_collective_hidden_share"] = 1 - exposed
        if together > 0:
            figures["modelled_scaling_efficiency"] = alone / together
        return figures

    def notes(self, card: Card) -> list[str]:
        """Return notes about what was modelled and assumed."""
        who = f"modelled: {self.ring.count} {card.title} over {self.ring.link.title}"
        largest = max((list(_reduces([events])) for events in self.steps), key=len, default=[])
        if not largest:
            return [f"{who}, no gradients and so no collective"]
        size = show(sum(reduce.size_bytes for reduce in largest), Unit.BYTES)
        count = f"{len(largest)} bucket{'s' if len(largest) > 1 else ''}"
        notes = [f"{who}, gradients of {size} in {count}"]
        if not self.has_optimizer:
            notes.append("no optimizer step was found: gradients are sent after every backward pass")
        elif self.sent < self.gradients:
            notes.append(
                "accumulated gradients are sent once, before the optimizer step, as under DDP's no_sync()"
            )
        return notes


def exchange(steps: Sequence[Sequence[Event]], ring: Ring) -> Exchange:
    """Insert each bucket's all-reduce where its last gradient arrives, and the wait after a pass's last."""
    has_optimizer = any(_is_begin(event) for events in steps for event in events)
    sent = _sent(steps) if has_optimizer else [_arrivals(events) for events in steps]
    return Exchange(
        [_with_collectives(events, chosen, ring) for events, chosen in zip(steps, sent, strict=True)],
        ring,
        has_optimizer,
        sum(len(_arrivals(events)) for events in steps),
        sum(map(len, sent)),
    )


def seconds_in_all(steps: Sequence[Sequence[Event]], card: Card, plays: int) -> float:
    """Return the time that many steps take on the timeline, with every batch ready."""
    timeline = Timeline(card)
    for i in range(plays):
        timeline.play(steps[i % len(steps)])
    return timeline.result().seconds


def _reduces(steps: Iterable[Sequence[Event]]) -> Iterable[Reduce]:
    return (event for events in steps for event in events if isinstance(event, Reduce))


def _is_begin(event: Event) -> bool:
    return isinstance(event, OptimizerMark) and event.is_begin


def _arrivals(events: Sequence[Event]) -> set[int]:
    return {index for index, event in enumerate(events) if isinstance(event, Gradient)}


def _sent(steps: Sequence[Sequence[Event]]) -> list[set[int]]:
    """Return the indices of the final gradients: those not accumulated further before the optimizer step."""
    again: set[int] = set()  # parameters that get another gradient before the next optimizer step
    sent: list[set[int]] = []
    # Backwards, and twice: the last step is followed by the first again, as on the timeline.
    for _ in range(2):
        sent = []
        for events in reversed(steps):
            chosen: set[int] = set()
            for index in range(len(events) - 1, -1, -1):
                event = events[index]
                if _is_begin(event):
                    again.clear()
                elif isinstance(event, Gradient):
                    if event.parameter not in again:
                        chosen.add(index)
                    again.add(event.parameter)
            sent.insert(0, chosen)
    return sent


def _with_collectives(events: Sequence[Event], sent: set[int], ring: Ring) -> list[Event]:
    after: dict[int, list[Event]] = {}
    for arrived in _passes(events, sent):
        sizes = [_size(events[index]) for index in arrived]
        for bucket in buckets(sizes):
            total = sum(sizes[bucket.start : bucket.stop])
            after[arrived[bucket.stop - 1]] = [Reduce(total, ring.all_reduce_seconds(total))]
        after[arrived[-1]].append(REDUCED)
    played: list[Event] = []
    for index, event in enumerate(events):
        if not isinstance(event, Gradient):
            played.append(event)
        played += after.get(index, ())
    return played


def _size(event: Event) -> int:
    assert isinstance(event, Gradient)
    return event.size_bytes


def _passes(events: Sequence[Event], sent: set[int]) -> list[list[int]]:
    """Split a step's gradients into backward passes: an optimizer or a repeated parameter ends a pass."""
    passes: list[list[int]] = []
    parameters: set[int] = set()
    is_open = False
    for index, event in enumerate(events):
        if _is_begin(event):
            is_open = False
        elif isinstance(event, Gradient):
            if not is_open or event.parameter in parameters:
                parameters, is_open = set(), True
                passes.append([])
            parameters.add(event.parameter)
            if index in sent:
                passes[-1].append(index)
    return [arrived for arrived in passes if arrived]
