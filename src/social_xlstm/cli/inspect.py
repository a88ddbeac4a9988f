"""`social-xlstm inspect`: validate a set and show what a training would find in it."""

import argparse
import json
from typing import Any

import numpy as np

from social_xlstm.data import shards
from social_xlstm.data.positions import nearest_metres, neighbour_counts, project
from social_xlstm.data.traffic_set import TrafficSet
from social_xlstm.errors import InputError


def run(arguments: argparse.Namespace) -> int:
    """Read the set, which validates it, and print its description."""
    if not arguments.radius >= 0:
        raise InputError(f"--radius {arguments.radius} is not a distance; give metres from 0 up")
    traffic = shards.read(arguments.path, partial_positions=True)
    found = describe(traffic, arguments.radius)
    print(json.dumps(found, indent=2) if arguments.json else _text(arguments.path, found))
    return 0


def describe(traffic: TrafficSet, radius: float) -> dict[str, Any]:
    """Collect shape, time, values and neighbourhood of a set."""
    steps, detectors, _ = traffic.features.shape
    times = traffic.timestamps
    return {
        "steps": steps,
        "detectors": detectors,
        "first": str(times[0]) if steps else None,
        "last": str(times[-1]) if steps else None,
        "step_seconds": traffic.frequency_seconds,
        "source": traffic.source,
        "features": {
            name: _values(traffic.features[:, :, index], traffic.units.get(name))
            for index, name in enumerate(traffic.feature_names)
        },
        "positions": _neighbourhood(traffic, radius),
    }


def _values(values: np.ndarray, unit: str | None) -> dict[str, Any]:
    """Summarize one feature; what was never measured has no mean."""
    seen = values[~np.isnan(values)]
    return {
        "unit": unit,
        "missing_share": 1 - seen.size / values.size if values.size else None,
        "min": float(seen.min()) if seen.size else None,
        "mean": float(seen.mean(dtype=np.float64)) if seen.size else None,
        "max": float(seen.max()) if seen.size else None,
    }


def _neighbourhood(traffic: TrafficSet, radius: float) -> dict[str, Any] | None:
    """Count neighbours within the radius, as social pooling would see them."""
    if traffic.positions is None:
        return None
    missing = int(np.isnan(traffic.positions).any(axis=1).sum())
    if missing:
        return {"missing": missing}
    metres = project(traffic.positions, traffic.vdids)
    counts, nearest = neighbour_counts(metres, radius), nearest_metres(metres)
    return {
        "missing": 0,
        "radius_m": radius,
        "mean_neighbours": float(counts.mean()),
        "isolated": int((counts == 0).sum()),
        "median_nearest_m": float(np.median(nearest)) if len(metres) > 1 else None,
    }


def _text(path: str, found: dict[str, Any]) -> str:
    """Lay the description out for reading."""
    every = f" every {found['step_seconds']} s" if found["step_seconds"] else ""
    lines = [
        f"{path}: valid",
        f"  time       {found['first']} to {found['last']}{every}, {found['steps']:,} steps",
        f"  detectors  {found['detectors']:,}",
    ]
    for name, values in found["features"].items():
        unit = f" {values['unit']}" if values["unit"] else ""
        if values["mean"] is None:
            lines.append(f"  {name:<10} never measured")
            continue
        lines.append(
            f"  {name:<10} {values['min']:.1f} to {values['max']:.1f}{unit}, mean {values['mean']:.1f}, "
            f"{values['missing_share']:.1%} missing"
        )
    lines.append(f"  positions  {_positions_text(found['positions'])}")
    if found["source"]:
        lines.append(f"  source     {found['source']}")
    return "\n".join(lines)


def _positions_text(positions: dict[str, Any] | None) -> str:
    if positions is None:
        return "none: train with --set social_pooling.enabled=false"
    if positions["missing"]:
        return f"missing for {positions['missing']} detectors: pooling needs them all"
    nearest = positions["median_nearest_m"]
    near = "" if nearest is None else f", median nearest {nearest:,.0f} m"
    return (
        f"{positions['mean_neighbours']:.1f} neighbours within {positions['radius_m']:,.0f} m on average, "
        f"{positions['isolated']} isolated{near}"
    )
