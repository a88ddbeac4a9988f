"""What a file holds, in a record and in a few lines of text."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from social_xlstm.data import shards
from social_xlstm.data.positions import nearest_metres, neighbour_counts, project
from social_xlstm.data.sets import TrafficSet, format_frequency, format_timestamps

NEIGHBOUR_METRES = 2000.0


@dataclass(frozen=True)
class FeatureSummary:
    """One feature: its unit, its range, and how much of it is missing."""

    name: str
    unit: str
    lowest: float | None
    mean: float | None
    highest: float | None
    missing_share: float


@dataclass(frozen=True)
class Neighbourhood:
    """How close the detectors that have a position stand."""

    mean_within_2_km: float
    isolated: int
    median_nearest_metres: float | None


@dataclass(frozen=True)
class Summary:
    """A set at a glance."""

    path: str
    steps: int
    detectors: int
    first_time: str
    last_time: str
    frequency: str | None
    breaks_in_time: int
    features: tuple[FeatureSummary, ...]
    without_position: tuple[str, ...]
    neighbourhood: Neighbourhood | None
    directions: tuple[str, ...]
    source: str

    def render(self) -> str:
        """Write the summary as lines for a terminal."""
        breaks = f", {self.breaks_in_time} breaks" if self.breaks_in_time else ", no breaks"
        shape = f"{self.steps:,} steps × {self.detectors:,} detectors × {len(self.features)} features"
        lines = [
            f"{self.path}: {shape}",
            f"  time       {self.first_time} to {self.last_time}, every {self.frequency or '?'}{breaks}",
            *(_feature_line(feature) for feature in self.features),
            f"  positions  {self._positions()}",
        ]
        if self.directions:
            lines.append(f"  directions {', '.join(self.directions)}")
        if self.source:
            lines.append(f"  source     {self.source}")
        return "\n".join(lines)

    def _positions(self) -> str:
        """Describe which detectors have a position and how near the next one is."""
        if len(self.without_position) == self.detectors:
            return "none: social pooling needs them, convert with --locations"
        text = "all detectors have one"
        if self.without_position:
            some = ", ".join(self.without_position[:3])
            text = f"{len(self.without_position)} detectors have none ({some}, …): social pooling needs them"
        if self.neighbourhood is not None:
            near = self.neighbourhood
            text += (
                f"; {near.mean_within_2_km:.1f} neighbours within 2 km on average, {near.isolated} isolated"
            )
            if near.median_nearest_metres is not None:
                text += f", median nearest {near.median_nearest_metres:.0f} m"
        return text


def _feature_line(feature: FeatureSummary) -> str:
    unit = f" {feature.unit}" if feature.unit else ""
    values = "no value at all"
    if feature.mean is not None:
        values = f"{feature.lowest:.1f} to {feature.highest:.1f}{unit}, mean {feature.mean:.1f}"
    return f"  feature    {feature.name}: {values}, missing {feature.missing_share:.2%}"


def summarize_file(path: str | Path) -> Summary:
    """Read a file or a folder of shards and summarize it."""
    return summarize(shards.read(path, partial_positions=True), str(path))


def summarize(traffic: TrafficSet, path: str = "set") -> Summary:
    """Summarize a set."""
    first, last = format_timestamps(traffic.timestamps[[0, -1]])
    seconds = traffic.frequency_seconds
    breaks = 0
    if seconds is not None:
        breaks = int((np.diff(traffic.timestamps).astype(np.int64) != seconds).sum())
    placed = np.zeros(len(traffic.vdids), dtype=bool)
    if traffic.positions is not None:
        placed = ~np.isnan(traffic.positions).any(axis=1)
    return Summary(
        path=path,
        steps=len(traffic.timestamps),
        detectors=len(traffic.vdids),
        first_time=first,
        last_time=last,
        frequency=None if seconds is None else format_frequency(seconds),
        breaks_in_time=breaks,
        features=tuple(_feature(traffic, index) for index in range(len(traffic.feature_names))),
        without_position=tuple(
            vdid for vdid, has_one in zip(traffic.vdids, placed, strict=True) if not has_one
        ),
        neighbourhood=_neighbourhood(traffic, placed) if placed.any() else None,
        directions=tuple(sorted({direction for direction in traffic.directions or () if direction})),
        source=traffic.source,
    )


def _feature(traffic: TrafficSet, index: int) -> FeatureSummary:
    """Summarize one feature; a feature without any value has no range."""
    name = traffic.feature_names[index]
    values = traffic.features[:, :, index]
    seen = values[~np.isnan(values)]
    return FeatureSummary(
        name=name,
        unit=traffic.units.get(name, ""),
        lowest=float(seen.min()) if len(seen) else None,
        mean=float(seen.mean(dtype=np.float64)) if len(seen) else None,
        highest=float(seen.max()) if len(seen) else None,
        missing_share=1 - len(seen) / values.size,
    )


def _neighbourhood(traffic: TrafficSet, placed: np.ndarray) -> Neighbourhood:
    """Count neighbours among the detectors that have a position."""
    known = tuple(vdid for vdid, has_one in zip(traffic.vdids, placed, strict=True) if has_one)
    metres = project(traffic.positions[placed], known)
    counts = neighbour_counts(metres, NEIGHBOUR_METRES)
    nearest = float(np.median(nearest_metres(metres)))
    return Neighbourhood(
        mean_within_2_km=float(counts.mean()),
        isolated=int((counts == 0).sum()),
        median_nearest_metres=nearest if np.isfinite(nearest) else None,
    )
