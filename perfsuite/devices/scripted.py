"""A device whose time is written down beforehand, so that tests of the line need no clock."""

from collections.abc import Hashable, Iterable, Mapping, Sequence

from perfsuite.devices import DeviceFacts, Timing
from perfsuite.insight import Insight
from perfsuite.metrics import Tolerance


class ScriptedDevice:
    """Advance a clock only as told: each step costs the next scripted number of seconds."""

    modelled = False
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
        self.tolerances: Mapping[str, Tolerance] = {}
        self.events: list[str] = []
        self._clock = 0.0
        self._states = list(states)
        self._timing = {"utilization": utilization, "peak_memory_bytes": peak_memory_bytes}
        self._notes = notes
        self._threads = torch_threads
        self._invalid = list(invalid)
        self._conditions = conditions or {}
        self._insight = insight or Insight()

    def spend(self, seconds: float) -> None:
        """Let time pass, as a step or a loader would."""
        self._clock += seconds

    def facts(self) -> DeviceFacts:
        """Return an identity that no real device has."""
        return DeviceFacts("scripted", self.name, "script", threads=self._threads)

    def count(self) -> int:
        """Return 1."""
        return 1

    def now(self) -> float:
        """Return the scripted time."""
        return self._clock

    def wait(self) -> None:
        """Note that the host waited."""
        self.events.append("wait")

    def state(self) -> Hashable:
        """Return the next scripted state, the last one for ever."""
        if not self._states:
            return None
        return self._states.pop(0) if len(self._states) > 1 else self._states[0]

    def begin_test(self) -> None:
        """Note that the memory's zero was taken."""
        self.events.append("begin")

    def inspect(self, *_: object) -> Insight:
        """Return what was written down: a script has no kernels."""
        return self._insight

    def cool_down(self, seconds: float) -> None:
        """Let scripted time pass."""
        self.events.append(f"cool {seconds:g}")
        self.spend(seconds)

    def start(self) -> "ScriptedWindow":
        """Open a window on the scripted clock; each takes the next scripted reason not to count."""
        self.events.append("start")
        invalid = self._invalid.pop(0) if self._invalid else ()
        return ScriptedWindow(self, self._timing, self._notes, invalid, self._conditions)


class ScriptedWindow:
    """Marks on the scripted clock."""

    def __init__(
        self,
        device: ScriptedDevice,
        timing: Mapping[str, float | None],
        notes: tuple[str, ...],
        invalid: tuple[str, ...],
        conditions: Mapping[str, float],
    ) -> None:
        self._device = device
        self._timing = timing
        self._notes = notes
        self._invalid = invalid
        self._conditions = conditions
        self._marks = [device.now()]

    def mark(self) -> None:
        """Note the end of a step."""
        self._device.events.append("mark")
        self._marks.append(self._device.now())

    def known(self) -> Sequence[float]:
        """Return all steps so far."""
        return [after - before for before, after in zip(self._marks, self._marks[1:], strict=False)]

    def close(self) -> None:
        """Nothing runs beside the steps."""

    def stop(self) -> Timing:
        """Return the scripted figures."""
        self._device.events.append("stop")
        wall = self._device.now() - self._marks[0]
        return Timing(
            tuple(self.known()),
            wall,
            self._timing["utilization"],
            self._timing["peak_memory_bytes"],
            notes=self._notes,
            invalid=self._invalid,
            conditions=self._conditions,
        )
