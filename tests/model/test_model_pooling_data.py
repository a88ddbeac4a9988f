"""Social pooling on real detectors: who is whose neighbour, and that it helps a forecast."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from social_xlstm.config import PoolingConfig
from social_xlstm.data.positions import project
from social_xlstm.model.neighbours import find_neighbours
from social_xlstm.model.pooling import SocialPooling

DATA = Path(__file__).resolve().parents[3] / "shared" / "data"
SENSORS = DATA / "sensor_locations"

pytestmark = pytest.mark.skipif(not DATA.is_dir(), reason="the shared data folder is not beside the project")


def metres(name: str, columns: tuple[int, int], skip: int) -> Tensor:
    degrees = np.loadtxt(SENSORS / name, delimiter=",", skiprows=skip, usecols=columns)
    return torch.from_numpy(project(degrees, tuple(str(number) for number in range(len(degrees)))))


CITIES = {
    "METR-LA": ("metr_la.csv", (2, 3), 1),
    "PEMS-BAY": ("pems_bay.csv", (1, 2), 0),
    "PeMSD7": ("pemsd7m.csv", (5, 6), 1),
}


@pytest.mark.parametrize(
    ("city", "mean", "isolated"), [("METR-LA", 10.0, 2), ("PEMS-BAY", 14.3, 0), ("PeMSD7", 5.0, 8)]
)
def test_neighbours_within_two_kilometres(city, mean, isolated):
    """The published numbers of neighbours and of isolated detectors are found."""
    counts = find_neighbours(metres(*CITIES[city]), 2000.0).counts()
    assert (mean, isolated) == (round(counts.double().mean().item(), 1), int((counts == 0).sum()))


def test_co_located_detectors_of_a_real_city_are_pooled():
    """PeMSD7 has 17 pairs at one place each; every kernel stays finite on them."""
    positions = metres(*CITIES["PeMSD7"])
    neighbours = find_neighbours(positions, 0.0)
    assert 17 * 2 == len(neighbours.sender)
    states = torch.randn(2, len(positions), 4)
    for kernel in ("uniform", "gaussian", "exponential", "linear", "inverse"):
        assert SocialPooling(PoolingConfig(kernel=kernel), positions)(states).isfinite().all()


def test_the_other_carriageway_is_the_nearest_neighbour():
    """In PEMS-BAY the nearest detector is mostly one of another direction; same_direction leaves it out."""
    directions = tuple(np.loadtxt(SENSORS / "pems_bay_metadata.csv", str, delimiter=",", skiprows=1)[:, 2])
    positions = metres("pems_bay_metadata.csv", (4, 5), 1)
    matrix = SocialPooling(PoolingConfig(), positions).weight_matrix()
    same = torch.tensor([[first == second for second in directions] for first in directions])
    nearest = matrix.argmax(dim=1)
    opposite = (~same[torch.arange(len(same)), nearest]).double().mean().item()
    assert opposite > 0.5
    masked = SocialPooling(PoolingConfig(same_direction=True), positions, directions).weight_matrix()
    assert not masked[~same].any()
    assert (masked[same & (matrix > 0)] > 0).all()


@pytest.fixture(scope="module")
def speeds() -> Tensor:
    """Los-loop in miles per hour, [2016,207]."""
    return torch.from_numpy(np.loadtxt(DATA / "los_loop" / "los_speed.csv", delimiter=",", skiprows=1))


def linear_forecast_rmse(speeds: Tensor, pooling: SocialPooling | None) -> float:
    """Test RMSE of 15-minute forecasts by one linear model for all detectors, trained on the first 80 %."""
    peak, cut = speeds.max(), int(0.8 * len(speeds))
    inputs, targets = [], []
    for part in (speeds[:cut] / peak, speeds[cut:] / peak):
        # Of len − 14 possible windows the published protocol leaves out the last.
        windows = part.unfold(0, 15, 1)[:-1]  # [windows,N,15]
        features = [windows[..., :12], torch.ones_like(windows[..., :1])]
        if pooling is not None:
            features.append(pooling(windows[..., :12]))
        inputs.append(torch.cat(features, dim=-1).flatten(0, 1))
        targets.append(windows[..., 12:].flatten(0, 1))
    # Normal equations: 330,000 rows, but only 13 or 25 columns.
    weights = torch.linalg.solve(inputs[0].T @ inputs[0], inputs[0].T @ targets[0])
    return ((inputs[1] @ weights - targets[1]).square().mean().sqrt() * peak).item()


def test_pooling_real_positions_improves_a_real_forecast(speeds):
    """On Los-loop pooled beats unpooled, and shuffled positions do not do what real ones do."""
    positions = metres(*CITIES["METR-LA"])
    config = PoolingConfig(radius=5000.0)

    def rmse(order: Tensor) -> float:
        return linear_forecast_rmse(speeds, SocialPooling(config, positions[order], dtype=torch.float64))

    unpooled, pooled = linear_forecast_rmse(speeds, None), rmse(torch.arange(207))
    shuffled = [rmse(torch.randperm(207, generator=torch.Generator().manual_seed(seed))) for seed in range(3)]
    assert 5.338 == pytest.approx(unpooled, abs=0.001)
    assert 5.243 == pytest.approx(pooled, abs=0.002)
    assert pooled < min(shuffled) - 0.03
