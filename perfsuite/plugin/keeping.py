"""Keep the readings of one test: under free names, joined over ranks, repeated if they do not count."""

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, cast

from perfsuite.devices import Device
from perfsuite.measure.blocks import Block
from perfsuite.measure.ranks import join
from perfsuite.measure.step import Plan
from perfsuite.records import Limit, Reading

if TYPE_CHECKING:
    from perfsuite.devices.model.device import ModelDevice

_SHORT_BLOCK = 0.025  # a shared machine's speed changes within a tenth of a second
_LONG_BLOCK = 0.2  # an accelerator's queue must fill before its steps are as fast as in a training

# Runs blocks of what was measured, of so many seconds, as another process says.
Conduct = Callable[[Reading, Block | None, float], None]


class Keeper:
    """A test's device, plan and readings so far."""

    def __init__(
        self,
        device: Device,
        plan: Plan,
        *,
        faults: Callable[[Reading], tuple[str, ...]] = lambda reading: reading.invalid,
        cooldown_seconds: float = 0.0,
        is_beside: bool = False,
        conduct: Conduct | None = None,
    ) -> None:
        self._device = device
        self._plan = plan
        self._faults = faults
        self._cooldown = cooldown_seconds
        self._is_beside = is_beside
        self._conduct = conduct
        self._model = cast("ModelDevice", device) if device.modelled else None
        self.kept: list[tuple[Reading, tuple[Limit, ...]]] = []

    @property
    def device(self) -> str:
        """The device in torch's spelling: `model.to(perf.device)`."""
        return str(getattr(self._device, "torch_name", self._device.name))

    @property
    def rank(self) -> int:
        """This process's number among those that measure together; 0 where it is alone."""
        return self._plan.together.rank

    @property
    def world_size(self) -> int:
        """How many processes measure together."""
        return self._plan.together.size

    @property
    def device_name(self) -> str:
        """The device as `--perf-device` names it, such as `model:a10`."""
        return self._device.name

    def close(self) -> None:
        """Let a device that watches the test alone again."""
        end = getattr(self._device, "end_test", None)
        if end is not None:
            end()

    def release(self) -> None:
        """Give back what the test's device still keeps for it: a fresh process may need it."""
        release = getattr(self._device, "release", None)
        if release is not None:
            release()

    @property
    def readings(self) -> tuple[Reading, ...]:
        """All readings of this test so far."""
        return tuple(reading for reading, _ in self.kept)

    def _keep(
        self,
        measure: Callable[[str], Reading],
        name: str,
        limits: tuple[Limit, ...],
        blocks: Callable[[], Block] | None,
    ) -> Reading:
        """Measure under a free name; what does not count is measured once more, after a rest."""
        free = self._free_name(name)
        alone, measure = measure, lambda free: self._joined(alone(free))
        reading = measure(free)
        if first := self._faults(reading):
            self._device.cool_down(self._cooldown)
            reading = measure(free)
            note = f"measured twice: the first time did not count ({'; '.join(first)})"
            reading = replace(reading, notes=(*reading.notes, note))
        reading = replace(reading, name=free)
        self.kept.append((reading, limits))
        if self._conduct is not None:
            seconds = _LONG_BLOCK if self._device.is_accelerator else _SHORT_BLOCK
            self._conduct(reading, None if self._model or blocks is None else blocks(), seconds)
        return reading

    def _joined(self, reading: Reading) -> Reading:
        """Return the reading of all ranks, the same on each of them."""
        together = self._plan.together
        return join(together.gather(reading)) if together.size > 1 else reading

    def _free_name(self, name: str) -> str:
        taken = {reading.name for reading in self.readings}
        number, free = 1, name
        while free in taken:
            number += 1
            free = f"{name} {number}"
        return free
