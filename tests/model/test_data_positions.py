"""Degrees to metres: right to 0.2 % where detectors really stand, and refused where a position is not one."""

from pathlib import Path

import numpy as np
import pytest

from social_xlstm.data.convert import read_locations
from social_xlstm.data.positions import haversine_metres, nearest_metres, neighbour_counts, project
from social_xlstm.errors import InputError

LOCATIONS = Path(__file__).parents[3] / "shared" / "data" / "sensor_locations"
needs_locations = pytest.mark.skipif(not LOCATIONS.is_dir(), reason=f"no real positions in {LOCATIONS.name}")


def _real(name: str) -> tuple[np.ndarray, tuple[str, ...]]:
    locations = read_locations(LOCATIONS / f"{name}.csv")
    vdids = tuple(locations.positions)
    return locations.positions_of(vdids), vdids


@needs_locations
@pytest.mark.parametrize("name", ["metr_la", "pems_bay", "pems_bay_metadata", "pemsd7m"])
def test_distances_are_those_of_the_sphere(name: str) -> None:
    """Every distance between two real detectors is within 0.2 % of the great circle's."""
    positions, vdids = _real(name)
    metres = project(positions, vdids)
    plane = np.linalg.norm(metres[:, None] - metres[None], axis=-1)
    sphere = haversine_metres(positions[:, None], positions[None])
    apart = sphere > 0
    assert np.abs(plane[apart] / sphere[apart] - 1).max() < 0.002


@needs_locations
@pytest.mark.parametrize(
    ("name", "mean", "isolated"), [("metr_la", 10.0, 2), ("pems_bay", 14.3, 0), ("pemsd7m", 5.0, 8)]
)
def test_neighbours_of_the_real_sets(name: str, mean: float, isolated: int) -> None:
    """The number of neighbours within 2 km is the known one."""
    counts = neighbour_counts(project(*_real(name)), 2000.0)
    assert (mean, isolated) == (round(counts.mean(), 1), int((counts == 0).sum()))


def test_the_centroid_is_the_origin_and_axes_point_east_and_north() -> None:
    """Metres are counted from the middle; x grows eastward, y northward."""
    metres = project(np.array([[10.0, 20.0], [10.0, 20.002], [10.002, 20.001]]), ("a", "b", "c"))
    np.testing.assert_allclose(0.0, metres.mean(axis=0), atol=1e-6)
    assert metres[1, 0] > metres[0, 0]
    assert metres[2, 1] > metres[0, 1]
    assert np.float64 == metres.dtype


def test_neighbours_across_the_180th_meridian_are_near() -> None:
    """Two detectors on either side of the date line are not a world apart."""
    metres = project(np.array([[0.0, 179.999], [0.0, -179.999]]), ("a", "b"))
    np.testing.assert_allclose(222.4, np.linalg.norm(metres[0] - metres[1]), rtol=0.002)


@pytest.mark.parametrize("bad", [(np.nan, np.nan), (np.nan, 1.0), (91.0, 0.0), (0.0, 180.1), (np.inf, 0.0)])
def test_a_position_that_is_none_is_refused_by_name(bad: tuple[float, float]) -> None:
    """Missing, NaN and impossible positions name the detector."""
    with pytest.raises(InputError, match="second"):
        project(np.array([[0.0, 0.0], bad]), ("first", "second"))


def test_positions_of_another_shape_are_refused() -> None:
    """There is one latitude and one longitude for each detector."""
    with pytest.raises(InputError, match=r"expected \[2, 2\]"):
        project(np.zeros((2, 3)), ("a", "b"))


def test_neighbours_are_counted_without_oneself_and_with_the_radius() -> None:
    """A detector is not its own neighbour, one at exactly the radius is, and one alone has none."""
    metres = np.array([[0.0, 0.0], [2000.0, 0.0], [0.0, 0.0], [9000.0, 0.0]])
    assert [2, 2, 2, 0] == neighbour_counts(metres, 2000.0).tolist()
    assert [0.0, 2000.0, 0.0, 7000.0] == nearest_metres(metres).tolist()
    assert [np.inf] == nearest_metres(metres[:1]).tolist()
