"""Results as files and as a table: a row per epoch, and the errors beside those of copying the last value."""

import csv
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from social_xlstm.train.hooks import Callback
from social_xlstm.train.metrics import Metrics
from social_xlstm.train.state import FitState


class EpochTable(Callback):
    """Keep epochs.csv equal to the training's history, also after a resume."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def on_fit_start(self, state: FitState, batches_per_epoch: int, max_epochs: int) -> None:  # noqa: ARG002
        """Write the rows of the checkpoint; later rows belong to no run any more."""
        write_rows(self._path, state.history)

    def on_epoch_end(self, state: FitState, row: dict[str, Any]) -> None:  # noqa: ARG002 - the hook's signature
        """Write the new row with all before it."""
        write_rows(self._path, state.history)


def write_rows(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    """Write rows as CSV, whole or not at all; «not measured» is an empty cell."""
    columns = list(dict.fromkeys(name for row in rows for name in row))
    beside = path.with_name(f".{path.name}.part")
    with beside.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, columns)
        writer.writeheader()
        writer.writerows(rows)
    os.replace(beside, path)


def write_json(path: Path, content: dict[str, Any]) -> None:
    """Write JSON that any reader accepts: no NaN, no infinity."""
    beside = path.with_name(f".{path.name}.part")
    beside.write_text(json.dumps(content, indent=2, allow_nan=False) + "\n", encoding="utf-8")
    os.replace(beside, path)


def environment() -> dict[str, str]:
    """Return the versions a result belongs to."""
    return {"python": sys.version.split()[0], "torch": torch.__version__}


def table(model: Metrics, copy_last: Metrics, units: dict[str, str], minutes_per_step: float | None) -> str:
    """Lay errors out by predicted step, beside those of copying the last value."""
    lines = []
    for own, other in zip(model.features, copy_last.features, strict=True):
        unit = f" in {units[own.name]}" if units.get(own.name) else ""
        lines.append(f"{own.name}{unit:<24}   MAE    RMSE     MAPE    copying the last value: MAE / RMSE")
        steps = [*zip(own.by_step, other.by_step, strict=True), (own.together, other.together)]
        for index, (mine, theirs) in enumerate(steps, start=1):
            label = "all steps" if index == len(steps) else _ahead(index, minutes_per_step)
            lines.append(
                f"  {label:<22}{_number(mine.mae)}{_number(mine.rmse)}{_percent(mine.mape)}"
                f"    {_number(theirs.mae)} /{_number(theirs.rmse)}"
            )
    return "\n".join(lines)


def _ahead(step: int, minutes_per_step: float | None) -> str:
    return f"step {step}" if minutes_per_step is None else f"{step * minutes_per_step:g} min ahead"


def _number(value: float | None) -> str:
    return f"{'—':>8}" if value is None else f"{value:8.3f}"


def _percent(value: float | None) -> str:
    return f"{'—':>9}" if value is None else f"{value:9.2%}"
