"""Measure a step in turns with reference workloads: how many rounds of each does a step last?

If another tenant slows down the machine, step and reference slow down together and their ratio stays.
"""

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from perfsuite.devices.protocol import Device, Plan, Progress, Workload
from perfsuite.measure.step import gc_paused
from perfsuite.records import Reading
from perfsuite.statistics import mean

_MIN_TURNS = 20
_TRIMMED = 0.05  # of the turns at each end: a disturbance hits a step or a reference, rarely both

_SECONDS = 6.0  # on a shared machine, a third of this time gives figures that vary half as much again


def add_reference_figures(reading: Reading, step: Callable[[], Any], device: Device, plan: Plan) -> Reading:
    """Return the reading with its step time in rounds of each of the device's references."""
    references = device.references()
    if not references:
        return reading
    seconds = min(_SECONDS, 3 * plan.max_seconds)
    with gc_paused():
        figures = measure_in_rounds(step, references, device, seconds, plan.progress)
    return reading.with_figures(**figures)


def measure_in_rounds(
    step: Callable[[], Any],
    references: Mapping[str, Workload],
    device: Device,
    seconds: float,
    progress: Progress = lambda *_: None,
) -> dict[str, float]:
    """Return for each reference how many rounds of it one step lasts."""
    for workload in references.values():  # the first round allocates
        workload()
    steps: list[float] = []
    rounds: dict[str, list[float]] = {name: [] for name in references}
    began = device.now()
    while len(steps) < _MIN_TURNS or device.now() - began < seconds:
        for name, workload in references.items():
            rounds[name].append(_timed(workload, device))
        steps.append(_timed(step, device))
        progress("with references", len(steps), device.now() - began)
    for name, workload in references.items():  # so that every step has a reference before and after it
        rounds[name].append(_timed(workload, device))
    ratios = {name: _relative(steps, rounds[name]) for name in references}
    return {name: ratio for name, ratio in ratios.items() if ratio is not None}


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
