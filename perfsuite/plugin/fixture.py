"""The perf fixture's object: it measures what a test passes to it and keeps every reading."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from perfsuite.collect.markers import parse_limits
from perfsuite.devices.protocol import Device, Measurer, Plan
from perfsuite.errors import UnusableStep
from perfsuite.measure.blocks import Block, loop_block, pair_block, step_block
from perfsuite.measure.measurer import ClockMeasurer
from perfsuite.measure.pair import difference
from perfsuite.measure.ranks import join, measure_scaling
from perfsuite.processes.world import Together
from perfsuite.records import Limit, Reading
from perfsuite.units import Unit, parse

if TYPE_CHECKING:
    from perfsuite.measure.recorder import Recorder

_SHORT_BLOCK = 0.025  # a shared machine's speed changes within a tenth of a second
_LONG_BLOCK = 0.2  # an accelerator's queue must fill before steps are as fast as in a training
_CALL = "the perf call"
_MAX_DIFFERENCE = 1e-4  # relative; float32 steps computed in another order agree to about 1e-6

# Runs blocks of a measured step, each of that many seconds, when another process requests them (--against).
BlockRunner = Callable[[Reading, Block | None, float], None]


class Perf:
    """Measure steps, loops and pairs of variants on this test's device."""

    def __init__(
        self,
        device: Device,
        plan: Plan,
        *,
        faults: Callable[[Reading], tuple[str, ...]] = lambda reading: reading.invalid,
        remarks: Callable[[Reading], tuple[str, ...]] = lambda _: (),
        cooldown_seconds: float = 0.0,
        run_blocks: BlockRunner | None = None,
    ) -> None:
        self._device = device
        self._plan = plan
        self._faults, self._remarks = faults, remarks
        self._cooldown = cooldown_seconds
        self._run_blocks = run_blocks
        self.kept: list[tuple[Reading, tuple[Limit, ...]]] = []

    def __call__(
        self, step: Callable[[], Any], *, samples_per_step: int = 1, name: str = "", **limits: object
    ) -> Reading:
        """Measure a training step: perf(step, samples_per_step=64)."""
        call_limits = parse_limits(limits, _CALL)
        _check_callable(step, "step")
        _check_samples(samples_per_step)

        def measure(unique_name: str) -> Reading:
            return self._measurer_for(call_limits).step(
                step, samples_per_step=samples_per_step, name=unique_name
            )

        return self._keep(measure, name or "step", call_limits, lambda: step_block(step, self._device))

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

        `modelled_batch_time` states how long one process needs for a batch ("20 ms"), for modelled devices.
        """
        call_limits = parse_limits(limits, _CALL)
        _check_callable(step, "step")
        if not isinstance(loader, Iterable):
            raise UnusableStep(f"perf.loop needs a loader to iterate over, got {type(loader).__name__}")
        if samples_per_step is not None and not callable(samples_per_step):
            _check_samples(samples_per_step)
        batch_seconds = None if modelled_batch_time is None else parse(modelled_batch_time, Unit.SECONDS)

        def measure(unique_name: str) -> Reading:
            return self._measurer_for(call_limits).loop(
                loader, step, samples=samples_per_step, name=unique_name, batch_seconds=batch_seconds
            )

        return self._keep(
            measure,
            name or "loop",
            call_limits,
            lambda: loop_block(loader, step, self._device, samples_per_step),
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

        `result` extracts from a variant's return value the numbers that must agree, such as the loss.
        """
        call_limits = parse_limits(limits, _CALL)
        _check_callable(without, "without")
        _check_callable(with_, "with_")
        _check_samples(samples_per_step)
        differs: float | None = None
        notes: tuple[str, ...] = ()
        if result is not None:
            _check_callable(result, "result")
            if self._device.has_values:
                # Once, before anything is timed: models that have trained on differ anyway.
                differs = difference(without(), with_(), result)
                call_limits += parse_limits({"max_difference": max_difference}, "perf.compare")
            else:
                notes = ("difference: not comparable here, the device computes no values",)

        def measure(unique_name: str) -> Reading:
            measurer = self._measurer_for(call_limits)
            reading = measurer.pair(without, with_, samples_per_step=samples_per_step, name=unique_name)
            return replace(reading.with_figures(difference=differs), notes=(*reading.notes, *notes))

        return self._keep(
            measure, name or "comparison", call_limits, lambda: pair_block(without, with_, self._device)
        )

    def scaling(
        self,
        build: Callable[[Together], Callable[[], Any]],
        *,
        samples_per_step: int = 1,
        mode: str = "weak",
        name: str = "",
        **limits: object,
    ) -> Reading:
        """Measure one rank against all, in turns: perf.scaling(lambda world: training(world).step).

        `build` makes the step for a world of that size. Weak: every rank has `samples_per_step` for itself;
        strong: all ranks share them, and a single rank has them all.
        """
        call_limits = parse_limits(limits, _CALL)
        _check_callable(build, "build")
        _check_samples(samples_per_step)

        def measure(unique_name: str) -> Reading:
            return measure_scaling(
                build,
                self._device,
                self._plan,
                samples_per_step=samples_per_step,
                mode=mode,
                name=unique_name,
            )

        return self._keep(measure, name or "scaling", call_limits, None)

    def recorder(
        self,
        *,
        samples_per_step: int | Callable[[Any], int] | None = None,
        name: str = "",
        **limits: object,
    ) -> "Recorder":
        """Return an object that measures a loop run by a framework; see perfsuite.frameworks."""
        from perfsuite.measure.recorder import Recorder

        call_limits = parse_limits(limits, _CALL)
        if self.world_size > 1:
            raise UnusableStep(
                "a framework's trainer decides itself when it ends, but ranks must end together; pass its "
                "step to perf(step) or perf.loop in a multi_gpu test"
            )
        if self._device.is_one_process:
            raise UnusableStep(
                "a framework's trainer moves its data by itself and cannot be modelled; "
                "pass its step to perf(step) or perf.loop, or measure on a real device"
            )

        def keep(reading: Reading) -> None:
            self._keep(lambda _: reading, name or "loop", call_limits, None)

        return Recorder(self._device, self._plan, keep, samples_per_step)

    @property
    def device(self) -> str:
        """The device in torch's spelling: `model.to(perf.device)`."""
        return self._device.torch_name

    @property
    def has_values(self) -> bool:
        """Whether the device computes: False on an emulated card, where results are not comparable."""
        return self._device.has_values

    @property
    def device_name(self) -> str:
        """The device's name for `--perf-device`, such as `model:a10`."""
        return self._device.name

    @property
    def rank(self) -> int:
        """This process's number among those that measure together; 0 if it is alone."""
        return self._plan.together.rank

    @property
    def world_size(self) -> int:
        """How many processes measure together."""
        return self._plan.together.size

    @property
    def readings(self) -> tuple[Reading, ...]:
        """All readings of this test so far."""
        return tuple(reading for reading, _ in self.kept)

    @contextmanager
    def closing(self) -> Iterator[None]:
        """Stop the device from watching before the fixtures are torn down, and free its memory after."""
        self._device.end_test()
        try:
            yield
        finally:
            self._device.release()  # a fresh process may need it

    def _measurer_for(self, limits: tuple[Limit, ...]) -> Measurer:
        """Return what measures a call with these limits of its own."""
        needs_series = self._plan.needs_utilization or any(limit.metric.needs_series for limit in limits)
        is_alone = self._run_blocks is None  # --against judges no utilization
        plan = replace(self._plan, needs_utilization=needs_series and is_alone)
        return self._device.measurer(plan) or ClockMeasurer(self._device, plan)

    def _keep(
        self,
        measure: Callable[[str], Reading],
        name: str,
        limits: tuple[Limit, ...],
        blocks: Callable[[], Block] | None,
    ) -> Reading:
        """Measure under a unique name; an invalid measurement is repeated once, after a pause."""
        unique_name = self._unique_name(name)

        def measure_together() -> Reading:
            reading, together = measure(unique_name), self._plan.together
            return join(together.gather(reading)) if together.size > 1 else reading  # the same on each rank

        reading = measure_together()
        if first := self._faults(reading):
            self._device.cool_down(self._cooldown)
            reading = measure_together()
            note = f"measured twice: the first time did not count ({'; '.join(first)})"
            reading = replace(reading, notes=(*reading.notes, note))
        reading = replace(reading, name=unique_name, notes=(*reading.notes, *self._remarks(reading)))
        self.kept.append((reading, limits))
        if self._run_blocks is not None:
            seconds = _LONG_BLOCK if self._device.is_accelerator else _SHORT_BLOCK
            self._run_blocks(reading, None if reading.modelled or blocks is None else blocks(), seconds)
        return reading

    def _unique_name(self, name: str) -> str:
        used = {reading.name for reading in self.readings}
        number, unique = 1, name
        while unique in used:
            number += 1
            unique = f"{name} {number}"
        return unique


def _check_callable(value: object, name: str) -> None:
    if not callable(value):
        raise UnusableStep(f"{name} must be callable, got {type(value).__name__}; pass the function itself")


def _check_samples(value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise UnusableStep(f"samples_per_step must be a whole number of at least 1, got {value!r}")
