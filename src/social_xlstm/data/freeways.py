"""Invented freeways of a valley: where detectors stand, which way their traffic runs, and who is upstream."""

from dataclasses import dataclass

import numpy as np

from social_xlstm.data.positions import EARTH_RADIUS_METRES

_CENTRE = np.array([37.35, -121.93])
# Heading (degrees from north), start east and north of the centre (km), bend (degrees per km).
_ROUTES = (
    (315.0, 10.0, -10.0, 0.6),
    (0.0, -3.0, -12.0, -1.2),
    (80.0, -12.0, 2.0, 0.9),
    (30.0, 2.0, -9.0, -0.8),
    (285.0, 11.0, 6.0, -0.7),
    (350.0, 6.0, -3.0, 1.1),
)
_HALF_MEDIAN_METRES = 19.0  # opposite carriageways: about 39 m apart in the real set
_MEAN_SPACING_KM = 0.6
_COMPASS = ("N", "E", "S", "W")


@dataclass(frozen=True, eq=False)
class Network:
    """N detectors on carriageways; detectors of one carriageway share traffic."""

    positions: np.ndarray  # float64 [N, 2]: latitude, longitude
    carriageway: np.ndarray  # int64 [N]
    kilometre: np.ndarray  # float64 [N], growing with the direction of travel
    directions: tuple[str, ...]
    lanes: tuple[int, ...]
    lengths_km: tuple[float, ...]


def build_network(detectors: int, rng: np.random.Generator) -> Network:
    """Spread detectors over as many freeways as their number fills, both directions of each."""
    routes = _ROUTES[: max(1, min(len(_ROUTES), detectors // 12))]
    share = np.array_split(np.arange(detectors), 2 * len(routes))
    longest = len(share[0])
    # Loops are cut into both carriageways at one place, so opposite detectors stand side by side.
    places = [_MEAN_SPACING_KM * np.arange(1, longest + 1) + rng.uniform(-0.2, 0.2, longest) for _ in routes]
    parts = [
        _carriageway(routes[index // 2], places[index // 2][: len(rows)], reverse=bool(index % 2))
        for index, rows in enumerate(share)
    ]
    kilometre = np.concatenate([part[1] for part in parts])
    return Network(
        positions=np.concatenate([part[0] for part in parts]),
        carriageway=np.repeat(np.arange(len(share)), [len(rows) for rows in share]),
        kilometre=kilometre,
        directions=tuple(direction for part in parts for direction in part[2]),
        lanes=tuple(int(lane) for lane in rng.integers(3, 6, detectors)),
        lengths_km=tuple(float(length) for length in np.round(rng.uniform(0.3, 1.0, detectors), 3)),
    )


def _carriageway(
    route: tuple[float, float, float, float], along: np.ndarray, *, reverse: bool
) -> tuple[np.ndarray, np.ndarray, list[str]]:
    """Place the detectors of one direction of one freeway along its bend."""
    heading, east, north, bend = route
    turned = np.radians(heading + bend * along)
    # The curve's closed form: the integral of a heading that turns evenly.
    rate = np.radians(bend)
    x = east * 1000 + 1000 * (np.cos(np.radians(heading)) - np.cos(turned)) / rate
    y = north * 1000 + 1000 * (np.sin(turned) - np.sin(np.radians(heading))) / rate
    side = -1.0 if reverse else 1.0  # traffic keeps to the right of the median
    x, y = x + side * _HALF_MEDIAN_METRES * np.cos(turned), y - side * _HALF_MEDIAN_METRES * np.sin(turned)
    degrees = np.degrees(np.stack([y, x / np.cos(np.radians(_CENTRE[0]))], axis=1) / EARTH_RADIUS_METRES)
    travel = np.degrees(turned) + (180.0 if reverse else 0.0)
    # One letter for the whole carriageway, as road signs have it.
    middle = travel[len(travel) // 2] if len(travel) else 0.0
    letter = _COMPASS[round(middle / 90.0) % 4]
    return np.round(_CENTRE + degrees, 6), (-along if reverse else along), [letter] * len(along)
