"""Which times no measurement can have: none, not a number, all alike, or a fraction of what they were."""

import math
from collections.abc import Mapping, Sequence

from perfsuite.metrics import primary_metric
from perfsuite.records import Reading
from perfsuite.statistics import median
from perfsuite.units import show

_ALIKE_STEPS = 10  # a clock of nanoseconds does not give the same time ten times over
_COLLAPSED = 20.0  # times faster than the baseline: the step lost its work, not its slowness


def implausible(steps: Sequence[float], *, may_repeat: bool) -> tuple[str, ...]:
    """Return why the times of steps cannot be; a coarse, scripted or modelled clock may repeat itself."""
    if not steps or any(not math.isfinite(step) or step < 0 for step in steps):
        return ("the clock gave a time that is no number",)
    if median(steps) == 0:
        return ("the steps took no time at all: either they do nothing or the clock stands still",)
    if not may_repeat and len(steps) >= _ALIKE_STEPS and min(steps) == max(steps):
        return (f"all {len(steps)} steps took exactly {steps[0]:g} s: no real clock says that",)
    return ()


def collapsed(reading: Reading, stored: Mapping[str, float]) -> tuple[str, ...]:
    """Return why a reading that is far too good against its baseline does not count."""
    metric = primary_metric(reading.kind)
    before, now = stored.get(metric.name), reading.value(metric)
    if not before or not now or metric.cost(before) / metric.cost(now) < _COLLAPSED:
        return ()
    was, is_now = (show(value, metric.unit) for value in (before, now))
    return (
        f"{metric.label} collapsed to {is_now}, the baseline has {was}: does the step still do its work? "
        "If it does, delete this test's baseline and run pytest --save-baseline",
    )
