"""Measure two variants in turns, and return their speed-up with its interval."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from perfsuite.devices.protocol import Device, Plan
from perfsuite.errors import UnusableStep
from perfsuite.measure.blocks import MIN_PAIRS, time_steps, turn_lengths
from perfsuite.measure.step import Warmup, gc_paused, look_into, read, run_window, warm_up
from perfsuite.records import Reading
from perfsuite.statistics import median, ratio_interval

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
) -> Reading:
    """Measure `with_` against `without`; the reading is that of `with_` and holds the other one."""
    with gc_paused():
        warmups = [
            warm_up(variant, device, plan.max_seconds / 2, plan.progress, plan.together)
            for variant in (without, with_)
        ]
        watch = device.start()  # not for its clock, but to know whether the pairs count
        try:
            lengths = turn_lengths((without, with_), device, plan)
            times = _interleave((without, with_), lengths, device, plan)
            watched = watch.stop()
        finally:
            watch.close()
        slow, fast = (
            _timed_in_turns(
                _alone(
                    variant,
                    device,
                    plan,
                    warmup,
                    step_seconds=median(seconds),
                    samples=samples_per_step,
                    name=name,
                    # On a host the profile has no figures, and a slow variant's would take minutes.
                    is_inspected=device.is_accelerator or variant is with_,
                ),
                seconds,
                length,
                samples_per_step,
            )
            for variant, warmup, seconds, length in zip(
                (without, with_), warmups, times, lengths, strict=True
            )
        )
    ratio, low, high = ratio_interval(list(zip(*times, strict=True)))
    return replace(
        fast.with_figures(speedup=ratio),
        intervals={"speedup": (low, high)},
        invalid=(*watched.invalid, *fast.invalid),
        conditions=watched.conditions,
        without=replace(slow, name=f"{name} without".strip()),
    )


def _interleave(
    variants: tuple[Step, Step], lengths: tuple[int, int], device: Device, plan: Plan
) -> tuple[list[float], list[float]]:
    """Give both variants turns, in alternating order, until the ratio of their step times is known."""
    times: tuple[list[float], list[float]] = ([], [])
    started = device.now()
    next_check = float(MIN_PAIRS)
    while True:
        order = (0, 1) if len(times[0]) % 2 == 0 else (1, 0)
        for index in order:
            times[index].append(time_steps(variants[index], device, lengths[index]) / lengths[index])
        pairs, elapsed = len(times[0]), device.now() - started
        plan.progress("comparing", pairs, elapsed)
        is_over = pairs >= MIN_PAIRS and elapsed >= plan.max_seconds
        if not is_over and pairs >= next_check and elapsed >= plan.min_seconds:
            next_check = pairs * _CHECK_GROWTH
            ratio, low, high = ratio_interval(list(zip(*times, strict=True)))
            is_over = high / ratio - 1 <= _PRECISION and 1 - low / ratio <= _PRECISION
        if plan.together.first(is_over):
            return times


def _alone(
    variant: Step,
    device: Device,
    plan: Plan,
    warmup: Warmup,
    *,
    step_seconds: float,
    samples: int,
    name: str,
    is_inspected: bool,
) -> Reading:
    """Run one variant alone for what turns would mix: memory, utilization, and what happens in a step."""
    seconds = _alone_seconds(device, plan)
    brief = replace(plan, min_seconds=seconds, max_seconds=seconds, min_steps=1)
    timing = run_window(variant, device, brief, warmup.step_seconds)
    insight, counted = look_into(variant, device, plan, step_seconds) if is_inspected else (None, None)
    return read(
        timing,
        warmup,
        device,
        kind="comparison",
        name=name,
        samples=samples * len(timing.step_seconds),
        insight=insight,
        counted=counted,
    )


def _alone_seconds(device: Device, plan: Plan) -> float:
    """Return how long each variant runs alone: on an accelerator long enough for its utilization."""
    if not device.is_accelerator:
        return _ALONE_SHARE * plan.min_seconds
    # A user who requests more than the device's default needs it: the driver rarely updates its figure.
    requested = plan.min_seconds if plan.min_seconds > device.min_seconds else 0.0
    return max(requested, device.min_seconds / 2)


def _timed_in_turns(
    reading: Reading, seconds: Sequence[float], length: int, samples_per_step: int
) -> Reading:
    """Return the reading with the times of its turns: seconds per step, and the steps of each turn."""
    total, steps = length * math.fsum(seconds), length * len(seconds)
    speed = samples_per_step * steps / total if total > 0 else None
    return replace(
        reading.with_figures(step_time=median(seconds), samples_per_s=speed),
        steps=steps,
        samples=samples_per_step * steps,
        wall_seconds=total,
        rounds=tuple(seconds),
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
