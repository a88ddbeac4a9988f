"""A contract: one optimization on and off, its thresholds from the table, and how it is sabotaged."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import pytest
import torch

from perfsuite import METRICS, Perf, Reading, Unit, show
from tests.perf.figures import CardFigures, FigureLimits, step_seconds
from tests.perf.sizes import SIZES
from tests.perf.subject import Size
from tests.perf.table import Row

T = TypeVar("T")
Step = Callable[[], Any]
CARDS = ("cuda", "emulated")  # devices that are filled
Test = TypeVar("Test", bound=Callable[..., None])

# A stored speed-up is a ratio of turns and hardly moves from day to day: 10 %, or its noise where that is
# more, leave room for other work on the processor. A process's memory moves with what was loaded before.
ON = {
    "cpu": pytest.mark.perf(
        device="cpu", min_time="300 ms", max_time="3 s", tolerance="10 %", memory_tolerance="25 %"
    ),
    "gpu": pytest.mark.gpu,
    "model": pytest.mark.gpu,  # only modelled: what it claims needs a scripted loader
}
_TURNS = 3  # of loops: a neighbour's burst of work reaches one of them


def contract(number: str, *where: str) -> Callable[[Test], Test]:
    """Mark a test as the contract of an optimization, on the CPU, on a GPU (real or modelled), or both."""

    def marked(test: Test) -> Test:
        for mark in (
            pytest.mark.contract(number),
            pytest.mark.perf,
            pytest.mark.parametrize("case", [pytest.param(w, marks=ON[w]) for w in where], indirect=True),
        ):
            test = mark(test)
        return test

    return marked


_NOT_COMPARABLE = "results not comparable here"


@dataclass
class Case:
    """One run of a contract on one device."""

    number: str
    perf: Perf
    limits: Row
    sabotage: str = ""  # "whole" or "half": how much of the optimization is lost
    card_limits: FigureLimits | None = None  # None where there is no card to fill
    figures: list[str] = field(default_factory=list)

    @property
    def device(self) -> str:
        """The device in torch's spelling."""
        return self.perf.device

    @property
    def kind(self) -> str:
        """Which row of the table applies: cpu, cuda, model."""
        return self.perf.device_name.partition(":")[0]

    def size(self, name: str) -> Size:
        """Return how large a training is on this device."""
        return SIZES[name].on(self.kind)

    def optimized(self, on: T, off: T) -> T:
        """Return the setting of an optimization that is there or not; off where the contract is sabotaged."""
        return off if self.sabotage else on

    def if_sabotaged(self, make: Callable[[], T]) -> T | None:
        """Make what only a sabotaged contract needs."""
        return make() if self.sabotage else None

    def measured(
        self,
        step: Step,
        *,
        lost: Step | None = None,
        samples: int = 1,
        name: str = "",
        limits: Mapping[str, Any] | None = None,
    ) -> Reading:
        """Measure a step, or what a sabotage makes of it; `lost` is the step without the optimization."""
        if self.sabotage == "whole":
            step = lost or step
        elif self.sabotage == "half":
            step = both(lost or step, step)
        return self.perf(step, samples_per_step=samples * self._times, name=name, **(limits or {}))

    @property
    def _times(self) -> int:
        """How often a step does its work: sabotaged by half, once in each way."""
        return 2 if self.sabotage == "half" else 1

    def step(self, step: Step, *, lost: Step | None = None, samples: int = 1, name: str = "") -> Reading:
        """Measure a step and hold the row's limits and the card's figures against it."""
        limits = self.limits.plugin_limits()
        reading = self.measured(step, lost=lost, samples=samples, name=name, limits=limits)
        self._tell(reading, self._counted_limits())
        self.require(self._card_misses(reading))
        return reading

    def loop(self, loader: Any, step: Callable[[Any], Any], *, name: str = "", **options: Any) -> Reading:
        """Measure a loop with its loader and hold the row's limits against it."""
        reading = self.perf.loop(loader, step, name=name, **options, **self.limits.plugin_limits())
        self._tell(reading, ["data_wait", *self._counted_limits()])
        return reading

    def compare(
        self,
        *,
        without: Step,
        with_: Step,
        lost: Step | None = None,
        half: Step | None = None,
        samples: int = 1,
        result: Callable[[Any], Any] | None = None,
        name: str = "",
    ) -> Reading:
        """Measure both variants in turns; hold the row's limits and ratios, and the card's figures.

        Sabotaged, `with_` becomes `lost` (`without`, unless that is something else). By half, every step does
        its work twice, once optimized and once lost (or what `half` does), against twice `without`.
        """
        lost = lost or without
        if self.sabotage == "whole":
            with_ = lost
        elif self.sabotage == "half":
            without, with_, result = both(without, without), half or both(lost, with_), None
        limits = self.limits.plugin_limits()
        # An emulated card's host is real, and may be busy: there the ratio is that of predicted steps.
        least = limits.pop("min_speedup", None) if self.kind == "emulated" else None
        reading = self.perf.compare(
            without=without,
            with_=with_,
            samples_per_step=samples * self._times,
            result=result,
            name=name,
            **limits,
        )
        assert reading.without is not None
        missed = "" if least is None else self._predicted_miss(reading.without, reading, least)
        return self.ratios(reading.without, reading, missed)

    def _predicted_miss(self, before: Reading, after: Reading, least: float) -> str:
        slow, fast = (step_seconds(one) for one in (before, after))
        if not slow or not fast:
            return f"no step was predicted, but the table expects {least:g}×"
        self.tell(f"predicted {slow / fast:.2f}×")
        below = f"the predicted {slow / fast:.2f}× is below the {least:g}× expected by the table"
        return below if slow / fast < least else ""

    def _card_misses(self, reading: Reading) -> list[str]:
        """Say which of the card's figures the optimized variant misses."""
        if self.kind not in CARDS:
            return []
        found = CardFigures.from_reading(reading)
        self.tell(found.text(is_predicted=reading.modelled))
        return [] if self.card_limits is None else self.card_limits.misses(found)

    def ratios(self, before: Reading, after: Reading, *missed: str) -> Reading:
        """Hold the row's ratios against two readings, without the optimization and with it."""
        reading = replace(after, without=before)
        less, more, most = (self.limits.get(key, {}) for key in ("less", "more", "most"))
        asked = {**less, **more, **most}
        self._tell(reading, [*asked, *(name for name in self._changed(reading) if name not in asked)])
        misses = [self._miss(reading, metric, least, "less") for metric, least in less.items()]
        misses += [self._miss(reading, metric, least, "more") for metric, least in more.items()]
        misses += [self._too_many(reading, metric, bound) for metric, bound in most.items()]
        self.require([*missed, *misses, *self._card_misses(reading)])
        return reading

    def loops(self, *, without: Any, with_: Any, step: Callable[[Any], Any], **options: Any) -> Reading:
        """Measure a loop with each loader in turns; hold the limits always, the ratios in the middle turn."""
        asked = self.limits.plugin_limits()
        turns = [
            (
                self.perf.loop(without, step, name=f"without, turn {turn}", **options),
                self.perf.loop(with_, step, name=f"with, turn {turn}", **options, **asked),
            )
            for turn in range(1, _TURNS + 1)
        ]
        return self.ratios(*sorted(turns, key=_waited_less)[_TURNS // 2])

    def _too_many(self, reading: Reading, metric: str, bound: float) -> str:
        found = figure(reading, metric)
        if found is None:
            return f"{metric} was not measured, but the table expects at most {bound:g}"
        over = f"{metric} {shown_figure(metric, found)} is above the {bound:g} expected by the table"
        return over if found > bound else ""

    def _counted_limits(self) -> list[str]:
        return [n for n in METRICS if METRICS[n].limit_name in self.limits and METRICS[n].is_count]

    def _changed(self, reading: Reading) -> list[str]:
        """Return the counts with a limit in which the arms differ: what the optimization is for."""
        assert reading.without is not None
        before = reading.without
        return [name for name in self._counted_limits() if figure(before, name) != figure(reading, name)]

    def _miss(self, reading: Reading, metric: str, least: float, way: str) -> str:
        """Say by how much a ratio between the arms misses the table's, "" where it holds."""
        assert reading.without is not None
        before, after = (figure(r, metric) for r in (reading.without, reading))
        if before is None or after is None:
            return f"{metric} was not measured, but the table expects {least:g} times {way}"
        top, bottom = (before, after) if way == "less" else (after, before)
        if top >= least * bottom and top > 0:
            return ""
        ratio = f"{top / bottom:.3g}" if bottom else "no"
        shown = f"{shown_figure(metric, before)} → {shown_figure(metric, after)}"
        return f"{metric} {shown} is {ratio} times {way}, below the {least:g} times expected by the table"

    def _tell(self, reading: Reading, metrics: Iterable[str]) -> None:
        """Keep the figures for the closing table."""
        if reading.speedup is not None:
            self.figures.append(f"{reading.speedup:.2f}×")
        for metric in metrics:
            now = shown_figure(metric, figure(reading, metric))
            before = reading.without and f"{shown_figure(metric, figure(reading.without, metric))} → "
            self.figures.append(f"{_label(metric)} {before or ''}{now}")

    def tell(self, text: str) -> None:
        """Add a figure of the contract's own to the closing table."""
        self.figures.append(text)

    def require(self, misses: Iterable[str]) -> None:
        """Fail with all that was missed at once."""
        found = [miss for miss in misses if miss]
        if found:
            raise Broken("\n".join(found))

    @property
    def has_values(self) -> bool:
        """Tell whether results can be compared here; where not, the closing table says so."""
        if not self.perf.has_values and _NOT_COMPARABLE not in self.figures:
            self.tell(_NOT_COMPARABLE)
        return self.perf.has_values

    def agree(self, what: str, expected: Any, actual: Any, tolerance: float = 1e-4) -> None:
        """Require two tensors to be the same within a share of the first one's largest value."""
        if not self.has_values:
            return
        expected, actual = (torch.as_tensor(value).detach().double().cpu() for value in (expected, actual))
        size = float(expected.abs().max()) or 1.0
        off = (
            float((expected - actual).abs().max()) / size if expected.shape == actual.shape else float("inf")
        )
        if not off <= tolerance:
            raise Broken(f"{what} differs by {off:.2g} of its size, at most {tolerance:g} is allowed")


def _waited_less(turn: tuple[Reading, Reading]) -> float:
    """Return how many times less the second loop waited for its data than the first."""
    before, after = (figure(reading, "data_wait") or 0.0 for reading in turn)
    return before / after if after else float("inf")


def both(first: Step, second: Step) -> Step:
    """Return a step that does both, and returns the second one's result."""

    def step() -> Any:
        first()
        return second()

    return step


class Broken(AssertionError):
    """A contract does not hold."""


def figure(reading: Reading, metric: str) -> float | None:
    """Return a figure by its metric's name, or one derived from two of them."""
    if metric == "busy":
        return CardFigures.from_reading(reading).busy
    if metric == "h2d_copies":  # a profile that shows kernels and no copy has seen that there is none
        return reading.clues.get("copies_per_step", None if reading.kernel_busy is None else 0.0)
    if metric == "flops_per_kernel":
        flops, kernels = (reading.counts.get(name) for name in ("flops", "kernels"))
        return flops / kernels if flops is not None and kernels else None
    found = reading.value(METRICS[metric])
    return reading.reported.get(f"{metric}_per_step") if found is None else found


def shown_figure(metric: str, value: float | None) -> str:
    """Return a figure as a person reads it."""
    if metric in METRICS:
        return show(value, METRICS[metric].unit)
    if metric == "busy":
        return show(value, Unit.FRACTION)
    return show(None if value is None else float(round(value)), Unit.COUNT)


def _label(metric: str) -> str:
    return METRICS[metric].label.removesuffix(" per step") if metric in METRICS else metric.replace("_", " ")
