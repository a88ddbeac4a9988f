"""Turn one card's steps into a data-parallel training's: buckets of gradients, sent as they fill."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from perfsuite.devices.kernels import REDUCED, Event, Gradient, OptimizerMark, Reduce
from perfsuite.devices.model.cards import Card
from perfsuite.devices.model.links import Ring, buckets
from perfsuite.devices.model.timeline import Played, Timeline
from perfsuite.units import Unit, show


@dataclass(frozen=True)
class Exchange:
    """Steps with their collectives, and what is to be told of them."""

    steps: Sequence[Sequence[Event]]
    ring: Ring
    saw_optimizer: bool
    gradients: int  # that arrived
    sent: int  # of them

    def reported(self, played: Played, alone: float, together: float) -> dict[str, float]:
        """Return the figures of a step, given what all steps take on one card and on all."""
        reduces = list(_reduces(self.steps))
        figures = {
            "modelled_collective_seconds": sum(r.seconds for r in reduces) / max(len(self.steps), 1),
            "modelled_collective_bytes": sum(r.size_bytes for r in reduces) / max(len(self.steps), 1),
        }
        if played.collective_seconds > 0:
            shown = min(played.exposed_seconds / played.collective_seconds, 1.0)
            figures["modelled_collective_hidden_share"] = 1 - shown
        if together > 0:
            figures["modelled_scaling_efficiency"] = alone / together
        return figures

    def notes(self, card: Card) -> list[str]:
        """Say what was modelled, and what was assumed."""
        who = f"modelled: {self.ring.count} {card.title} over {self.ring.link.title}"
        largest = max((list(_reduces([events])) for events in self.steps), key=len, default=[])
        if not largest:
            return [f"{who}, no gradients and so no collective"]
        size = show(sum(reduce.size_bytes for reduce in largest), Unit.BYTES)
        count = f"{len(largest)} bucket{'s' if len(largest) > 1 else ''}"
        told = [f"{who}, gradients of {size} in {count}"]
        if not self.saw_optimizer:
            told.append("no optimizer's step was seen: gradients are sent after every backward pass")
        elif self.sent < self.gradients:
            told.append(
                "accumulated gradients are sent once, before the optimizer's step, as under DDP's no_sync()"
            )
        return told


def exchange(steps: Sequence[Sequence[Event]], ring: Ring) -> Exchange:
    """Put in every bucket's all-reduce where its last gradient arrives, and the wait behind a pass's last."""
    saw_optimizer = any(_is_begin(event) for events in steps for event in events)
    sent = _sent(steps) if saw_optimizer else [_arrivals(events) for events in steps]
    return Exchange(
        [_with_collectives(events, chosen, ring) for events, chosen in zip(steps, sent, strict=True)],
        ring,
        saw_optimizer,
        sum(len(_arrivals(events)) for events in steps),
        sum(map(len, sent)),
    )


def seconds_in_all(steps: Sequence[Sequence[Event]], card: Card, plays: int) -> float:
    """Return what that many steps take on the lanes, every batch being there."""
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
    """Return where the gradients are that the optimizer takes: those not added to before its step."""
    again: set[int] = set()  # parameters that get another gradient before the next optimizer's step
    sent: list[set[int]] = []
    # Backwards, and twice: behind the last step comes the first again, as the lanes play them.
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
    behind: dict[int, list[Event]] = {}
    for arrived in _passes(events, sent):
        sizes = [_size(events[index]) for index in arrived]
        for bucket in buckets(sizes):
            total = sum(sizes[bucket.start : bucket.stop])
            behind[arrived[bucket.stop - 1]] = [Reduce(total, ring.all_reduce_seconds(total))]
        behind[arrived[-1]].append(REDUCED)
    played: list[Event] = []
    for index, event in enumerate(events):
        if not isinstance(event, Gradient):
            played.append(event)
        played += behind.get(index, ())
    return played


def _size(event: Event) -> int:
    assert isinstance(event, Gradient)
    return event.size_bytes


def _passes(events: Sequence[Event], sent: set[int]) -> list[list[int]]:
    """Cut a step's gradients into backward passes: an optimizer, or a parameter seen before, ends one."""
    passes: list[list[int]] = []
    seen: set[int] = set()
    is_open = False
    for index, event in enumerate(events):
        if _is_begin(event):
            is_open = False
        elif isinstance(event, Gradient):
            if not is_open or event.parameter in seen:
                seen, is_open = set(), True
                passes.append([])
            seen.add(event.parameter)
            if index in sent:
                passes[-1].append(index)
    return [arrived for arrived in passes if arrived]
