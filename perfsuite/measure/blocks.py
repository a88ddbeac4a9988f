"""Run a step, a loop or a pair of variants in short blocks, each giving one cost: the turns of --against."""

import itertools
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from perfsuite.devices import Device
from perfsuite.measure.feed import Feed
from perfsuite.measure.loop import LoaderFacts


class Spent(NamedTuple):
    """What a block found, and how long it took."""

    cost: float  # seconds a step or a sample, or one variant's time over the other's
    seconds: float


Block = Callable[[float], Spent]  # how long to run → what was found


def step_block(step: Callable[[], Any], device: Device) -> Block:
    """Return a block of steps; its cost is the mean time of one."""

    def block(seconds: float) -> Spent:
        spent, steps = _run(step, device, seconds, 1)
        return Spent(spent / steps, spent)

    return block


def loop_block(
    loader: Iterable[Any],
    step: Callable[[Any], Any],
    device: Device,
    samples: int | Callable[[Any], int] | None,
) -> Block:
    """Return a block of a training loop; its cost is the time of one sample, waiting for data included."""
    feed = Feed(loader, device.now, samples)
    ready = LoaderFacts.from_loader(loader).prefetched

    def run() -> None:
        step(feed.next())

    def block(seconds: float) -> Spent:
        for _ in range(ready):  # prepared while the other version ran: they come free
            run()
        feed.reset()
        spent, _ = _run(run, device, seconds, max(1, 5 * ready))
        return Spent(spent / feed.samples, spent)

    return block


def pair_block(without: Callable[[], Any], with_: Callable[[], Any], device: Device) -> Block:
    """Return a block of two variants in turns; its cost is the time of one over the other's."""

    def block(seconds: float) -> Spent:
        spent = [0.0, 0.0]
        began = device.now()
        for turn in itertools.count(1):
            for arm in (0, 1) if turn % 2 else (1, 0):
                spent[arm] += _run((without, with_)[arm], device, 0.0, 1)[0]
            if device.now() - began >= seconds:
                break
        return Spent(spent[1] / spent[0], sum(spent))

    return block


def _run(step: Callable[[], Any], device: Device, seconds: float, least: int) -> tuple[float, int]:
    """Run steps for a while and return the time they took and their number."""
    device.wait()  # the CPU waits here: nothing of before may be charged to the block
    began = device.now()  # the clock runs from here
    for count in itertools.count(1):
        step()
        if count >= least and device.now() - began >= seconds:
            break
    device.wait()
    return device.now() - began, count  # the clock ends here
