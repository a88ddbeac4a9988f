"""A device that runs on scripted time, so that tests need no clock."""

from collections.abc import Hashable, Iterable, Mapping, Sequence

from perfsuite.devices.protocol import Device, Timing
from perfsuite.records import DeviceFacts, Insight


class ScriptedDevice(Device):
    """Advance the clock only by `spend`, and return scripted figures."""

    min_seconds = 0.0

    def __init__(
        self,
        *,
        utilization: float | None = 0.5,
        peak_memory_bytes: float | None = 2**20,
        name: str = "scripted",
        is_accelerator: bool = True,
        states: Iterable[Hashable] = (),
        notes: tuple[str, ...] = (),
        torch_threads: int | None = None,
        invalid: Iterable[tuple[str, ...]] = (),
        conditions: Mapping[str, float] | None = None,
        insight: Insight | None = None,
    ) -> None:
        self.name = name
        self.is_accelerator = is_accelerator
        self.locks: tuple[str, ...] = ()
        self.events: list[str] = []
        self._clock = 0.0
        self._states = list(states)
        figures = {"utilization": utilization, "peak_memory": peak_memory_bytes}
        self.figures = {name: value for name, value in figures.items() if value is not None}
        self._notes = notes
        self._threads = torch_threads
        self._invalid = list(invalid)
        self._conditions = conditions or {}
        self._insight = insight or Insight()

    def spend(self, seconds: float) -> None:
        """Advance the clock, as a step or a loader would."""
        self._clock += seconds

    def facts(self) -> DeviceFacts:
        """Return facts that no real device has."""
        return DeviceFacts("scripted", self.name, "script", threads=self._threads)

    def now(self) -> float:
        """Return the scripted time."""
        return self._clock

    def wait(self) -> None:
        """Record that the host waited."""
        self.events.append("wait")

    def state(self) -> Hashable:
        """Return the next scripted state; the last one is repeated."""
        if not self._states:
            return None
        return self._states.pop(0) if len(self._states) > 1 else self._states[0]

    def begin_test(self) -> None:
        """Record that a test began."""
        self.events.append("begin")

    def inspect(self, *_: object) -> Insight:
        """Return the scripted insight."""
        return self._insight

    def lock_names(self, *, needs_all: bool = False) -> tuple[str, ...]:
        """Return the names a test has set."""
        del needs_all
        return self.locks

    def cool_down(self, seconds: float) -> None:
        """Advance the scripted clock."""
        self.events.append(f"cool {seconds:g}")
        self.spend(seconds)

    def start(self) -> "ScriptedWindow":
        """Open a window on the scripted clock; each takes the next scripted reasons not to count."""
        self.events.append("start")
        invalid = self._invalid.pop(0) if self._invalid else ()
        return ScriptedWindow(self, self.figures, self._notes, invalid, self._conditions)


class ScriptedWindow:
    """A window on the scripted clock."""

    def __init__(
        self,
        device: ScriptedDevice,
        figures: Mapping[str, float],
        notes: tuple[str, ...],
        invalid: tuple[str, ...],
        conditions: Mapping[str, float],
    ) -> None:
        self._device = device
        self._figures = figures
        self._notes = notes
        self._invalid = invalid
        self._conditions = conditions
        self._marks = [device.now()]

    def mark(self) -> None:
        """Record the end of a step."""
        self._device.events.append("mark")
        self._marks.append(self._device.now())

    def known(self) -> Sequence[float]:
        """Return all steps so far."""
        return [after - before for before, after in zip(self._marks, self._marks[1:], strict=False)]

    def close(self) -> None:
        """Do nothing: no background work runs."""

    def stop(self) -> Timing:
        """Return the scripted figures."""
        self._device.events.append("stop")
        wall = self._device.now() - self._marks[0]
        return Timing(
            tuple(self.known()),
            wall,
            self._figures,
            notes=self._notes,
            invalid=self._invalid,
            conditions=self._conditions,
        )
