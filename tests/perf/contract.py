"""A contract: one optimization on and off, its thresholds from the table, and how it is sabotaged."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import pytest
import torch

from perfsuite import METRICS, Perf, Reading, Unit, show
from tests.perf.table import Row

T = TypeVar("T")
Test = TypeVar("Test", bound=Callable[..., None])

# A stored CPU figure is one day's: it tells a collapse, the thresholds of the table judge the rest.
_ON = {
    "cpu": pytest.mark.perf(
        device="cpu", min_time="300 ms", max_time="3 s", tolerance="100 %", memory_tolerance="100 %"
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
            pytest.mark.parametrize("case", [pytest.param(w, marks=_ON[w]) for w in where], indirect=True),
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
    is_sabotaged: bool
    figures: list[str] = field(default_factory=list)

    @property
    def device(self) -> str:
        """The device in torch's spelling."""
        return self.perf.device

    @property
    def kind(self) -> str:
        """Which row of the table applies: cpu, cuda, model."""
        return self.perf.device_name.partition(":")[0]

    def optimized(self, on: T, off: T) -> T:
        """Return the optimization's setting, or what it is without it where the contract is sabotaged."""
        return off if self.is_sabotaged else on

    def step(self, step: Callable[[], Any], *, samples: int = 1, name: str = "") -> Reading:
        """Measure a step and hold the row's limits against it."""
        reading = self.perf(step, samples_per_step=samples, name=name, **self.limits.plugin_limits())
        self._tell(reading, self._counted_limits())
        return reading

    def loop(self, loader: Any, step: Callable[[Any], Any], *, name: str = "", **options: Any) -> Reading:
        """Measure a loop with its loader and hold the row's limits against it."""
        reading = self.perf.loop(loader, step, name=name, **options, **self.limits.plugin_limits())
        self._tell(reading, ["data_wait", *self._counted_limits()])
        return reading

    def compare(
        self,
        *,
        without: Callable[[], Any],
        with_: Callable[[], Any],
        samples: int = 1,
        result: Callable[[Any], Any] | None = None,
        name: str = "",
    ) -> Reading:
        """Measure both arms in turns; hold the row's limits, and its ratios of one arm to the other."""
        reading = self.perf.compare(
            without=without,
            with_=with_,
            samples_per_step=samples,
            result=result,
            name=name,
            **self.limits.plugin_limits(),
        )
        counted = {**self.limits.get("less", {}), **self.limits.get("most", {})}
        if self.kind == "cuda" and not {"kernels", "syncs"}.isdisjoint(counted):
            reading = self._inspected(reading, without, with_)
        assert reading.without is not None
        return self.ratios(reading.without, reading)

    def ratios(self, before: Reading, after: Reading) -> Reading:
        """Hold the row's ratios against two readings, without the optimization and with it."""
        reading = replace(after, without=before)
        less, more, most = (self.limits.get(key, {}) for key in ("less", "more", "most"))
        asked = {**less, **more, **most}
        self._tell(reading, [*asked, *(name for name in self._changed(reading) if name not in asked)])
        misses = [self._miss(reading, metric, least, "less") for metric, least in less.items()]
        misses += [self._miss(reading, metric, least, "more") for metric, least in more.items()]
        misses += [self._too_many(reading, metric, bound) for metric, bound in most.items()]
        self.require(misses)
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

    def _inspected(self, pair: Reading, without: Callable[[], Any], with_: Callable[[], Any]) -> Reading:
        """Measure each arm alone: a card's kernels and syncs are looked at after a step, not in turns."""
        before, after = self.perf(without, name="without"), self.perf(with_, name="with")
        assert pair.without is not None
        return replace(pair, reported=after.reported, without=replace(pair.without, reported=before.reported))

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


class Broken(AssertionError):
    """A contract does not hold."""


def figure(reading: Reading, metric: str) -> float | None:
    """Return a figure by its metric's name, or one derived from two of them."""
    if metric == "flops_per_kernel":
        flops, kernels = (reading.counts.get(name) for name in ("flops", "kernels"))
        return flops / kernels if flops is not None and kernels else None
    counted = reading.reported.get(f"{metric}_per_step")  # what a real card shows after the window
    return counted if counted is not None else reading.value(METRICS[metric])


def shown_figure(metric: str, value: float | None) -> str:
    """Return a figure as a person reads it."""
    if metric in METRICS:
        return show(value, METRICS[metric].unit)
    return show(None if value is None else float(round(value)), Unit.COUNT)


def _label(metric: str) -> str:
    return METRICS[metric].label.removesuffix(" per step") if metric in METRICS else metric.replace("_", " ")
