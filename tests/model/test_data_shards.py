"""A folder of shards is one set, if the shards fit together."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from social_xlstm.data import hdf5, shards
from social_xlstm.data.hdf5 import TrafficSet
from social_xlstm.data.synthetic import SyntheticOptions, generate
from social_xlstm.errors import InputError


@pytest.fixture(scope="module")
def traffic() -> TrafficSet:
    """Make a set of 50 steps."""
    return generate(SyntheticOptions(detectors=3, steps=50, missing_share=0.2))


def _cut(traffic: TrafficSet, begin: int, end: int) -> TrafficSet:
    return replace(traffic, features=traffic.features[begin:end], timestamps=traffic.timestamps[begin:end])


def test_shards_are_read_as_the_set_they_were_cut_from(tmp_path: Path, traffic: TrafficSet) -> None:
    """Cutting into shards and reading the folder gives the set back, other files beside them or not."""
    files = shards.write(tmp_path, traffic, steps_per_shard=20)
    (tmp_path / "README.txt").write_text("not a shard")
    found = shards.read(tmp_path)
    assert ["shard-00000.h5", "shard-00001.h5", "shard-00002.h5"] == [file.name for file in files]
    np.testing.assert_array_equal(traffic.features, found.features)
    np.testing.assert_array_equal(traffic.timestamps, found.timestamps)
    np.testing.assert_array_equal(traffic.positions, found.positions)
    assert traffic.vdids == found.vdids


def test_a_single_file_is_read_by_the_same_function(tmp_path: Path, traffic: TrafficSet) -> None:
    """Who reads need not know whether a path is a file or a folder."""
    hdf5.write(tmp_path / "set.h5", traffic)
    np.testing.assert_array_equal(traffic.features, shards.read(tmp_path / "set.h5").features)


@pytest.mark.parametrize(
    ("second", "words"),
    [
        (lambda traffic: _cut(traffic, 19, 50), "must not overlap"),
        (lambda traffic: _cut(traffic, 0, 20), "name shards in the order of time"),
        (lambda traffic: _cut(traffic, 21, 50), "add the shard between them"),
        (lambda traffic: replace(_cut(traffic, 20, 50), vdids=("x", "y", "z")), "its vdids differ"),
        (lambda traffic: replace(_cut(traffic, 20, 50), feature_names=("flow",)), "its feature_names differ"),
        (lambda traffic: replace(_cut(traffic, 20, 50), units={"speed": "km/h"}), "its units differ"),
        (
            lambda traffic: replace(_cut(traffic, 20, 50), positions=traffic.positions + 1),
            "its positions differ",
        ),
        (lambda traffic: replace(_cut(traffic, 20, 50), positions=None), "its positions differ"),
        (lambda traffic: replace(_cut(traffic, 20, 50), directions=None), "its directions differ"),
        (lambda traffic: _cut(traffic, 20, 50).select(vdids=traffic.vdids[::-1]), "its vdids differ"),
    ],
)
def test_shards_that_do_not_fit_are_refused(tmp_path: Path, traffic: TrafficSet, second, words: str) -> None:
    """Shards that overlap, leave a gap, are unsorted or describe other detectors are refused by name."""
    hdf5.write(tmp_path / "a.h5", _cut(traffic, 0, 20))
    hdf5.write(tmp_path / "b.h5", second(traffic))
    with pytest.raises(InputError, match=words) as refused:
        shards.read(tmp_path)
    assert "b.h5" in str(refused.value)
    assert "a.h5" in str(refused.value)


def test_a_folder_without_shards_is_refused(tmp_path: Path, traffic: TrafficSet) -> None:
    """An empty folder is no set, and a folder with shards is not written into."""
    with pytest.raises(InputError, match="holds no shards"):
        shards.read(tmp_path)
    shards.write(tmp_path, traffic, steps_per_shard=50)
    with pytest.raises(InputError, match="already holds shards"):
        shards.write(tmp_path, traffic, steps_per_shard=50)
    with pytest.raises(InputError, match="at least one step"):
        shards.write(tmp_path / "other", traffic, steps_per_shard=0)
