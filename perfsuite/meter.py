"""The object behind the perf fixture: measures what a test hands it and keeps every reading."""

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

from perfsuite.beside import measure_beside
from perfsuite.collect import parse_limits
from perfsuite.devices import Device
from perfsuite.errors import UnusableStep
from perfsuite.measure import Plan, measure_loop, measure_step, quiet_garbage
from perfsuite.modelled import model_loop, model_pair, model_step
from perfsuite.pairs import difference, measure_pair
from perfsuite.records import Limit, Reading
from perfsuite.turns import Block, loop_block, pair_block, step_block
from perfsuite.units import Unit, parse

if TYPE_CHECKING:
    from perfsuite.devices.model import ModelDevice
    from perfsuite.recorder import Recorder

_CALL = "the perf call"
_BESIDE_SECONDS = 6.0  # on a shared machine a third of it varies half as much again
_SHORT_BLOCK = 0.025  # a shared machine's speed changes within a tenth of a second
_LONG_BLOCK = 0.2  # an accelerator's queue must fill before its steps are as fast as in a training
_MAX_DIFFERENCE = 1e-4  # relative; float32 steps computed in another order agree to about 1e-6

# Runs blocks of what was measured, of so many seconds, as another process says.
Conduct = Callable[[Reading, Block | None, float], None]


class Perf:
    """Measure steps, loops and pairs of variants on this test's device."""

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
    def device_name(self) -> str:
        """The device as `--perf-device` names it, such as `model:a10`."""
        return self._device.name

    def close(self) -> None:
        """Let a device that watches the test alone again."""
        end = getattr(self._device, "end_test", None)
        if end is not None:
            end()

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

        def measure(free: str) -> Reading:
            if self._model is not None:
                return model_step(step, self._model, self._plan.progress, samples_per_step)
            reading = measure_step(step, self._device, self._plan, samples_per_step, free)
            return self._beside_references(reading, step)

        return self._keep(measure, name or "step", asked, lambda: step_block(step, self._device))

    def loop(
        self,
        loader: Iterable[Any],
        step: Callable[[Any], Any],
        *,
        samples_per_step: int | Callable[[Any], int] | None = None,
        modelled_batch_time: object = None,
        name: str = "",
        **limits: object,
    ) -> Reading:
        """Measure a training loop and the time it waits for data: perf.loop(loader, train_step).

        `modelled_batch_time` states what a batch costs one process ("20 ms"); a modelled device waits by it.
        """
        asked = parse_limits(limits, _CALL)
        _check_callable(step, "step")
        if not isinstance(loader, Iterable):
            raise UnusableStep(f"perf.loop needs a loader to iterate over, got {type(loader).__name__}")
        if samples_per_step is not None and not callable(samples_per_step):
            _check_samples(samples_per_step)
        stated = None if modelled_batch_time is None else parse(modelled_batch_time, Unit.SECONDS)

        def measure(free: str) -> Reading:
            if self._model is None:
                return measure_loop(
                    loader, step, self._device, self._plan, samples=samples_per_step, name=free
                )
            return model_loop(
                loader, step, self._model, self._plan.progress, samples=samples_per_step, batch_seconds=stated
            )

        return self._keep(
            measure, name or "loop", asked, lambda: loop_block(loader, step, self._device, samples_per_step)
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

        def measure(free: str) -> Reading:
            if self._model is None:
                return measure_pair(
                    without,
                    with_,
                    self._device,
                    self._plan,
                    samples_per_step=samples_per_step,
                    name=free,
                    read_result=result,
                )
            return model_pair(
                without,
                with_,
                self._model,
                self._plan.progress,
                samples_per_step=samples_per_step,
                difference=None if result is None else difference(without(), with_(), result),
            )

        return self._keep(
            measure, name or "comparison", asked, lambda: pair_block(without, with_, self._device)
        )

    def recorder(
        self,
        *,
        samples_per_step: int | Callable[[Any], int] | None = None,
        name: str = "",
        **limits: object,
    ) -> "Recorder":
        """Return what measures a loop that a framework runs; see perfsuite.frameworks."""
        from perfsuite.recorder import Recorder

        asked = parse_limits(limits, _CALL)
        if self._model is not None:
            raise UnusableStep(
                "a framework's trainer moves its data by itself and cannot be modelled; "
                "hand its step to perf(step) or perf.loop, or measure on a real device"
            )

        def keep(reading: Reading) -> None:
            self._keep(lambda _: reading, name or "loop", asked, None)

        return Recorder(self._device, self._plan, keep, samples_per_step)

    def _keep(
        self,
        measure: Callable[[str], Reading],
        name: str,
        limits: tuple[Limit, ...],
        blocks: Callable[[], Block] | None,
    ) -> Reading:
        """Measure under a free name; what does not count is measured once more, after a rest."""
        free = self._free_name(name)
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

    def _beside_references(self, reading: Reading, step: Callable[[], Any]) -> Reading:
        """Measure the step once more in turns with reference workloads, where a baseline needs it."""
        offered = getattr(self._device, "references", None)
        if not self._is_beside or offered is None:
            return reading
        seconds = min(_BESIDE_SECONDS, 3 * self._plan.max_seconds)
        with quiet_garbage():
            found = measure_beside(step, offered(), self._device, seconds, self._plan.progress)
        return replace(reading, relative=found)

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
