"""Measure a model beside copying the last value, and write the result as JSON, table and plot."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from social_xlstm.cli import run_folder as folders
from social_xlstm.cli.results import table, write_json
from social_xlstm.cli.run_folder import RunFolder
from social_xlstm.train.assemble import Assembly, CopyLast
from social_xlstm.train.evaluate import evaluate, forecast
from social_xlstm.train.metrics import Metrics

_PLOTTED_DAYS = 2
_PLOTTED_WINDOWS_AT_MOST = 1500


@dataclass(frozen=True)
class Measured:
    """Errors on one part: the model's, and those of copying the last value."""

    part: str
    model: Metrics
    copy_last: Metrics

    def nested(self) -> dict[str, Any]:
        """Return both as plain data for JSON."""
        return {"part": self.part, "model": self.model.nested(), "copy_last": self.copy_last.nested()}


def measure(assembly: Assembly, part: str) -> Measured:
    """Evaluate on a part; every process takes its share."""
    loader, evaluation = assembly.evaluation_loader(part), assembly.evaluation
    yardstick = CopyLast(assembly.config.data.prediction_length).to(assembly.device)
    model = assembly.model.to(assembly.device)
    return Measured(part, evaluate(model, loader, evaluation), evaluate(yardstick, loader, evaluation))


def write_report(
    assembly: Assembly, measured: Measured, found: dict[str, Any], folder: RunFolder, *, plot: bool
) -> None:
    """Write results.json and forecast.png into the run's folder and print the table."""
    write_json(folder.path / folders.RESULTS, {**measured.nested(), **found})
    print(table(measured.model, measured.copy_last, assembly.prepared.units, minutes_per_step(assembly)))
    written = [folders.RESULTS]
    if plot:
        draw(assembly, measured, folder.path / folders.PLOT)
        written.append(folders.PLOT)
    print(f"wrote {', '.join(str(folder.path / name) for name in written)}")


def minutes_per_step(assembly: Assembly) -> float | None:
    """Return the minutes between two steps, where the data has a rhythm."""
    seconds = assembly.prepared.train.step_seconds
    return None if seconds is None else seconds / 60


def draw(assembly: Assembly, measured: Measured, path: Path) -> None:
    """Forecast the liveliest two days of the part and draw them."""
    from social_xlstm.cli import plot  # matplotlib takes a second to import

    windows = getattr(assembly.prepared, measured.part)
    first, last = plot.liveliest_stretch(windows, _PLOTTED_DAYS, _PLOTTED_WINDOWS_AT_MOST)
    size = assembly.config.data.loader.batch_size
    batches = (
        windows.__getitems__(range(start, min(start + size, last))) for start in range(first, last, size)
    )
    collected = forecast(assembly.model, batches, assembly.evaluation)
    figure = plot.draw_forecast(
        collected,
        times=[windows.target_times(index) for index in range(first, last)],
        vdids=assembly.prepared.vdids,
        feature=assembly.prepared.feature_names[0],
        unit=assembly.prepared.units.get(assembly.prepared.feature_names[0], ""),
        positions_xy=assembly.prepared.positions_xy,
        model=measured.model,
        copy_last=measured.copy_last,
        minutes_per_step=minutes_per_step(assembly),
    )
    plot.save(figure, path)
