"""The figures of every rank, shown below the table, and their collectives and scaling."""

from collections.abc import Mapping, Sequence

from perfsuite.records import Reading, Result
from perfsuite.units import Unit, show

_COLUMNS: tuple[tuple[str, str, Unit], ...] = (
    ("samples/s", "samples_per_s", Unit.PER_SECOND),
    ("step", "step_seconds", Unit.SECONDS),
    ("own work", "own_seconds", Unit.SECONDS),
    ("in collectives", "collective_seconds", Unit.SECONDS),
    ("not hidden", "collective_exposed_seconds", Unit.SECONDS),
    ("utilization", "utilization", Unit.FRACTION),
    ("peak memory", "peak_memory_bytes", Unit.BYTES),
    ("data wait", "data_wait", Unit.FRACTION),
)


def rank_lines(results: Sequence[Result]) -> list[str]:
    """Return a block of lines for each reading of several ranks."""
    return [
        line
        for result in results
        for reading in result.readings
        if reading.ranks
        for line in _block(result, reading)
    ]


def _block(result: Result, reading: Reading) -> list[str]:
    name = result.short_name
    suffix = f" ({reading.name})" if len(result.readings) > 1 else ""
    lines = [f"{name}{suffix} on {len(reading.ranks)} ranks: {summary(reading)}"]
    columns = [column for column in _COLUMNS if any(column[1] in figures for figures in reading.ranks)]
    cells = [["", *(title for title, _, _ in columns)]]
    cells += [
        [f"rank {rank}", *(show(figures.get(field), unit) for _, field, unit in columns)]
        for rank, figures in enumerate(reading.ranks)
    ]
    widths = [max(len(row[i]) for row in cells) for i in range(len(cells[0]))]
    for row in cells:
        rest = (cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))
        lines.append("  " + "  ".join([row[0].ljust(widths[0]), *rest]))
    return lines


def summary(reading: Reading) -> str:
    """Return the figures that only ranks have, in one line."""
    parts = []
    if reading.scaling_efficiency is not None:
        interval = (
            f"{_percent(reading.scaling_efficiency_low)} to {_percent(reading.scaling_efficiency_high)}"
        )
        parts.append(f"scaling efficiency {_percent(reading.scaling_efficiency)} ({interval})")
    if reading.rank_skew is not None:
        parts.append(f"skew {_percent(reading.rank_skew)}")
    if (seconds := reading.reported.get("collective_seconds")) is not None:
        hidden = reading.reported.get("collective_hidden_share")
        hidden_text = f", {_percent(hidden)} of it hidden" if hidden is not None else ""
        parts.append(f"collectives {show(seconds, Unit.SECONDS)} a step{hidden_text}")
    return "; ".join(parts) or "their collectives were not measured"


def plain(figures: Mapping[str, float]) -> dict[str, str]:
    """Return one rank's figures in human units, by column title."""
    return {title: show(figures[field], unit) for title, field, unit in _COLUMNS if field in figures}


def _percent(share: float | None) -> str:
    return show(share, Unit.FRACTION)
