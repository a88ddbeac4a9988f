"""Measure two variants step by step in turns, and return their speed-up with its interval."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from perfsuite.devices.protocol import Device, Plan
from perfsuite.errors import UnusableStep
from perfsuite.measure.step import Warmup, gc_paused, read, run_window, warm_up
from perfsuite.records import Reading
from perfsuite.statistics import median, ratio_interval

_MIN_PAIRS = 10
_PRECISION = 0.02  # stop when the ratio's interval is this narrow on each side
_CHECK_GROWTH = 1.1
_ALONE_SHARE = 0.1  # of the pairs' time, spent on each variant alone to measure its memory

Step = Callable[[], Any]


def measure_pair(
    without: Step,
    with_: Step,
    device: Device,
    plan: Plan,
    *,
    samples_per_step: int,
    name: str = "",
    read_result: Callable[[Any], Any] | None = None,
) -> Reading:
    """Measure `with_` against `without`; the reading is that of `with_` and holds the other one."""
    with gc_paused():
        differs: float | None = None
        notes: tuple[str, ...] = ()
        if read_result is not None and device.has_values:
            differs = difference(without(), with_(), read_result)
        elif read_result is not None:
            notes = ("difference: not comparable here, the device computes no values",)
        warmups = [
            warm_up(variant, device, plan.max_seconds / 2, plan.progress, plan.together)
            for variant in (without, with_)
        ]
        watch = device.start()  # not for its clock, but to know whether the pairs count
        try:
            times = _interleave((without, with_), device, plan)
            watched = watch.stop()
        finally:
            watch.close()
        alone = [
            _alone(variant, device, plan, warmup, samples_per_step=samples_per_step, name=name)
            for variant, warmup in zip((without, with_), warmups, strict=True)
        ]
        insight = device.inspect(with_, median(times[1]))
    ratio, low, high = ratio_interval(list(zip(*times, strict=True)))
    slow, fast = (
        _timed_in_pairs(reading, seconds, samples_per_step)
        for reading, seconds in zip(alone, times, strict=True)
    )
    return replace(
        fast.with_figures(speedup=ratio, difference=differs),
        intervals={"speedup": (low, high)},
        shares=insight.shares,
        clues=insight.clues,
        notes=(*fast.notes, *notes),
        invalid=(*watched.invalid, *fast.invalid),
        conditions=watched.conditions,
        without=replace(slow, name=f"{name} without".strip()),
    )


def _interleave(variants: tuple[Step, Step], device: Device, plan: Plan) -> tuple[list[float], list[float]]:
    """Time single steps in turns, in alternating order, until the ratio is known precisely."""
    times: tuple[list[float], list[float]] = ([], [])
    started = device.now()
    next_check = float(_MIN_PAIRS)
    while True:
        order = (0, 1) if len(times[0]) % 2 == 0 else (1, 0)
        for index in order:
            device.wait()  # the CPU waits here: no variant may hide behind work the other one queued
            before = device.now()  # the clock runs from here
            variants[index]()
            device.wait()
            times[index].append(device.now() - before)  # the clock ends here
        pairs, elapsed = len(times[0]), device.now() - started
        plan.progress("comparing", pairs, elapsed)
        is_over = pairs >= _MIN_PAIRS and elapsed >= plan.max_seconds
        if not is_over and pairs >= next_check and elapsed >= plan.min_seconds:
            next_check = pairs * _CHECK_GROWTH
            ratio, low, high = ratio_interval(list(zip(*times, strict=True)))
            is_over = high / ratio - 1 <= _PRECISION and 1 - low / ratio <= _PRECISION
        if plan.together.first(is_over):
            return times


def _alone(
    variant: Step, device: Device, plan: Plan, warmup: Warmup, *, samples_per_step: int, name: str
) -> Reading:
    """Run one variant alone for the figures that turns would mix: peak memory and utilization."""
    seconds = _alone_seconds(device, plan)
    brief = Plan(seconds, seconds, 1, plan.progress, plan.together)
    timing = run_window(variant, device, brief)
    samples = samples_per_step * len(timing.step_seconds)
    counted = device.counted(variant)
    return read(timing, warmup, device, kind="comparison", name=name, samples=samples, counted=counted)


def _alone_seconds(device: Device, plan: Plan) -> float:
    """Return how long each variant runs alone: on an accelerator long enough for its utilization."""
    if not device.is_accelerator:
        return _ALONE_SHARE * plan.min_seconds
    # A user who requests more than the device's default needs it: the driver rarely updates its figure.
    requested = plan.min_seconds if plan.min_seconds > device.min_seconds else 0.0
    return max(requested, device.min_seconds / 2)


def _timed_in_pairs(reading: Reading, times: Sequence[float], samples_per_step: int) -> Reading:
    total = math.fsum(times)
    speed = samples_per_step * len(times) / total if total > 0 else None
    return replace(
        reading.with_figures(step_time=median(times), samples_per_s=speed),
        steps=len(times),
        samples=samples_per_step * len(times),
        wall_seconds=total,
        rounds=tuple(times),
    )


def difference(without: Any, with_: Any, read_result: Callable[[Any], Any]) -> float:
    """Return the largest difference between the two results, relative to the largest value of the first."""
    expected, actual = _numbers(read_result(without)), _numbers(read_result(with_))
    if len(expected) != len(actual):
        raise UnusableStep(
            f"the results to compare have {len(expected)} and {len(actual)} numbers: "
            "`result` must read the same thing from both variants"
        )
    if not expected:
        raise UnusableStep("`result` read no number from what the variants returned")
    size = max(abs(value) for value in expected) or 1.0
    worst = [abs(a - b) / size for a, b in zip(expected, actual, strict=True)]
    return math.nan if any(math.isnan(value) for value in worst) else max(worst)


def _numbers(value: Any) -> list[float]:
    """Flatten tensors, arrays, numbers and containers of them into a list."""
    if hasattr(value, "detach"):
        value = value.detach().double().cpu()  # the CPU waits here, outside the clock
    if hasattr(value, "reshape"):
        return [float(number) for number in value.reshape(-1).tolist()]
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list | tuple):
        return [number for part in value for number in _numbers(part)]
    return [float(value)]
