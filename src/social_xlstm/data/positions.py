"""Latitude and longitude to metres on a plane; refuses positions that are missing or not on the globe."""

import numpy as np

from social_xlstm.data.sets import check_positions

EARTH_RADIUS_METRES = 6_371_008.8
_BLOCK_ROWS = 512  # bounds the distance matrix held at once


def project(positions: np.ndarray, vdids: tuple[str, ...], where: str = "positions") -> np.ndarray:
    """Project [N,2] degrees to [N,2] metres east and north of the centroid, equirectangularly.

    One scale for all longitudes is right to 0.2 % over a metropolitan area; Mercator would inflate by 1/cos.
    """
    positions = np.asarray(positions, dtype=np.float64)
    check_positions(positions, vdids, where)
    latitudes, longitudes = np.radians(positions).T
    middle = latitudes.mean()
    # The mean direction, not the mean number: detectors may lie on both sides of the 180th meridian.
    centre = np.angle(np.exp(1j * longitudes).mean())
    east = np.angle(np.exp(1j * (longitudes - centre)))
    return EARTH_RADIUS_METRES * np.stack([east * np.cos(middle), latitudes - middle], axis=1)


def haversine_metres(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Return great-circle distances between two broadcastable arrays of degrees [..., 2]."""
    first, second = np.radians(first), np.radians(second)
    north, east = np.moveaxis(second - first, -1, 0)
    chord = np.sin(north / 2) ** 2 + np.cos(first[..., 0]) * np.cos(second[..., 0]) * np.sin(east / 2) ** 2
    return 2 * EARTH_RADIUS_METRES * np.arcsin(np.sqrt(np.clip(chord, 0.0, 1.0)))


def neighbour_counts(metres: np.ndarray, radius: float) -> np.ndarray:
    """Count, for each detector, the others within a radius."""
    counts = np.empty(len(metres), dtype=np.int64)
    for first in range(0, len(metres), _BLOCK_ROWS):
        rows = slice(first, first + _BLOCK_ROWS)
        distances = np.linalg.norm(metres[rows, None] - metres[None], axis=-1)
        counts[rows] = (distances <= radius).sum(axis=1) - 1  # not itself
    return counts


def nearest_metres(metres: np.ndarray) -> np.ndarray:
    """Return, for each detector, the distance to the nearest other one (infinite if it is alone)."""
    nearest = np.full(len(metres), np.inf)
    for first in range(0, len(metres), _BLOCK_ROWS):
        rows = slice(first, first + _BLOCK_ROWS)
        distances = np.linalg.norm(metres[rows, None] - metres[None], axis=-1)
        own = np.arange(len(distances))
        distances[own, first + own] = np.inf
        nearest[rows] = distances.min(axis=1)
    return nearest
