"""Play a modelled step again, removing one cause after the other: the differences are their shares."""

from collections import Counter
from collections.abc import Callable, Sequence

from perfsuite.devices.code_lines import Place
from perfsuite.devices.kernels import Copy, Event, Kernel, Launch, OptimizerMark, Reduce, Reduced, Sync
from perfsuite.devices.model.cards import Card
from perfsuite.devices.model.roofline import seconds
from perfsuite.devices.model.timeline import Played, Timeline
from perfsuite.records import Clue, Insight, whole
from perfsuite.statistics import median

_MOST_EVENTS = 30_000  # of the steps that are played again
_HUGE_EVENTS = 100_000  # of a step: playing it eight more times would take half a minute

Condition = Callable[[Event], bool]


def what_if(steps: Sequence[Sequence[Event]], card: Card, played: Played | None = None) -> Insight:
    """Return shares that add up to 1, and clues: what a step would take without syncs, copies, optimizer."""
    some = _some(steps)
    if played is not None and some and len(some[0]) > _HUGE_EVENTS:
        seconds_per_step = played.seconds / max(len(played.step_ends), 1)
        clues = {**_kernel_clues(some, card, seconds_per_step), **_wait_clues(some)}
        return Insight(shares=_by_gaps(played), clues=clues)
    full_seconds, _ = _play(some, card)
    if full_seconds <= 0:
        return Insight()
    alone, without_exchange = _without_collectives(some, card, full_seconds)
    without_syncs, _ = _play(_without(alone, _is_wait), card)
    bare = _without(alone, lambda event: _is_wait(event) or isinstance(event, Copy))
    without_copies, _ = _play(bare, card)
    without_optimizer, busy = _play([_outside_optimizers(events) for events in bare], card)
    kernels = min(busy, without_optimizer)
    shares = {
        "sync_waits": without_exchange - without_syncs,
        "transfer": without_syncs - without_copies,
        "optimizer": without_copies - without_optimizer,
        "kernels": kernels,
        "launch_gaps": without_optimizer - kernels,
    }
    if alone is not some:
        shares["collectives"] = full_seconds - without_exchange
    # A cause that costs nothing may come out slightly below 0: the lanes interleave differently.
    normalized = whole({name: max(share / full_seconds, 0.0) for name, share in shares.items()})
    return Insight(shares=normalized, clues={**_kernel_clues(some, card, full_seconds), **_wait_clues(some)})


def _by_gaps(played: Played) -> dict[str, float]:
    """Return the shares of a step too large to play again: each gap goes to what the host did last."""
    total = played.seconds or 1.0
    names = {"launch": "launch_gaps", "sync": "sync_waits", "copy": "transfer", "data": "data_wait"}
    shares = {names.get(cause, cause): seconds / total for cause, seconds in played.gaps.items()}
    return whole({**shares, "kernels": played.busy_share or 0.0})


def resident_seconds(steps: Sequence[Sequence[Event]], card: Card) -> float:
    """Return the time of a step whose batch is already there, 0 for a step too large to play again."""
    some = _some(steps)
    return 0.0 if some and len(some[0]) > _HUGE_EVENTS else _play(some, card)[0]


def _some(steps: Sequence[Sequence[Event]]) -> list[list[Event]]:
    chosen: list[list[Event]] = []
    for events in steps:
        if chosen and sum(map(len, chosen)) + len(events) > _MOST_EVENTS:
            break
        chosen.append(list(events))
    # Steps that are all alike need not be played ten times: two show how one follows another.
    return chosen[:2] if all(events == chosen[0] for events in chosen[1:]) else chosen


def _play(steps: Sequence[Sequence[Event]], card: Card) -> tuple[float, float]:
    """Return seconds and kernel seconds per step, once the host runs ahead as far as it can."""
    timeline = Timeline(card)
    for _ in range(2):
        for events in steps:
            timeline.play(events)
    played = timeline.result()
    half = len(steps)
    step_seconds = (played.step_ends[-1] - played.step_ends[half - 1]) / half
    return step_seconds, (sum(played.ends) - sum(played.starts)) / (2 * half)


def _without(steps: Sequence[Sequence[Event]], is_removed: Condition) -> list[list[Event]]:
    return [[event for event in events if not is_removed(event)] for events in steps]


def _without_collectives(
    steps: list[list[Event]], card: Card, full_seconds: float
) -> tuple[list[list[Event]], float]:
    """Return the steps without their collectives and the time of one; the same list if there are none."""
    alone = _without(steps, lambda event: isinstance(event, Reduce | Reduced))
    if sum(map(len, alone)) == sum(map(len, steps)):
        return steps, full_seconds
    return alone, _play(alone, card)[0]


def _is_wait(event: Event) -> bool:
    return isinstance(event, Sync) or (isinstance(event, Copy) and event.direction == "d2h")


def _outside_optimizers(events: Sequence[Event]) -> list[Event]:
    kept: list[Event] = []
    is_inside = False
    for event in events:
        if isinstance(event, OptimizerMark):
            is_inside = event.is_begin
        elif not is_inside:
            kept.append(event)
    return kept


def _kernel_clues(steps: Sequence[Sequence[Event]], card: Card, step_seconds: float) -> dict[str, Clue]:
    launches: Counter[Launch] = Counter(
        event for events in steps for event in _outside_optimizers(events) if isinstance(event, Launch)
    )
    if not launches:
        return {}
    by_place: Counter[Place] = Counter()
    for launch, times in launches.items():
        by_place[launch.place] += times * launch.kernel.launches
    place, count = by_place.most_common(1)[0]
    repeated, repeated_count = launches.most_common(1)[0]
    work = sum(_ideal_seconds(launch.kernel, card) * times for launch, times in launches.items())
    durations = [
        took for launch, times in launches.items() for took in [seconds(launch.kernel, card)] * times
    ]
    return {
        "kernels_per_step": sum(by_place.values()) / len(steps),
        "kernel_seconds": median(durations),
        "short_kernel_seconds": card.dispatch_seconds + card.launch_seconds,
        "used_share": work / (step_seconds * len(steps)),
        "launch_place": place.label,
        "launch_place_count": count / len(steps),
        "repeated_kernel_place": repeated.place.label,
        "repeated_kernel_count": repeated_count / len(steps),
    }


def _ideal_seconds(kernel: Kernel, card: Card) -> float:
    return max(kernel.flops / card.peak(kernel.precision), kernel.moved_bytes / card.bandwidth)


def _wait_clues(steps: Sequence[Sequence[Event]]) -> dict[str, Clue]:
    syncs: Counter[Place] = Counter()
    copied: Counter[Place] = Counter()
    sizes = Counter({"pageable": 0, "pinned": 0})
    blocking = 0
    for event in (event for events in steps for event in events):
        if isinstance(event, Sync):
            syncs[event.place] += 1
        elif isinstance(event, Copy) and event.direction == "h2d":
            copied[event.place] += event.size_bytes
            sizes["pinned" if event.pinned else "pageable"] += event.size_bytes
            blocking += event.blocking
    clues: dict[str, Clue] = {}
    if syncs:
        place, _ = syncs.most_common(1)[0]
        clues |= {"syncs": sum(syncs.values()) / len(steps), "sync_place": place.label}
    if copied:
        place, _ = copied.most_common(1)[0]
        clues |= {
            "pageable_bytes": sizes["pageable"] / len(steps),
            "pinned_bytes": sizes["pinned"] / len(steps),
            "blocking_copies": blocking / len(steps),
            "copy_place": place.label,
        }
    return clues
