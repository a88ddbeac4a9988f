"""A set of devices that several processes measure on together: one per rank, all under one name."""

from collections import Counter
from collections.abc import Callable, Hashable
from dataclasses import replace

from perfsuite.devices.profiler import other_profiler
from perfsuite.devices.protocol import Device, Window
from perfsuite.devices.ranks.group import Ranks
from perfsuite.processes.world import Place, Together
from perfsuite.records import Counted, DeviceFacts, Insight


def join_ranks(place: Place, device: Device, timeout_seconds: float) -> "tuple[RankedDevice, Ranks]":
    """Join the other ranks; return the device of all ranks and the means by which they agree."""
    ranks = Ranks(place, device.torch_name, timeout_seconds, device.collectives)
    ranked = RankedDevice(device, ranks)
    ranked.facts()  # gathers from all ranks: done here, where all of them pass
    return ranked, ranks


class RankedDevice(Device):
    """This rank's device; its name and facts are those of the whole set."""

    def __init__(self, device: Device, together: Together) -> None:
        self._device = device
        self._together = together
        self.name = f"{device.name.partition(':')[0]}×{together.size}"
        self.is_accelerator = device.is_accelerator
        self.modelled, self.origin, self.has_values = device.modelled, device.origin, device.has_values
        self.learns, self.lasts_a_session = device.learns, device.lasts_a_session
        self.min_seconds = device.min_seconds
        self.tolerances, self.compares_times = device.tolerances, device.compares_times
        self.clock_repeats = device.clock_repeats
        self._facts: DeviceFacts | None = None

    def facts(self) -> DeviceFacts:
        """Return what identifies the set of devices; gathered once, so all ranks must call it."""
        if self._facts is None:
            facts = self._device.facts()
            names = Counter(self._together.gather(facts.name))
            parts = [name if len(names) == 1 else f"{count} {name}" for name, count in sorted(names.items())]
            self._facts = replace(facts, name=" + ".join(parts), uuid=None, ranks=self._together.size)
        return self._facts

    @property
    def torch_name(self) -> str:
        """Return torch's name for this rank's device."""
        return self._device.torch_name

    def lock_names(self, *, needs_all: bool = True) -> tuple[str, ...]:
        """Return the locks that one rank takes for all ranks on its machine."""
        del needs_all
        return self._device.lock_names(needs_all=True)

    def count(self) -> int:
        """Return the number of devices: one for each rank."""
        return self._together.size

    def now(self) -> float:
        """Return the host's clock."""
        return self._device.now()

    def wait(self) -> None:
        """Block the host until this rank's device has finished."""
        self._device.wait()

    def state(self) -> Hashable:
        """Return a value that changes as long as compilation or allocation goes on here."""
        return self._device.state()

    def begin_test(self) -> None:
        """Take the current memory use as the test's zero."""
        self._device.begin_test()

    def release(self) -> None:
        """Free what this rank's device holds for a finished test."""
        self._device.release()

    def start(self) -> Window:
        """Open a window on this rank's device."""
        return self._device.start()

    def inspect(
        self, step: Callable[[], object], step_seconds: float, resident: Callable[[], object] | None = None
    ) -> Insight:
        """Profile the collectives of a few more steps, the same number on every rank."""
        import torch

        from perfsuite.devices.ranks.collectives import inspect, steps_of

        del resident  # a loop is profiled with its loader: the time a rank waits for it is part of the skew
        why = other_profiler(torch, step)
        if self._together.any(bool(why)):  # often the first rank alone has a profiler
            return Insight.missing(f"left out, {why or 'another rank has a profiler'}")
        steps = self._together.first(steps_of(step_seconds))
        return inspect(step, step_seconds, steps, is_cuda="nccl" in self._device.collectives)

    def utilization_seconds(self) -> float:
        """Return what the slowest of all ranks' devices needs: they must do the same number of steps."""
        return float(max(self._together.gather(self._device.utilization_seconds())))

    def learn(self, step: Callable[[], object]) -> None:
        """Look at a step on this rank's device; every rank does, or a collective would wait."""
        self._device.learn(step)

    def counted(self, step: Callable[[], object]) -> Counted:
        """Count what this rank does in as many steps as every other."""
        return self._device.counted(step)

    def closing_words(self) -> tuple[str, ...]:
        """Return what this rank's device has to say."""
        return self._device.closing_words()

    def leave(self) -> None:
        """Leave this rank's device."""
        self._device.leave()

    def cool_down(self, seconds: float) -> None:
        """Let this rank's device rest."""
        self._device.cool_down(seconds)
