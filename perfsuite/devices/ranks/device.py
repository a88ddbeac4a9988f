"""A device that several processes measure on together: each its own, all under one name."""

from collections import Counter
from collections.abc import Callable, Hashable, Mapping
from dataclasses import replace

from perfsuite.devices import Device, DeviceFacts, Window
from perfsuite.insight import Insight
from perfsuite.metrics import Tolerance
from perfsuite.processes.world import Together


class RankedDevice:
    """This rank's own device; its name and facts are those of the whole set."""

    modelled = False

    def __init__(self, own: Device, together: Together) -> None:
        self._own = own
        self._together = together
        self.name = f"{own.name.partition(':')[0]}×{together.size}"
        self.torch_name = str(getattr(own, "torch_name", own.name))
        self.is_accelerator = own.is_accelerator
        self.min_seconds = own.min_seconds
        self.tolerances: Mapping[str, Tolerance] = own.tolerances
        self.never_repeats = getattr(own, "never_repeats", False)
        self._facts: DeviceFacts | None = None

    def facts(self) -> DeviceFacts:
        """Return what identifies the set of devices; asked of all ranks once, so all must ask."""
        if self._facts is None:
            mine = self._own.facts()
            names = Counter(self._together.gather(mine.name))
            told = [name if len(names) == 1 else f"{count} {name}" for name, count in sorted(names.items())]
            self._facts = replace(mine, name=" + ".join(told), uuid=None, ranks=self._together.size)
        return self._facts

    @property
    def lock_names(self) -> tuple[str, ...]:
        """Return what one rank of a machine locks for all of them there."""
        from perfsuite.devices.cuda.physical import physical_names

        return physical_names(self._own, needs_all=True)

    def count(self) -> int:
        """Return how many there are: one for each rank."""
        return self._together.size

    def now(self) -> float:
        """Return the host's clock."""
        return self._own.now()

    def wait(self) -> None:
        """Make the host wait for this rank's device."""
        self._own.wait()

    def state(self) -> Hashable:
        """Return what changes while compiling or allocating goes on here."""
        return self._own.state()

    def begin_test(self) -> None:
        """Take the present memory as the test's zero."""
        self._own.begin_test()

    def release(self) -> None:
        """Give back what this rank's device keeps for a test that is over."""
        release = getattr(self._own, "release", None)
        if release is not None:
            release()

    def start(self) -> Window:
        """Open a window here; every rank opens its own."""
        return self._own.start()

    def inspect(
        self, step: Callable[[], object], step_seconds: float, resident: Callable[[], object] | None = None
    ) -> Insight:
        """Look at the collectives of a few more steps, as many on every rank."""
        from perfsuite.devices.ranks.collectives import inspect, steps_of

        del resident  # a loop is looked at with its loader: what it makes a rank wait is part of the skew
        steps = self._together.first(steps_of(step_seconds))
        return inspect(step, step_seconds, steps, is_cuda=self._own.name.startswith("cuda"))

    def cool_down(self, seconds: float) -> None:
        """Rest."""
        self._own.cool_down(seconds)
