"""The object behind the gpu_monitor fixture: monitor a GPU in any test, with and without --perf."""

import math
import os
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import NamedTuple

from perfsuite.devices.cuda.identity import open_visible
from perfsuite.devices.cuda.sampler import Clock, Sampler
from perfsuite.devices.cuda.series import Series
from perfsuite.errors import PerfsuiteError


class WatchedMemory(NamedTuple):
    """The card's memory, including other processes; None where it was not reported."""

    peak: float | None = None


class GpuMonitor:
    """Monitor one GPU inside a with block; without a GPU every figure is None and `why` gives the reason."""

    def __init__(self, uuid: str | None = None, *, clock: Clock | None = None) -> None:
        # Monitoring rejects nothing: all memory counts as this run's, and other processes are allowed.
        self._sampler = Sampler(open_visible(uuid, os.environ), own_bytes=math.inf, clock=clock)
        self.utilization = Series(absent="the with block has not ended yet")
        self.memory = WatchedMemory()
        self.reported: Mapping[str, float] = {}
        self.notes: tuple[str, ...] = ()
        self.invalid: tuple[str, ...] = ()

    def __enter__(self) -> "GpuMonitor":
        self._sampler.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        sampled = self._sampler.stop()
        self.utilization = sampled.utilization
        self.reported = sampled.summary.reported
        self.memory = WatchedMemory(self.reported.get("device_used_bytes"))
        self.notes, self.invalid = sampled.summary.notes, sampled.summary.invalid

    @property
    def why(self) -> str:
        """Return why there is no utilization, "" if there is."""
        return self.utilization.why

    def plot(self, path: str | Path) -> Path:
        """Plot utilization over time to a file and return its path."""
        try:
            from matplotlib.figure import Figure
        except ModuleNotFoundError:
            raise PerfsuiteError("gpu_monitor().plot needs matplotlib: pip install matplotlib") from None
        series = self.utilization
        if not series.pieces:
            raise PerfsuiteError(f"there is nothing to plot: {series.why}")
        start = series.pieces[0].start
        edges = [piece.start - start for piece in series.pieces] + [series.pieces[-1].end - start]
        figure = Figure(figsize=(9, 3), layout="constrained")
        axes = figure.subplots()
        axes.stairs([100 * piece.share for piece in series.pieces], edges, fill=True, alpha=0.35)
        if series.mean is not None:
            axes.axhline(100 * series.mean, linestyle="--", color="tab:red")
        axes.set(xlim=(0, edges[-1]), ylim=(0, 105), xlabel="seconds", ylabel="GPU utilization, %")
        axes.set_title(_caption(series), fontsize="medium")
        figure.savefig(path, dpi=120)
        return Path(path)


def _caption(series: Series) -> str:
    if series.mean is None or series.swing is None:
        return series.why
    every = "" if series.period_s is None else f", repeating every {series.period_s:.1f} s"
    return (
        f"mean {100 * series.mean:.1f} % of {series.samples} samples, "
        f"swing {100 * series.swing:.0f} points{every}, longest idle {series.idle_stretch_s:.1f} s"
    )
