"""Count what steps do on an emulated card: each launch, copy and wait with its line of the project."""

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from perfsuite.devices.code_lines import Place, Places, largest, per_step
from perfsuite.devices.emulated.counts import demangle
from perfsuite.devices.emulated.runtime import Call, Runtime
from perfsuite.devices.operators import sequence_number
from perfsuite.records import Counted

_STEPS = 3
_KEPT_NAMES, _LONGEST_NAME = 400, 300
_KEPT_LINES = 20  # of each kernel
_FURTHER = "(further lines)"
_LAUNCHES = ("kernel", "library")
_DIRECTIONS = ("h2d", "d2h")
_OTHERS = {"memset": "memsets", "d2d": "d2d_copies"}
_METRICS = (
    *("kernels", "syncs", "h2d_bytes", "d2h_bytes", "blocking_copies", "d2d_copies", "memsets", "launches"),
    *("graph_launches", "graph_nodes"),
)


class Tally:
    """Everything steps do, by metric and place."""

    def __init__(self, root: Path) -> None:
        self._places = Places(root)
        self._forward: list[tuple[int, Place]] = []  # autograd's numbers, as they come: growing
        self.by: dict[str, Counter[Place]] = {name: Counter() for name in _METRICS}
        self.names: dict[str, Counter[Place]] = {}  # kernel, by its mangled name
        self.reported: Counter[str] = Counter()
        self._last_copy: Place | None = None  # a pinned copy that the next call may wait for

    def note(self, call: Call) -> None:
        """Count one call at the line that made it; runs in the middle of torch's operators."""
        place = self._place()
        last, self._last_copy = self._last_copy, None
        if call.kind in _LAUNCHES:
            self.by["kernels"][place] += 1
            self.names.setdefault(call.name, Counter())[place] += 1
        elif call.kind == "sync":
            self.by["syncs"][place] += 1
            if last is not None and call.name == "cudaStreamSynchronize":
                self.by["blocking_copies"][last] += 1  # the host waits right behind its copy
        elif call.kind in _DIRECTIONS:
            self.by[f"{call.kind}_bytes"][place] += call.size
            self.by["blocking_copies"][place] += call.is_blocking
            self._last_copy = None if call.is_blocking else place
            if call.is_pageable:
                self.reported[f"pageable_{call.kind}_copies"] += 1
        elif call.kind in _OTHERS:
            self.by[_OTHERS[call.kind]][place] += 1
        elif call.kind == "graph":
            self.by["graph_launches"][place] += 1
        if call.is_in_graph:
            self.by["graph_nodes"][place] += 1
        elif call.kind in (*_LAUNCHES, "graph"):
            self.by["launches"][place] += 1

    def _place(self) -> Place:
        """Return the line of the project; of a gradient that of its forward operator."""
        node: Any = torch._C._current_autograd_node()
        if node is None:
            place = self._places.here(4)
            number = sequence_number()
            if not self._forward or self._forward[-1][0] < number:
                self._forward.append((number, place))
            return place
        # A view launches nothing and is not among them: what was launched before it stands nearest.
        before = bisect_right(self._forward, node._sequence_nr(), key=lambda one: one[0])
        return self._forward[before - 1][1] if before else self._places.here(4)

    def counted(self, steps: int) -> Counted:
        """Return the means over the steps: whole numbers where every step does the same."""
        present = {name: counts for name, counts in self.by.items() if counts}
        if not self.by["graph_launches"]:
            present.pop("launches", None)  # they are the kernels, line by line
        return Counted(
            {name: per_step(sum(counts.values()), steps) for name, counts in self.by.items()},
            {name: largest(counts, steps) for name, counts in present.items()},
            {place.key: place.line for counts in present.values() for place in counts},
            {name: _lines(counts, steps) for name, counts in self.kernels().items()},
            {name: per_step(count, steps) for name, count in self.reported.items()},
        )

    def kernels(self) -> dict[str, Counter[Place]]:
        """Return the kernels by names as a person reads them with their places, the most frequent first."""
        by_name: dict[str, Counter[Place]] = {}
        for mangled, counts in self.names.items():
            by_name.setdefault(demangle(mangled)[:_LONGEST_NAME], Counter()).update(counts)
        chosen = sorted(by_name.items(), key=lambda entry: (-entry[1].total(), entry[0]))
        return dict(chosen[:_KEPT_NAMES])


def counted(runtime: Runtime, step: Callable[[], object], root: Path, wait: Callable[[], None]) -> Counted:
    """Run a few steps and return what one does."""
    tally = Tally(root)
    for _ in range(_STEPS):
        with runtime.watched(tally.note):
            step()
        wait()  # ours, and not counted
    return tally.counted(_STEPS)


def _lines(counts: Counter[Place], steps: int) -> dict[str, float]:
    """Return a kernel's launches by line; beyond the largest, the rest together, so that the sum is whole."""
    kept = largest(counts, steps, _KEPT_LINES)
    rest = per_step(counts.total(), steps) - sum(kept.values())
    return {**kept, _FURTHER: rest} if len({place.key for place in counts}) > len(kept) else kept
