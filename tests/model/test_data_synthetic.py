"""The generated set behaves like traffic: rhythm, queues that grow upstream, plausible places, gaps."""

import numpy as np
import pytest

from social_xlstm.data import hdf5, shards
from social_xlstm.data.positions import nearest_metres, neighbour_counts, project
from social_xlstm.data.sets import TrafficSet, checked
from social_xlstm.data.synthetic import SyntheticOptions, generate, synth_file
from social_xlstm.errors import InputError

THREE_WEEKS = SyntheticOptions(detectors=60, steps=21 * 288, missing_share=0.02)


@pytest.fixture(scope="module")
def traffic() -> TrafficSet:
    """Make three weeks of 60 detectors."""
    return generate(THREE_WEEKS)


def _mean_speed(traffic: TrafficSet, weekdays: tuple[int, ...], hours: range) -> float:
    day = traffic.timestamps.astype("datetime64[D]")
    weekday = (day.astype(np.int64) + 3) % 7
    hour = (traffic.timestamps - day).astype(np.int64) // 3600
    chosen = np.isin(weekday, weekdays) & np.isin(hour, hours)
    return float(np.nanmean(traffic.features[chosen]))


def test_the_default_shape_is_that_of_pems_bay() -> None:
    """Without options the set has 325 detectors and 52,116 five-minute steps."""
    options = SyntheticOptions()
    assert (325, 52_116, 300) == (options.detectors, options.steps, options.frequency_seconds)


@pytest.mark.slow
def test_the_full_size_is_valid() -> None:
    """All of it obeys the layout's rules, in float32."""
    full = checked(generate(SyntheticOptions()), "the full set")
    assert (52_116, 325, 1) == full.features.shape
    assert np.float32 == full.features.dtype


def test_a_seed_gives_the_same_set_and_another_seed_another(traffic: TrafficSet) -> None:
    """The options alone decide every number."""
    again = generate(THREE_WEEKS)
    np.testing.assert_array_equal(traffic.features, again.features)
    np.testing.assert_array_equal(traffic.positions, again.positions)
    other = generate(SyntheticOptions(detectors=60, steps=288, seed=1))
    assert not np.array_equal(other.features, generate(SyntheticOptions(detectors=60, steps=288)).features)


def test_more_features_do_not_change_the_speeds() -> None:
    """Asking for flow and occupancy leaves the speeds and the gaps as they are."""
    options = {"detectors": 5, "steps": 300, "missing_share": 0.1}
    three = generate(SyntheticOptions(**options, features=("flow", "speed", "occupancy")))
    np.testing.assert_array_equal(
        generate(SyntheticOptions(**options)).features[..., 0], three.features[..., 1]
    )
    gone = np.isnan(three.features)
    np.testing.assert_array_equal(gone[..., 0], gone[..., 2])
    assert np.nanmin(three.features) >= 0
    assert np.nanmax(three.features[..., 2]) <= 100


def test_workdays_have_rush_hours_and_weekends_do_not(traffic: TrafficSet) -> None:
    """Speeds fall at the peaks of workdays, far less on weekends, and not at night."""
    workdays, weekend = (0, 1, 2, 3, 4), (5, 6)
    night = _mean_speed(traffic, workdays, range(1, 4))
    rush = _mean_speed(traffic, workdays, range(17, 19))
    assert rush < night - 5
    assert _mean_speed(traffic, weekend, range(17, 19)) > rush + 4


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_congestion_travels_upstream(seed: int) -> None:
    """On one carriageway a detector upstream slows down after the one downstream of it, not before."""
    traffic = generate(SyntheticOptions(detectors=23, steps=28 * 288, missing_share=0.0, seed=seed))
    # The first twelve share a carriageway and are numbered along the direction of travel, 0.6 km apart.
    speeds = traffic.features[:, :12, 0] - traffic.features[:, :12, 0].mean(axis=0)
    upstream, downstream = speeds[:, :4], speeds[:, 4:8]

    def correlation(lag: int) -> float:
        """Compare upstream with what was downstream a lag earlier."""
        return float((upstream[8 + lag : len(speeds) - 8 + lag] * downstream[8:-8]).mean())

    # 2.4 km at 18 km/h are 8 minutes, less where a queue begins between the two.
    assert 1 <= max(range(-8, 9), key=correlation) <= 3


def test_places_are_those_of_freeways(traffic: TrafficSet) -> None:
    """Detectors stand in pairs on opposite carriageways, with neighbours within 2 km, on the globe."""
    metres = project(traffic.positions, traffic.vdids)
    assert 25 < np.median(nearest_metres(metres)) < 50
    assert 6 < neighbour_counts(metres, 2000.0).mean() < 20
    assert 0 == (neighbour_counts(metres, 2000.0) == 0).sum()
    assert len(set(traffic.directions)) >= 3
    assert set(traffic.lanes) <= {3, 4, 5}


def test_opposite_carriageways_have_opposite_directions(traffic: TrafficSet) -> None:
    """The nearest detector, across the median, drives the other way."""
    metres = project(traffic.positions, traffic.vdids)
    distances = np.linalg.norm(metres[:, None] - metres[None], axis=-1) + np.eye(len(metres)) * 1e9
    nearest = distances.argmin(axis=1)
    opposite = {"N": "S", "S": "N", "E": "W", "W": "E"}
    across = [
        traffic.directions[other] == opposite[own]
        for own, other in zip(traffic.directions, nearest, strict=True)
    ]
    assert np.mean(across) > 0.8


def test_the_asked_share_is_missing(traffic: TrafficSet) -> None:
    """Gaps make up the share asked for, some single and some of hours."""
    gone = np.isnan(traffic.features[:, :, 0])
    assert 0.015 < gone.mean() < 0.025
    longest = max(np.diff(np.flatnonzero(~gone[:, index])).max() for index in range(60))
    assert longest > 12
    assert not np.isnan(generate(SyntheticOptions(detectors=3, steps=50, missing_share=0)).features).any()


@pytest.mark.parametrize(("detectors", "steps"), [(1, 1), (2, 5), (25, 10)])
def test_small_sets_are_valid(tmp_path, detectors: int, steps: int) -> None:
    """Any number of detectors and steps makes a set that can be written and read."""
    options = SyntheticOptions(detectors=detectors, steps=steps, features=("speed", "flow", "occupancy"))
    synth_file(tmp_path / "small.h5", options)
    assert (steps, detectors, 3) == hdf5.read(tmp_path / "small.h5").features.shape


def test_a_set_can_be_written_as_shards(tmp_path) -> None:
    """The generator writes a folder of shards that reads as the same set."""
    made = synth_file(tmp_path, SyntheticOptions(detectors=2, steps=50), steps_per_shard=20)
    assert 3 == len(list(tmp_path.iterdir()))
    np.testing.assert_array_equal(made.features, shards.read(tmp_path).features)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"detectors": 0}, "detectors is 0"),
        ({"steps": 0}, "steps is 0"),
        ({"missing_share": 1.0}, "missing_share is 1.0"),
        ({"features": ("colour",)}, "colour"),
        ({"features": ()}, "at most once"),
        ({"features": ("speed", "speed")}, "at most once"),
        ({"start": "tomorrow"}, "timestamp 0 is 'tomorrow'"),
        ({"seed": -1}, "seed is -1"),
    ],
)
def test_options_that_describe_no_set_are_refused(changed: dict, words: str) -> None:
    """Each wrong option is named."""
    with pytest.raises(InputError, match=words):
        generate(SyntheticOptions(**{"detectors": 2, "steps": 2, **changed}))
