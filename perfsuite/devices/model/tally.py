"""Add up what steps did on the modelled card, in all and by the line that did it; no torch."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from perfsuite.devices.code_lines import Place
from perfsuite.devices.kernels import Copy, Event, Launch, Sync
from perfsuite.devices.model.memory import Peak

_KINDS = {
    "parameter_memory": "parameters",
    "gradient_memory": "gradients",
    "optimizer_memory": "optimizer",
    "activation_memory": "activations",
}
_KEPT_PLACES = 400  # of each metric, the largest: a baseline stays a small file


@dataclass(frozen=True)
class Tally:
    """The counted figures of a step, under the names of their metrics."""

    figures: dict[str, float]
    places: dict[str, dict[str, float]] = field(default_factory=dict)  # metric → place → figure
    lines: dict[str, int] = field(default_factory=dict)  # place → its line number now


def tally(steps: Sequence[Sequence[Event]], peak: Peak) -> Tally:
    """Return the means over all steps: whole numbers where every step does the same."""
    by: dict[str, Counter[Place]] = {
        name: Counter() for name in ("kernels", "syncs", "h2d_bytes", "d2h_bytes", "blocking_copies", "flops")
    }
    for events in steps:
        for event, times in Counter(events).items():
            if isinstance(event, Launch):
                by["kernels"][event.place] += times * event.kernel.launches
                by["flops"][event.place] += times * round(event.kernel.flops)
            elif isinstance(event, Sync):
                by["syncs"][event.place] += times
            elif isinstance(event, Copy):
                by[f"{event.direction}_bytes"][event.place] += times * event.size_bytes
                by["blocking_copies"][event.place] += times * event.blocking
    figures = {name: _mean(sum(counts.values()), len(steps)) for name, counts in by.items()}
    figures |= {name: float(peak.by_kind.get(kind, 0)) for name, kind in _KINDS.items()}
    by["peak_memory"] = Counter(peak.by_place)
    counted = {name: counts for name, counts in by.items() if counts}
    return Tally(
        figures,
        {name: _kept(counts, 1 if name == "peak_memory" else len(steps)) for name, counts in counted.items()},
        {place.key: place.line for counts in counted.values() for place in counts},
    )


def _kept(counts: Counter[Place], steps: int) -> dict[str, float]:
    merged: Counter[str] = Counter()
    for place, count in counts.items():
        merged[place.key] += count
    chosen = sorted(merged.items(), key=lambda entry: (-entry[1], entry[0]))[:_KEPT_PLACES]
    return {key: _mean(count, steps) for key, count in sorted(chosen) if count}


def _mean(total: float, steps: int) -> float:
    return float(total // steps) if total % steps == 0 else total / steps
