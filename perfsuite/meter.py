"""The object behind the perf fixture: measures what a test hands it and keeps every reading."""

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from perfsuite.collect import parse_limits
from perfsuite.devices import Device
from perfsuite.errors import UnusableStep
from perfsuite.measure import Plan, measure_loop, measure_step
from perfsuite.pairs import measure_pair
from perfsuite.records import Limit, Reading

_CALL = "the perf call"
_MAX_DIFFERENCE = 1e-4  # relative; float32 steps computed in another order agree to about 1e-6


class Perf:
    """Measure steps, loops and pairs of variants on this test's device."""

    def __init__(
        self,
        device: Device,
        plan: Plan,
        *,
        faults: Callable[[Reading], tuple[str, ...]] = lambda reading: reading.invalid,
        cooldown_seconds: float = 0.0,
    ) -> None:
        self._device = device
        self._plan = plan
        self._faults = faults
        self._cooldown = cooldown_seconds
        self.kept: list[tuple[Reading, tuple[Limit, ...]]] = []

    @property
    def device(self) -> str:
        """The device in torch's spelling: `model.to(perf.device)`."""
        return self._device.name

    @property
    def readings(self) -> tuple[Reading, ...]:
        """All readings of this test so far."""
        return tuple(reading for reading, _ in self.kept)

    def __call__(
        self, step: Callable[[], Any], *, samples_per_step: int = 1, name: str = "", **limits: object
    ) -> Reading:
        """Measure a training step: perf(step, samples_per_step=64)."""
        asked = parse_limits(limits, _CALL)
        _check_callable(step, "step")
        _check_samples(samples_per_step)
        return self._keep(
            lambda free: measure_step(step, self._device, self._plan, samples_per_step, free),
            name or "step",
            asked,
        )

    def loop(
        self,
        loader: Iterable[Any],
        step: Callable[[Any], Any],
        *,
        samples_per_step: int | Callable[[Any], int] | None = None,
        name: str = "",
        **limits: object,
    ) -> Reading:
        """Measure a training loop and the time it waits for data: perf.loop(loader, train_step)."""
        asked = parse_limits(limits, _CALL)
        _check_callable(step, "step")
        if not isinstance(loader, Iterable):
            raise UnusableStep(f"perf.loop needs a loader to iterate over, got {type(loader).__name__}")
        if samples_per_step is not None and not callable(samples_per_step):
            _check_samples(samples_per_step)
        return self._keep(
            lambda free: measure_loop(
                loader, step, self._device, self._plan, samples=samples_per_step, name=free
            ),
            name or "loop",
            asked,
        )

    def compare(
        self,
        *,
        without: Callable[[], Any],
        with_: Callable[[], Any],
        samples_per_step: int = 1,
        result: Callable[[Any], Any] | None = None,
        max_difference: float = _MAX_DIFFERENCE,
        name: str = "",
        **limits: object,
    ) -> Reading:
        """Measure two variants in turns: perf.compare(without=slow, with_=fast).speedup.

        `result` reads from what a variant returned the numbers that must agree, such as the loss.
        """
        asked = parse_limits(limits, _CALL)
        if result is not None:
            asked += parse_limits({"max_difference": max_difference}, "perf.compare")
            _check_callable(result, "result")
        _check_callable(without, "without")
        _check_callable(with_, "with_")
        _check_samples(samples_per_step)
        return self._keep(
            lambda free: measure_pair(
                without,
                with_,
                self._device,
                self._plan,
                samples_per_step=samples_per_step,
                name=free,
                read_result=result,
            ),
            name or "comparison",
            asked,
        )

    def _keep(self, measure: Callable[[str], Reading], name: str, limits: tuple[Limit, ...]) -> Reading:
        """Measure under a free name; what does not count is measured once more, after a rest."""
        free = self._free_name(name)
        reading = measure(free)
        if first := self._faults(reading):
            self._device.cool_down(self._cooldown)
            reading = measure(free)
            note = f"measured twice: the first time did not count ({'; '.join(first)})"
            reading = replace(reading, notes=(*reading.notes, note))
        self.kept.append((reading, limits))
        return reading

    def _free_name(self, name: str) -> str:
        taken = {reading.name for reading in self.readings}
        number, free = 1, name
        while free in taken:
            number += 1
            free = f"{name} {number}"
        return free


def _check_callable(value: object, name: str) -> None:
    if not callable(value):
        raise UnusableStep(
            f"{name} must be callable, got {type(value).__name__}; hand over the function itself"
        )


def _check_samples(value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise UnusableStep(f"samples_per_step must be a whole number of at least 1, got {value!r}")
