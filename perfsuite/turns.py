"""Run a step, a loop or a pair of variants in short blocks, each giving one cost: the turns of --against."""

import itertools
from collections.abc import Callable, Iterable
from typing import Any

from perfsuite.batches import LoaderFacts
from perfsuite.devices import Device
from perfsuite.measure import Feed, quiet_garbage

Block = Callable[[float], float]  # seconds to run → cost: seconds a step or a sample, or with over without


def step_block(step: Callable[[], Any], device: Device) -> Block:
    """Return a block of steps; its cost is the mean time of one."""

    def block(seconds: float) -> float:
        with quiet_garbage():
            spent, steps = _run(step, device, seconds, 1)
        return spent / steps

    return block


def loop_block(
    loader: Iterable[Any],
    step: Callable[[Any], Any],
    device: Device,
    samples: int | Callable[[Any], int] | None,
) -> Block:
    """Return a block of a training loop; its cost is the time of one sample, waiting for data included."""
    feed = Feed(loader, device, samples)
    ready = LoaderFacts.from_loader(loader).prefetched

    def run() -> None:
        step(feed.next())

    def block(seconds: float) -> float:
        with quiet_garbage():
            for _ in range(ready):  # prepared while the other version ran: they come free
                run()
            feed.reset()
            spent, _ = _run(run, device, seconds, max(1, 5 * ready))
        return spent / feed.samples

    return block


def pair_block(without: Callable[[], Any], with_: Callable[[], Any], device: Device) -> Block:
    """Return a block of two variants in turns; its cost is the time of one over the other's."""

    def block(seconds: float) -> float:
        spent = {without: 0.0, with_: 0.0}
        began = device.now()
        with quiet_garbage():
            for turn in itertools.count(1):
                for arm in (without, with_) if turn % 2 else (with_, without):
                    spent[arm] += _run(arm, device, 0.0, 1)[0]
                if device.now() - began >= seconds:
                    break
        return spent[with_] / spent[without]

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
