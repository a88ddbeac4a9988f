"""Run steps, loops and pairs of variants in short blocks; for --against each block gives one cost."""

import itertools
import math
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from perfsuite.devices.protocol import Device, Plan
from perfsuite.measure.loop import Feed, LoaderFacts

MIN_PAIRS = 10
MIN_TURN_STEPS = 4  # the first step of a turn has nobody ahead of it, which then weighs a quarter at most
_TURN_SECONDS = 0.2


class BlockResult(NamedTuple):
    """The cost that a block measured, and how long the block took."""

    cost: float  # seconds per step or sample, or the ratio of two variants' times
    seconds: float


Block = Callable[[float], BlockResult]  # takes the seconds to run


def step_block(step: Callable[[], Any], device: Device) -> Block:
    """Return a block of steps; its cost is the mean step time."""

    def block(seconds: float) -> BlockResult:
        spent, steps = _run(step, device, seconds, 1)
        return BlockResult(spent / steps, spent)

    return block


def loop_block(
    loader: Iterable[Any],
    step: Callable[[Any], Any],
    device: Device,
    samples: int | Callable[[Any], int] | None,
) -> Block:
    """Return a block of a training loop; its cost is the time per sample, waiting for data included."""
    feed = Feed(loader, device.now, samples)
    prefetched = LoaderFacts.from_loader(loader).prefetched

    def run() -> None:
        step(feed.next())

    def block(seconds: float) -> BlockResult:
        for _ in range(prefetched):  # prepared while the other version ran, so they cost no waiting
            run()
        feed.reset()
        spent, _ = _run(run, device, seconds, max(1, 5 * prefetched))
        return BlockResult(spent / feed.samples, spent)

    return block


def pair_block(without: Callable[[], Any], with_: Callable[[], Any], device: Device) -> Block:
    """Return a block of two variants in turns; its cost is the time of `with_` over that of `without`."""

    variants = (without, with_)
    lengths: list[int] = []

    def block(seconds: float) -> BlockResult:
        if not lengths:
            lengths.extend(turn_lengths(variants, device, Plan()))
        spent = [0.0, 0.0]
        began = device.now()
        for turn in itertools.count(1):
            for index in (0, 1) if turn % 2 else (1, 0):
                spent[index] += time_steps(variants[index], device, lengths[index])
            if device.now() - began >= seconds:
                break
        return BlockResult(spent[1] / lengths[1] / (spent[0] / lengths[0]), sum(spent))

    return block


def turn_lengths(
    variants: tuple[Callable[[], Any], Callable[[], Any]], device: Device, plan: Plan
) -> tuple[int, int]:
    """Return how many steps a turn of each variant has.

    The host of an accelerator runs ahead of it, also in a training: a wait after every step would hide
    what that gains, and what a synchronization loses. There a turn has several steps, elsewhere one.
    """
    if not device.is_accelerator:
        return 1, 1
    single = [time_steps(variant, device, 1) for variant in variants]
    slow, fast = (_turn_steps(seconds, plan.max_seconds) for seconds in single)
    # The same on all ranks: they wait for each other in every step.
    return plan.together.first(slow), plan.together.first(fast)


def _turn_steps(step_seconds: float, max_seconds: float) -> int:
    if step_seconds <= 0:
        return MIN_TURN_STEPS
    affordable = int(max_seconds / (2 * MIN_PAIRS * step_seconds))
    return max(math.ceil(_TURN_SECONDS / step_seconds), min(MIN_TURN_STEPS, affordable), 1)


def time_steps(step: Callable[[], Any], device: Device, count: int) -> float:
    """Return the seconds of so many steps on an idle device, until it is idle again."""
    device.wait()  # the CPU waits here: no variant may hide behind work the other one queued
    began = device.now()  # the clock runs from here
    for _ in range(count):
        step()
    device.wait()
    return device.now() - began  # the clock ends here


def _run(step: Callable[[], Any], device: Device, seconds: float, min_steps: int) -> tuple[float, int]:
    """Run steps for that many seconds and return the time they took and their number."""
    device.wait()  # the CPU waits here: earlier work must not count for the block
    began = device.now()  # the clock runs from here
    for count in itertools.count(1):
        step()
        if count >= min_steps and device.now() - began >= seconds:
            break
    device.wait()
    return device.now() - began, count  # the clock ends here
