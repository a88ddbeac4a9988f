"""Run a step, a loop or a pair of variants in short blocks, as --against needs them; each gives one cost."""

import itertools
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from perfsuite.devices.protocol import Device
from perfsuite.measure.loop import Feed, LoaderFacts


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

    def block(seconds: float) -> BlockResult:
        spent = [0.0, 0.0]
        began = device.now()
        for turn in itertools.count(1):
            for index in (0, 1) if turn % 2 else (1, 0):
                spent[index] += _run((without, with_)[index], device, 0.0, 1)[0]
            if device.now() - began >= seconds:
                break
        return BlockResult(spent[1] / spent[0], sum(spent))

    return block


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
