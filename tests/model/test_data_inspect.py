"""The summary of a file says what is in it, and what social pooling would miss."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from social_xlstm.data import hdf5, shards
from social_xlstm.data.hdf5 import TrafficSet
from social_xlstm.data.inspect import summarize, summarize_file
from social_xlstm.data.synthetic import SyntheticOptions, generate
from social_xlstm.errors import InputError


@pytest.fixture(scope="module")
def traffic() -> TrafficSet:
    """Make three detectors with known values and places."""
    times = np.datetime64("2020-01-01", "s") + np.array([0, 300, 600, 1200]) * np.timedelta64(1, "s")
    features = np.array([[[10.0], [20.0], [np.nan]]] * 4, dtype=np.float32)
    positions = np.array([[37.0, -121.0], [37.01, -121.0], [38.0, -121.0]])
    return TrafficSet(
        features, times, ("a", "b", "c"), ("speed",), positions, ("N", "S", "N"), units={"speed": "mph"}
    )


def test_a_summary_counts_what_is_there(traffic: TrafficSet) -> None:
    """Shape, time, breaks, ranges, missing shares and neighbours are those of the set."""
    found = summarize(traffic)
    assert (4, 3, 1, "5min") == (found.steps, found.detectors, found.breaks_in_time, found.frequency)
    assert ("2020-01-01 00:00:00", "2020-01-01 00:20:00") == (found.first_time, found.last_time)
    feature = found.features[0]
    assert ("speed", "mph", 10.0, 15.0, 20.0) == (
        feature.name,
        feature.unit,
        feature.lowest,
        feature.mean,
        feature.highest,
    )
    assert round(1 / 3, 9) == round(feature.missing_share, 9)
    assert () == found.without_position
    assert (2 / 3, 1) == (found.neighbourhood.mean_within_2_km, found.neighbourhood.isolated)
    assert ("N", "S") == found.directions


def test_a_summary_is_rendered_in_lines(traffic: TrafficSet) -> None:
    """The lines say it in words a terminal shows."""
    assert [
        "file.h5: 4 steps × 3 detectors × 1 features",
        "  time       2020-01-01 00:00:00 to 2020-01-01 00:20:00, every 5min, 1 breaks",
        "  feature    speed: 10.0 to 20.0 mph, mean 15.0, missing 33.33%",
        "  positions  all detectors have one; 0.7 neighbours within 2 km on average, 1 isolated, "
        "median nearest 1112 m",
        "  directions N, S",
        "  source     a test",
    ] == summarize(replace(traffic, source="a test"), "file.h5").render().splitlines()


def test_missing_positions_are_told(traffic: TrafficSet) -> None:
    """Some or all detectors without a position are named, with what needs them."""
    partial = traffic.positions.copy()
    partial[1] = np.nan
    found = summarize(replace(traffic, positions=partial))
    assert ("b",) == found.without_position
    assert "1 detectors have none (b, …): social pooling needs them" in found.render()
    none = summarize(replace(traffic, positions=None))
    assert ("a", "b", "c") == none.without_position
    assert none.neighbourhood is None
    assert "positions  none: social pooling needs them, convert with --locations" in none.render()


def test_edges_are_summarized(traffic: TrafficSet) -> None:
    """One step has no frequency, one detector no neighbour, and a feature without values no range."""
    single = replace(
        traffic.select(vdids=("c",)),
        features=np.full((1, 1, 1), np.nan, np.float32),
        timestamps=traffic.timestamps[:1],
    )
    found = summarize(single)
    assert (None, None) == (found.frequency, found.features[0].mean)
    assert found.neighbourhood.median_nearest_metres is None
    assert "every ?" in found.render()
    assert "no value at all, missing 100.00%" in found.render()


def test_files_and_shards_are_summarized_alike(tmp_path: Path) -> None:
    """A folder of shards has the summary of the set it holds; a file that is none is refused."""
    traffic = generate(SyntheticOptions(detectors=4, steps=40))
    hdf5.write(tmp_path / "one.h5", traffic)
    shards.write(tmp_path / "many", traffic, steps_per_shard=15)
    one, many = summarize_file(tmp_path / "one.h5"), summarize_file(tmp_path / "many")
    assert replace(one, path="") == replace(many, path="")
    with pytest.raises(InputError, match="cannot be opened"):
        summarize_file(tmp_path / "none.h5")
