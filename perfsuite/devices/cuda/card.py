"""NVML queries on a GPU: memory, processes, clocks, throttling, power; None where a value is absent."""

from collections.abc import Mapping
from typing import NamedTuple

from perfsuite.devices.cuda.nvml import FUNCTION_NOT_FOUND, NOT_FOUND, Answer, Nvml

_UTILIZATION_SAMPLES = 1
_CLOCK_SM, _CLOCK_MEMORY = 1, 2
_TEMPERATURE_OF_GPU = 0
_UNSIGNED_LONG = 2  # NVML's value types from here on are larger than an unsigned int
_COUNTED = {74: "power_cap", 269: "thermal", 270: "thermal", 271: "power_brake"}  # fields, nanoseconds

# Bits of the clocks' event reasons. Defined here: the bindings have some under old names or not at all.
POWER_CAP, SLOWDOWN = 0x4, 0x8
THERMAL, POWER_BRAKE = 0x20 | 0x40, 0x80

# What no card can have: beyond these, NVML's figure is a mistake of the driver.
_MOST_MHZ, _MOST_DEGREES, _MOST_WATTS = 20_000.0, 200.0, 20_000.0


class Memory(NamedTuple):
    """A card's memory in bytes; what the driver reserves is separate where it is known."""

    total: float
    free: float
    reserved: float | None

    @property
    def used(self) -> float:
        """Return total minus free: NVML's `used` means different things in its two versions."""
        return self.total - self.free


class Process(NamedTuple):
    """A process with a compute context: its id on the host, and its memory where it is reported."""

    pid: int
    used_bytes: float | None = None


class Card:
    """One card; each method queries one value and returns None where the card does not report it."""

    def __init__(self, nvml: Nvml) -> None:
        self._nvml = nvml
        self.doubts: dict[str, str] = {}  # figure → why what NVML reported cannot be true

    def is_plausible(self, name: str, value: float, most: float, unit: str, least: float = 0.0) -> bool:
        """Return whether a figure can be true, and keep the reason if it cannot."""
        if least <= value <= most:
            return True
        self.doubts[name] = f"NVML reports {value:.6g} {unit}, which cannot be"
        return False

    def samples(self, cursor: int) -> Answer:
        """Return (timestamp, share) of the driver's utilization samples after the cursor.

        An idle card adds none: «not found» means an empty list, not an absent value.
        """
        answer = self._nvml.ask("nvmlDeviceGetSamples", _UTILIZATION_SAMPLES, cursor)
        if answer.code == NOT_FOUND:
            return Answer([])
        if answer.why:
            return answer
        _, samples = answer.value
        shares = [(int(s.timeStamp), self._share(s.sampleValue.uiVal)) for s in samples]
        return Answer([(stamp, share) for stamp, share in shares if share is not None])

    def utilization(self) -> Answer:
        """Return the share of the last sample period in which at least one kernel ran."""
        answer = self._nvml.ask("nvmlDeviceGetUtilizationRates")
        if answer.why:
            return answer
        share = self._share(answer.value.gpu)
        return Answer(why=self.doubts["utilization"]) if share is None else Answer(share)

    def _share(self, percent: float) -> float | None:
        return percent / 100 if self.is_plausible("utilization", percent, 100, "%") else None

    def activity(self, cursor: int) -> Answer:
        """Return (timestamp, process id) of every sample after the cursor in which a process ran kernels."""
        answer = self._nvml.ask("nvmlDeviceGetProcessUtilization", cursor)
        if answer.code == NOT_FOUND:
            return Answer([])
        return (
            answer
            if answer.why
            else Answer([(int(s.timeStamp), int(s.pid)) for s in answer.value if s.smUtil])
        )

    def memory(self) -> Memory | None:
        """Return the memory, by the old query where the driver does not have the one with `reserved`."""
        version = getattr(self._nvml.binding, "nvmlMemory_v2", None)
        second = self._nvml.ask("nvmlDeviceGetMemoryInfo", version) if version else Answer(why="no version 2")
        if not second.why:
            memory = second.value
            return self._memory(float(memory.total), float(memory.free), float(memory.reserved))
        first = self._nvml.ask("nvmlDeviceGetMemoryInfo")
        return None if first.why else self._memory(float(first.value.total), float(first.value.free), None)

    def _memory(self, total: float, free: float, reserved: float | None) -> Memory | None:
        if not self.is_plausible("device memory", free, total, f"bytes free of {total:.6g}"):
            return None
        is_known = reserved is not None and self.is_plausible("reserved memory", reserved, total, "bytes")
        return Memory(total, free, reserved if is_known else None)

    def processes(self) -> tuple[Process, ...] | None:
        """Return the processes with a compute context."""
        # By version: where the driver lacks it, the binding's unversioned function raises no NVMLError.
        answer = self._nvml.ask("nvmlDeviceGetComputeRunningProcesses_v3")
        if answer.code == FUNCTION_NOT_FOUND:
            answer = self._nvml.ask("nvmlDeviceGetComputeRunningProcesses_v2")
        if answer.why:
            return None
        return tuple(Process(process.pid, process.usedGpuMemory) for process in answer.value)

    def reasons(self) -> int | None:
        """Return the reasons for the current clocks as bits; by the old name on old drivers."""
        answer = self._nvml.ask("nvmlDeviceGetCurrentClocksEventReasons")
        if answer.code == FUNCTION_NOT_FOUND:
            answer = self._nvml.ask("nvmlDeviceGetCurrentClocksThrottleReasons")
        return None if answer.why else int(answer.value)

    def throttled_seconds(self) -> Mapping[str, float]:
        """Return throttled seconds since the driver was loaded, by cause; uncounted causes are missing."""
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
        """Return the SM clock in MHz."""
        return self._number("nvmlDeviceGetClockInfo", _CLOCK_SM, bounds=("SM clock", _MOST_MHZ, "MHz"))

    def memory_clock(self) -> float | None:
        """Return the memory clock in MHz."""
        return self._number(
            "nvmlDeviceGetClockInfo", _CLOCK_MEMORY, bounds=("memory clock", _MOST_MHZ, "MHz")
        )

    def max_sm_clock(self) -> float | None:
        """Return the highest SM clock in MHz."""
        return self._number(
            "nvmlDeviceGetMaxClockInfo", _CLOCK_SM, bounds=("highest SM clock", _MOST_MHZ, "MHz")
        )

    def temperature(self) -> float | None:
        """Return degrees Celsius, by the function that all drivers have."""
        return self._number(
            "nvmlDeviceGetTemperature", _TEMPERATURE_OF_GPU, bounds=("temperature", _MOST_DEGREES, "°C")
        )

    def power(self) -> float | None:
        """Return watts: most cards average over a second, so it is not integrated into energy."""
        return self._number("nvmlDeviceGetPowerUsage", scale=1e-3, bounds=("power", _MOST_WATTS, "W"))

    def power_limit(self) -> float | None:
        """Return the enforced power limit in watts."""
        return self._number(
            "nvmlDeviceGetEnforcedPowerLimit", scale=1e-3, bounds=("power limit", _MOST_WATTS, "W")
        )

    def energy(self) -> float | None:
        """Return the joules used since the driver was loaded."""
        return self._number("nvmlDeviceGetTotalEnergyConsumption", scale=1e-3)

    def is_persistent(self) -> bool | None:
        """Return whether the driver stays loaded while nobody uses the card."""
        mode = self._number("nvmlDeviceGetPersistenceMode")
        return None if mode is None else mode == 1

    def is_sliced(self) -> bool | None:
        """Return whether MIG is on; None on cards without MIG."""
        answer = self._nvml.ask("nvmlDeviceGetMigMode")
        return None if answer.why else answer.value[0] == 1

    def _number(
        self, function: str, *arguments: int, scale: float = 1.0, bounds: tuple[str, float, str] | None = None
    ) -> float | None:
        answer = self._nvml.ask(function, *arguments)
        value = None if answer.why else float(answer.value) * scale
        if value is None or bounds is None:
            return value
        name, most, unit = bounds
        return value if self.is_plausible(name, value, most, unit) else None
