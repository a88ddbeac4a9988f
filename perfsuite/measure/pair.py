"""Measure two variants step by step in turns, and return their speed-up with its interval."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from perfsuite.devices import Device
from perfsuite.errors import UnusableStep
from perfsuite.measure.step import Plan, quiet_garbage, read, run_window
from perfsuite.measure.warmup import Warmup, warm_up
from perfsuite.records import Reading
from perfsuite.statistics import median, ratio_interval

_MIN_PAIRS = 10
_PRECISION = 0.02  # stop when the ratio's interval is this narrow to each side
_CHECK_GROWTH = 1.1
_ALONE_SHARE = 0.1  # of the time of the pairs, spent on each variant alone for its memory

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
    """Measure `with_` against `without`; the reading is of `with_`, the other arm rides along."""
    with quiet_garbage():
        differs = None if read_result is None else difference(without(), with_(), read_result)
        warmups = [
            warm_up(arm, device, plan.max_seconds / 2, plan.progress, plan.together)
            for arm in (without, with_)
        ]
        watch = device.start()  # not for its clock: to know whether the pairs count
        try:
            times = _interleave((without, with_), device, plan)
            watched = watch.stop()
        finally:
            watch.close()
        alone = [
            _alone(arm, device, plan, warmup, samples_per_step=samples_per_step, name=name)
            for arm, warmup in zip((without, with_), warmups, strict=True)
        ]
        seen = device.inspect(with_, median(times[1]))
    ratio, low, high = ratio_interval(list(zip(*times, strict=True)))
    slow, fast = (
        _timed_in_pairs(reading, arm, samples_per_step) for reading, arm in zip(alone, times, strict=True)
    )
    return replace(
        fast,
        speedup=ratio,
        speedup_low=low,
        speedup_high=high,
        difference=differs,
        shares=seen.shares,
        clues=seen.clues,
        invalid=(*watched.invalid, *fast.invalid),
        conditions=watched.conditions,
        without=replace(slow, name=f"{name} without".strip()),
    )


def _interleave(arms: tuple[Step, Step], device: Device, plan: Plan) -> tuple[list[float], list[float]]:
    """Time single steps in turns, the order swapped from pair to pair, until the ratio is known well."""
    times: tuple[list[float], list[float]] = ([], [])
    started = device.now()
    next_check = float(_MIN_PAIRS)
    while True:
        order = (0, 1) if len(times[0]) % 2 == 0 else (1, 0)
        for arm in order:
            device.wait()  # the CPU waits here: no arm may hide behind the other's queued work
            before = device.now()  # the clock runs from here
            arms[arm]()
            device.wait()
            times[arm].append(device.now() - before)  # the clock ends here
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
    arm: Step, device: Device, plan: Plan, warmup: Warmup, *, samples_per_step: int, name: str
) -> Reading:
    """Run one arm by itself for the figures that turns would mix: peak memory and utilization."""
    seconds = _alone_seconds(device, plan)
    brief = Plan(seconds, seconds, 1, plan.progress, plan.together)
    timing = run_window(arm, device, brief)
    samples = samples_per_step * len(timing.step_seconds)
    return read(timing, warmup, device, kind="comparison", name=name, samples=samples)


def _alone_seconds(device: Device, plan: Plan) -> float:
    """Return how long each arm runs by itself: on an accelerator long enough for its utilization."""
    if not device.is_accelerator:
        return _ALONE_SHARE * plan.min_seconds
    # Who asks for more time than the device does by itself needs it: a driver that seldom renews its figure.
    asked = plan.min_seconds if plan.min_seconds > device.min_seconds else 0.0
    return max(asked, device.min_seconds / 2)


def _timed_in_pairs(reading: Reading, times: Sequence[float], samples_per_step: int) -> Reading:
    total = math.fsum(times)
    return replace(
        reading,
        steps=len(times),
        samples=samples_per_step * len(times),
        wall_seconds=total,
        rounds=tuple(times),
        step_seconds=median(times),
        samples_per_s=samples_per_step * len(times) / total if total > 0 else None,
    )


def difference(without: Any, with_: Any, read_result: Callable[[Any], Any]) -> float:
    """Return the largest difference of the two results relative to the size of the first."""
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
