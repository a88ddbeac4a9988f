"""The object behind the perf fixture: measures what a test hands it and keeps every reading."""

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from perfsuite.collect.limits import parse_limits
from perfsuite.devices.model.measurer import model_loop, model_pair, model_step
from perfsuite.errors import UnusableStep
from perfsuite.measure.blocks import loop_block, pair_block, step_block
from perfsuite.measure.pair import difference, measure_pair
from perfsuite.measure.references import measure_beside
from perfsuite.measure.step import measure_loop, measure_step, quiet_garbage
from perfsuite.plugin.arguments import check_callable, check_loader, check_samples
from perfsuite.plugin.keeping import Keeper
from perfsuite.processes.world import Together
from perfsuite.records import Reading
from perfsuite.units import Unit, parse

if TYPE_CHECKING:
    from perfsuite.measure.recorder import Recorder

_CALL = "the perf call"
_BESIDE_SECONDS = 6.0  # on a shared machine a third of it varies half as much again
_MAX_DIFFERENCE = 1e-4  # relative; float32 steps computed in another order agree to about 1e-6


class Perf(Keeper):
    """Measure steps, loops and pairs of variants on this test's device."""

    def __call__(
        self, step: Callable[[], Any], *, samples_per_step: int = 1, name: str = "", **limits: object
    ) -> Reading:
        """Measure a training step: perf(step, samples_per_step=64)."""
        asked = parse_limits(limits, _CALL)
        check_callable(step, "step")
        check_samples(samples_per_step)

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
        check_callable(step, "step")
        check_loader(loader)
        if samples_per_step is not None and not callable(samples_per_step):
            check_samples(samples_per_step)
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
            check_callable(result, "result")
        check_callable(without, "without")
        check_callable(with_, "with_")
        check_samples(samples_per_step)

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

        `build` makes the step for a world of that size. Weak: every rank has `samples_per_step` of its own;
        strong: all ranks share them, and a rank alone has them all.
        """
        from perfsuite.measure.scaling import measure_scaling

        asked = parse_limits(limits, _CALL)
        check_callable(build, "build")
        check_samples(samples_per_step)

        def measure(free: str) -> Reading:
            return measure_scaling(
                build, self._device, self._plan, samples_per_step=samples_per_step, mode=mode, name=free
            )

        return self._keep(measure, name or "scaling", asked, None)

    def recorder(
        self,
        *,
        samples_per_step: int | Callable[[Any], int] | None = None,
        name: str = "",
        **limits: object,
    ) -> "Recorder":
        """Return what measures a loop that a framework runs; see perfsuite.frameworks."""
        from perfsuite.measure.recorder import Recorder

        asked = parse_limits(limits, _CALL)
        if self.world_size > 1:
            raise UnusableStep(
                "a framework's trainer ends when it likes, and ranks must end together; hand its step to "
                "perf(step) or perf.loop in a multi_gpu test"
            )
        if self._model is not None:
            raise UnusableStep(
                "a framework's trainer moves its data by itself and cannot be modelled; "
                "hand its step to perf(step) or perf.loop, or measure on a real device"
            )

        def keep(reading: Reading) -> None:
            self._keep(lambda _: reading, name or "loop", asked, None)

        return Recorder(self._device, self._plan, keep, samples_per_step)

    def _beside_references(self, reading: Reading, step: Callable[[], Any]) -> Reading:
        """Measure the step once more in turns with reference workloads, where a baseline needs it."""
        offered = getattr(self._device, "references", None)
        if not self._is_beside or offered is None:
            return reading
        seconds = min(_BESIDE_SECONDS, 3 * self._plan.max_seconds)
        with quiet_garbage():
            found = measure_beside(step, offered(), self._device, seconds, self._plan.progress)
        return replace(reading, relative=found)
