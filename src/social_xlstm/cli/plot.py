"""One picture of a forecast: three detectors over time, the error by horizon, and the error on the map."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib.dates as mdates
import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from social_xlstm.data.windows import Windows
from social_xlstm.train.evaluate import Forecast
from social_xlstm.train.metrics import Metrics

_OBSERVED, _FORECAST, _COPY = "#3b3b3b", "#d1495b", "#8d99ae"
_SECONDS_PER_DAY = 86_400


def liveliest_stretch(windows: Windows, days: int, at_most: int) -> tuple[int, int]:
    """Find the days in which the first feature changes most; a quiet night would show nothing."""
    per_day = max(1, _SECONDS_PER_DAY // ((windows.step_seconds or 300) * windows.stride))
    length = min(len(windows), days * per_day, at_most)
    starts = range(0, len(windows) - length + 1, per_day)

    def liveliness(start: int) -> float:
        sample = np.linspace(start, start + length - 1, min(length, 48)).astype(np.int64)
        values = windows.gather(sample).features[:, -1, :, 0]
        return float(values.std(dim=0, correction=0).mean())

    first = max(starts, key=liveliness)
    return first, first + length


def draw_forecast(
    forecast: Forecast,
    *,
    times: Sequence[np.ndarray],
    vdids: Sequence[str],
    feature: str,
    unit: str,
    positions_xy: torch.Tensor | None,
    model: Metrics,
    copy_last: Metrics,
    minutes_per_step: float | None,
) -> Figure:
    """Draw the figure for the data's first feature; the curves are the forecasts of the farthest step."""
    figure = Figure(figsize=(12, 9.5), layout="constrained")
    FigureCanvasAgg(figure)  # no window, no display
    rows = figure.add_gridspec(4, 2, height_ratios=(1, 1, 1, 1.35))
    steps = forecast.predicted.shape[1]
    ahead = f"{steps} steps" if minutes_per_step is None else f"{steps * minutes_per_step:g} minutes"
    figure.suptitle(f"{feature}: observed, and forecast {ahead} ahead", fontsize=14, fontweight="bold")
    errors = detector_errors(forecast)
    stamps = np.array([window[-1] for window in times])
    top: Axes | None = None
    for row, (index, why) in enumerate(choose_detectors(forecast, errors)):
        axes = figure.add_subplot(rows[row, :], sharex=top)
        top = top or axes
        _draw_series(axes, stamps, forecast, index)
        axes.set_title(
            f"detector {vdids[index]} · {why} · MAE {errors[index]:.2f} {unit}", fontsize=10, loc="left"
        )
        axes.set_ylabel(unit or feature)
        axes.label_outer()
        if row == 0:
            axes.legend(loc="lower right", ncols=2, frameon=False, fontsize=9, bbox_to_anchor=(1, 1))
    _draw_horizons(figure.add_subplot(rows[3, 0]), model, copy_last, unit, minutes_per_step)
    last = figure.add_subplot(rows[3, 1])
    if positions_xy is None:
        _draw_distribution(last, errors, unit)
    else:
        _draw_map(figure, last, positions_xy.numpy(), errors, unit)
    return figure


def save(figure: Figure, path: Path) -> None:
    """Write the figure as PNG."""
    figure.savefig(path, dpi=120)


def detector_errors(forecast: Forecast) -> np.ndarray:
    """Return each detector's mean absolute error of the first feature; NaN where nothing was observed."""
    mask = forecast.observed[..., 0]
    error = np.where(mask, np.abs(forecast.predicted - forecast.actual)[..., 0], 0.0)
    counts = mask.sum(axis=(0, 1))
    return np.where(counts > 0, error.sum(axis=(0, 1)) / np.maximum(counts, 1), np.nan)


def choose_detectors(forecast: Forecast, errors: np.ndarray) -> list[tuple[int, str]]:
    """Choose a typical, a changeable and the hardest detector, each once."""
    actual = np.where(forecast.observed[:, -1, :, 0], forecast.actual[:, -1, :, 0], np.nan)
    known = np.flatnonzero(np.isfinite(errors) & (np.isfinite(actual).sum(axis=0) > 0))
    if not len(known):
        return []
    by_error = known[np.argsort(errors[known], kind="stable")]
    by_change = known[np.argsort(np.nanstd(actual[:, known], axis=0), kind="stable")]
    chosen: dict[int, str] = {int(by_error[len(by_error) // 2]): "typical"}
    for order, why in ((by_error, "hardest"), (by_change, "changeable")):
        index = next((int(i) for i in order[::-1] if int(i) not in chosen), None)
        if index is not None:
            chosen[index] = why
    return list(chosen.items())


def _draw_series(axes: Axes, stamps: np.ndarray, forecast: Forecast, index: int) -> None:
    """Draw one detector's observed and forecast values, broken where time is."""
    observed = np.where(forecast.observed[:, -1, index, 0], forecast.actual[:, -1, index, 0], np.nan)
    predicted = forecast.predicted[:, -1, index, 0].astype(np.float64)
    if len(stamps) > 1:
        gaps = np.flatnonzero(np.diff(stamps) > np.median(np.diff(stamps)))
        observed, predicted = np.insert(observed, gaps + 1, np.nan), np.insert(predicted, gaps + 1, np.nan)
        stamps = np.insert(stamps, gaps + 1, stamps[gaps])
    axes.plot(stamps, observed, color=_OBSERVED, linewidth=1.1, label="observed")
    axes.plot(stamps, predicted, color=_FORECAST, linewidth=1.1, alpha=0.9, label="forecast")
    locator = mdates.AutoDateLocator()
    axes.xaxis.set_major_locator(locator)
    axes.xaxis.set_major_formatter(mdates.ConciseDateFormatter(locator))
    axes.margins(x=0.01)
    _tidy(axes)


def _draw_horizons(
    axes: Axes, model: Metrics, copy_last: Metrics, unit: str, minutes_per_step: float | None
) -> None:
    """Draw the error of every predicted step beside that of copying the last value."""
    for metrics, shift, color, label in (
        (copy_last, -0.2, _COPY, "copying the last value"),
        (model, 0.2, _FORECAST, "model"),
    ):
        heights = [step.mae or 0.0 for step in metrics.features[0].by_step]
        bars = axes.bar(np.arange(len(heights)) + shift, heights, 0.38, color=color, label=label)
        if len(heights) <= 6:
            axes.bar_label(bars, fmt="%.2f", fontsize=8, padding=2)
    labels = [
        f"{step + 1}" if minutes_per_step is None else f"{(step + 1) * minutes_per_step:g}"
        for step in range(len(heights))
    ]
    axes.set_xticks(range(len(heights)), labels)
    axes.set_xlabel("step ahead" if minutes_per_step is None else "minutes ahead")
    axes.set_ylabel(f"MAE{f' [{unit}]' if unit else ''}")
    axes.set_title("error by horizon, whole part", fontsize=10, loc="left")
    axes.margins(y=0.25)
    axes.legend(frameon=False, fontsize=9, loc="upper left", ncols=2)
    _tidy(axes)


def _draw_map(figure: Figure, axes: Axes, metres: np.ndarray, errors: np.ndarray, unit: str) -> None:
    """Draw the detectors where they are, coloured by their error."""
    east, north = metres.T / 1000
    points = axes.scatter(east, north, c=errors, cmap="magma_r", s=26, edgecolors="#00000055", linewidths=0.4)
    axes.set_aspect("equal", adjustable="datalim")
    axes.set_xlabel("km east")
    axes.set_ylabel("km north")
    axes.set_title("error by place, days above", fontsize=10, loc="left")
    figure.colorbar(points, ax=axes, label=f"MAE{f' [{unit}]' if unit else ''}", shrink=0.9)
    _tidy(axes)


def _draw_distribution(axes: Axes, errors: np.ndarray, unit: str) -> None:
    """Without positions, draw how the error is spread over detectors."""
    axes.hist(errors[np.isfinite(errors)], bins=20, color=_FORECAST, alpha=0.8)
    axes.set_xlabel(f"MAE{f' [{unit}]' if unit else ''}")
    axes.set_ylabel("detectors")
    axes.set_title("error by detector, days above", fontsize=10, loc="left")
    _tidy(axes)


def _tidy(axes: Any) -> None:
    axes.grid(alpha=0.25, linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
