"""The default measurer: steps, loops and pairs timed by the device's clock."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from perfsuite.devices.protocol import Device, Plan
from perfsuite.measure.loop import measure_loop
from perfsuite.measure.pair import measure_pair
from perfsuite.measure.references import add_reference_figures
from perfsuite.measure.step import measure_step
from perfsuite.records import Reading


@dataclass(frozen=True)
class ClockMeasurer:
    """Measure on a device that really runs the steps."""

    device: Device
    plan: Plan

    def step(self, step: Callable[[], Any], *, samples_per_step: int, name: str) -> Reading:
        """Measure a training step."""
        reading = measure_step(step, self.device, self.plan, samples_per_step, name)
        if not self.plan.with_references:
            return reading
        return add_reference_figures(reading, step, self.device, self.plan)

    def loop(
        self,
        loader: Iterable[Any],
        step: Callable[[Any], Any],
        *,
        samples: int | Callable[[Any], int] | None,
        name: str,
        batch_seconds: float | None = None,
    ) -> Reading:
        """Measure a training loop; a stated cost of a batch is ignored, because the wait is measured."""
        del batch_seconds
        return measure_loop(loader, step, self.device, self.plan, samples=samples, name=name)

    def pair(
        self,
        without: Callable[[], Any],
        with_: Callable[[], Any],
        *,
        samples_per_step: int,
        name: str,
    ) -> Reading:
        """Measure two variants in turns."""
        return measure_pair(
            without,
            with_,
            self.device,
            self.plan,
            samples_per_step=samples_per_step,
            name=name,
        )
