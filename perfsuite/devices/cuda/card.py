"""The questions put to a card through NVML: memory, processes, clocks, throttling, power; absent is None."""

from collections.abc import Mapping
from typing import NamedTuple

from perfsuite.devices.cuda.nvml import FUNCTION_NOT_FOUND, NOT_FOUND, Answer, Nvml

_UTILIZATION_SAMPLES = 1
_CLOCK_SM, _CLOCK_MEMORY = 1, 2
_TEMPERATURE_OF_GPU = 0
_UNSIGNED_LONG = 2  # NVML's types of a value that fill more than an unsigned int
_COUNTED = {74: "power_cap", 269: "thermal", 270: "thermal", 271: "power_brake"}  # fields, nanoseconds

# Bits of the clocks' event reasons. Kept here: the bindings know some of them under old names or not at all.
POWER_CAP, SLOWDOWN = 0x4, 0x8
THERMAL, POWER_BRAKE = 0x20 | 0x40, 0x80


class Memory(NamedTuple):
    """A card's memory in bytes; what the driver keeps for itself is told apart where it is known."""

    total: float
    free: float
    reserved: float | None

    @property
    def used(self) -> float:
        """Return total minus free: NVML's own `used` means two things in two versions."""
        return self.total - self.free


class Process(NamedTuple):
    """A process with a compute context: its id as the host counts, its memory where that is told."""

    pid: int
    used_bytes: float | None = None


class Card:
    """One card; each method asks one thing and gives None where the card does not tell."""

    def __init__(self, nvml: Nvml) -> None:
        self._nvml = nvml

    def samples(self, cursor: int) -> Answer:
        """Return (timestamp, share) of the driver's utilization samples after the cursor.

        An idle card adds none: «not found» is an empty list and no absence.
        """
        answer = self._nvml.ask("nvmlDeviceGetSamples", _UTILIZATION_SAMPLES, cursor)
        if answer.code == NOT_FOUND:
            return Answer([])
        if answer.why:
            return answer
        _, samples = answer.value
        return Answer([(int(s.timeStamp), s.sampleValue.uiVal / 100) for s in samples])

    def utilization(self) -> Answer:
        """Return the share of the last sample period with at least one kernel running."""
        answer = self._nvml.ask("nvmlDeviceGetUtilizationRates")
        return answer if answer.why else Answer(answer.value.gpu / 100)

    def memory(self) -> Memory | None:
        """Return the memory; the old question where the driver does not know the one with `reserved`."""
        version = getattr(self._nvml.binding, "nvmlMemory_v2", None)
        second = self._nvml.ask("nvmlDeviceGetMemoryInfo", version) if version else Answer(why="no version 2")
        if not second.why:
            memory = second.value
            return Memory(float(memory.total), float(memory.free), float(memory.reserved))
        first = self._nvml.ask("nvmlDeviceGetMemoryInfo")
        return None if first.why else Memory(float(first.value.total), float(first.value.free), None)

    def processes(self) -> tuple[Process, ...] | None:
        """Return the processes with a compute context."""
        # By version: where the driver lacks it, the binding's unversioned name raises no NVMLError.
        answer = self._nvml.ask("nvmlDeviceGetComputeRunningProcesses_v3")
        if answer.code == FUNCTION_NOT_FOUND:
            answer = self._nvml.ask("nvmlDeviceGetComputeRunningProcesses_v2")
        return None if answer.why else tuple(Process(one.pid, one.usedGpuMemory) for one in answer.value)

    def reasons(self) -> int | None:
        """Return why the clocks are where they are, as bits; by the old name on old drivers."""
        answer = self._nvml.ask("nvmlDeviceGetCurrentClocksEventReasons")
        if answer.code == FUNCTION_NOT_FOUND:
            answer = self._nvml.ask("nvmlDeviceGetCurrentClocksThrottleReasons")
        return None if answer.why else int(answer.value)

    def throttled_seconds(self) -> Mapping[str, float]:
        """Return seconds since the driver was loaded, by cause; what the card does not count is missing."""
        answer = self._nvml.ask("nvmlDeviceGetFieldValues", list(_COUNTED))
        seconds: dict[str, float] = {}
        for value in () if answer.why else answer.value:
            if value.nvmlReturn == 0:
                is_long = value.valueType >= _UNSIGNED_LONG
                count = value.value.ullVal if is_long else value.value.uiVal
                cause = _COUNTED[value.fieldId]
                seconds[cause] = seconds.get(cause, 0.0) + count / 1e9
        return seconds

    def sm_clock(self) -> float | None:
        """Return the multiprocessors' clock in MHz."""
        return self._number("nvmlDeviceGetClockInfo", _CLOCK_SM)

    def memory_clock(self) -> float | None:
        """Return the memory's clock in MHz."""
        return self._number("nvmlDeviceGetClockInfo", _CLOCK_MEMORY)

    def max_sm_clock(self) -> float | None:
        """Return the highest clock of the multiprocessors in MHz."""
        return self._number("nvmlDeviceGetMaxClockInfo", _CLOCK_SM)

    def temperature(self) -> float | None:
        """Return degrees Celsius; by the name that all drivers have."""
        return self._number("nvmlDeviceGetTemperature", _TEMPERATURE_OF_GPU)

    def power(self) -> float | None:
        """Return watts: averaged over a second on most cards, so nothing is integrated from it."""
        return self._number("nvmlDeviceGetPowerUsage", scale=1e-3)

    def power_limit(self) -> float | None:
        """Return the power limit in force in watts."""
        return self._number("nvmlDeviceGetEnforcedPowerLimit", scale=1e-3)

    def energy(self) -> float | None:
        """Return joules since the driver was loaded."""
        return self._number("nvmlDeviceGetTotalEnergyConsumption", scale=1e-3)

    def is_persistent(self) -> bool | None:
        """Tell whether the driver stays loaded between two users of the card."""
        mode = self._number("nvmlDeviceGetPersistenceMode")
        return None if mode is None else mode == 1

    def is_sliced(self) -> bool | None:
        """Tell whether MIG is on; None on cards that have no MIG."""
        answer = self._nvml.ask("nvmlDeviceGetMigMode")
        return None if answer.why else answer.value[0] == 1

    def _number(self, function: str, *arguments: int, scale: float = 1.0) -> float | None:
        answer = self._nvml.ask(function, *arguments)
        return None if answer.why else float(answer.value) * scale
