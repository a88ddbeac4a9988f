"""Count what steps do on an emulated card: each launch, copy and wait with its line of the project."""

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from perfsuite.devices.code_lines import Place, Places
from perfsuite.devices.emulated.counts import demangle
from perfsuite.devices.emulated.runtime import Call, Runtime
from perfsuite.devices.operators import sequence_number
from perfsuite.records import Counted

_STEPS = 3
_KEPT_PLACES = 400  # of each metric, the largest: a baseline stays a small file
_KEPT_NAMES, _LONGEST_NAME = 400, 300
_LAUNCHES = ("kernel", "library")
_DIRECTIONS = ("h2d", "d2h")
_REPORTED = {"memset": "memsets", "d2d": "d2d_copies", "graph": "graph_launches"}


class Tally:
    """Everything steps do, by metric and place."""

    def __init__(self, root: Path) -> None:
        self._places = Places(root)
        self._forward: list[tuple[int, Place]] = []  # autograd's numbers, as they come: growing
        self.by: dict[str, Counter[Place]] = {
            name: Counter() for name in ("kernels", "syncs", "h2d_bytes", "d2h_bytes", "blocking_copies")
        }
        self.names: Counter[tuple[str, str]] = Counter()  # kind and name
        self.reported: Counter[str] = Counter()
        self._last_copy: Place | None = None  # a pinned copy that the next call may wait for

    def note(self, call: Call) -> None:
        """Book one call by the line that made it; runs in the middle of torch's operators."""
        place = self._place()
        last, self._last_copy = self._last_copy, None
        if call.kind in _LAUNCHES:
            self.by["kernels"][place] += 1
            self.names[call.kind, call.name] += 1
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
        if call.kind in _REPORTED:
            self.reported[_REPORTED[call.kind]] += 1
        if call.is_in_graph:
            self.reported["graph_nodes"] += 1

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
        return Counted(
            {name: _mean(sum(counts.values()), steps) for name, counts in self.by.items()},
            {name: _kept(counts, steps) for name, counts in present.items()},
            {place.key: place.line for counts in present.values() for place in counts},
            {name[:_LONGEST_NAME]: _mean(count, steps) for name, count in self.kernels().items()},
            {name: _mean(count, steps) for name, count in self.reported.items()},
        )

    def kernels(self) -> dict[str, int]:
        """Return the kernels by names as a person reads them, the most frequent first."""
        return {demangle(name): count for (_, name), count in self.names.most_common(_KEPT_NAMES)}


def count_steps(runtime: Runtime, step: Callable[[], object], root: Path, wait: Callable[[], None]) -> Tally:
    """Run a few steps with every call told."""
    tally = Tally(root)
    for _ in range(_STEPS):
        with runtime.watched(tally.note):
            step()
        wait()  # ours, and not counted
    return tally


def counted(runtime: Runtime, step: Callable[[], object], root: Path, wait: Callable[[], None]) -> Counted:
    """Return what a step does."""
    return count_steps(runtime, step, root, wait).counted(_STEPS)


def _kept(counts: Counter[Place], steps: int) -> dict[str, float]:
    merged: Counter[str] = Counter()
    for place, count in counts.items():
        merged[place.key] += count
    chosen = sorted(merged.items(), key=lambda entry: (-entry[1], entry[0]))[:_KEPT_PLACES]
    return {key: _mean(count, steps) for key, count in sorted(chosen) if count}


def _mean(total: float, steps: int) -> float:
    return float(total // steps) if total % steps == 0 else total / steps
