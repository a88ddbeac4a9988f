"""Measure a step in turns with reference workloads: how many rounds of each does a step last?

Where another tenant slows the whole machine, step and reference slow together and their ratio stays.
"""

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from perfsuite.devices import Device
from perfsuite.statistics import mean

_LEAST_TURNS = 20
_TRIMMED = 0.05  # of the turns at each end: a hiccup hits a step or a reference, seldom both

Workload = Callable[[], object]


def measure_beside(
    step: Callable[[], Any],
    references: Mapping[str, Workload],
    device: Device,
    seconds: float,
    progress: Callable[[str, int, float], None] = lambda *_: None,
) -> dict[str, float]:
    """Return for each reference how many rounds of it one step lasts."""
    for workload in references.values():  # the first round allocates
        workload()
    steps: list[float] = []
    rounds: dict[str, list[float]] = {name: [] for name in references}
    began = device.now()
    while len(steps) < _LEAST_TURNS or device.now() - began < seconds:
        for name, workload in references.items():
            rounds[name].append(_timed(workload, device))
        steps.append(_timed(step, device))
        progress("beside references", len(steps), device.now() - began)
    for name, workload in references.items():  # so that every step has a reference on both sides
        rounds[name].append(_timed(workload, device))
    found = {name: _relative(steps, rounds[name]) for name in references}
    return {name: value for name, value in found.items() if value is not None}


def _timed(run: Callable[[], object], device: Device) -> float:
    before = device.now()  # the clock runs from here
    run()
    device.wait()
    return device.now() - before  # the clock ends here


def _relative(steps: Sequence[float], rounds: Sequence[float]) -> float | None:
    """Return the typical ratio of a step to the mean of the references before and after it."""
    around = [(before + after) / 2 for before, after in itertools.pairwise(rounds)]
    if min(steps) <= 0 or min(around) <= 0:
        return None
    logs = sorted(math.log(step / reference) for step, reference in zip(steps, around, strict=True))
    cut = int(_TRIMMED * len(logs))
    return math.exp(mean(logs[cut : len(logs) - cut]))
