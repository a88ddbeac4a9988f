"""The HDF5 layout: what is written is read back, and what breaks a rule is refused with its reason."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import h5py
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from social_xlstm.data import hdf5
from social_xlstm.data.hdf5 import TrafficSet
from social_xlstm.data.synthetic import SyntheticOptions, generate
from social_xlstm.errors import InputError

SMALL = SyntheticOptions(detectors=4, steps=30, features=("speed", "flow"), missing_share=0.1)


@pytest.fixture
def written(tmp_path: Path) -> Path:
    """Write a small valid file."""
    path = tmp_path / "small.h5"
    hdf5.write(path, generate(SMALL))
    return path


def _edit(path: Path, change: Callable[[h5py.File], None]) -> None:
    with h5py.File(path, "r+") as file:
        change(file)


def _replace(name: str, value: object, **options: object) -> Callable[[h5py.File], None]:
    def change(file: h5py.File) -> None:
        del file[name]
        # Strings of fixed length, as this project writes them: other files are tried out in a process first.
        array = np.array(value)
        fixed = array.astype(bytes) if array.dtype.kind == "U" and not options else value
        file.create_dataset(name, data=fixed, **options)

    return change


def _set_value(value: float) -> Callable[[h5py.File], None]:
    def change(file: h5py.File) -> None:
        file["data/features"][3, 1, 0] = value

    return change


def _timestamps(**changed: str) -> Callable[[h5py.File], None]:
    def change(file: h5py.File) -> None:
        texts = list(file["metadata/timestamps"].asstr()[:])
        for index, text in changed.items():
            texts[int(index[1:])] = text
        del file["metadata/timestamps_epoch"]
        _replace("metadata/timestamps", texts)(file)

    return change


def _attribute(name: str, value: object) -> Callable[[h5py.File], None]:
    def change(file: h5py.File) -> None:
        file["metadata/vd_info/400007"].attrs[name] = value

    return change


def _drop(*names: str) -> Callable[[h5py.File], None]:
    def change(file: h5py.File) -> None:
        for name in names:
            del file[name]

    return change


def test_written_sets_are_read_back_whole(tmp_path: Path) -> None:
    """Every field of a set survives writing and reading."""
    traffic = generate(SMALL)
    hdf5.write(tmp_path / "set.h5", traffic)
    found = hdf5.read(tmp_path / "set.h5")
    np.testing.assert_array_equal(traffic.features, found.features)
    np.testing.assert_array_equal(traffic.timestamps, found.timestamps)
    np.testing.assert_array_equal(traffic.positions, found.positions)
    for name in ("vdids", "feature_names", "directions", "lanes", "lengths_km", "units", "source"):
        assert getattr(traffic, name) == getattr(found, name)
    assert np.float32 == found.features.dtype
    assert np.dtype("datetime64[s]") == found.timestamps.dtype
    assert found.frequency_seconds == 300


NAMES = st.text(
    st.characters(codec="utf-8", exclude_categories=("C", "Z"), exclude_characters="/."), min_size=1
)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    vdids=st.lists(NAMES, min_size=1, max_size=4, unique=True),
    values=st.lists(st.one_of(st.floats(0, 200, width=32), st.just(np.nan)), min_size=1, max_size=12),
    source=NAMES,
)
def test_any_valid_set_is_read_back(
    tmp_path: Path, vdids: list[str], values: list[float], source: str
) -> None:
    """Names in any script and any speeds within the range survive writing and reading."""
    features = np.array(values, dtype=np.float32).reshape(-1, 1, 1).repeat(len(vdids), axis=1)
    times = np.datetime64("2020-02-29 23:50:00", "s") + np.arange(len(values)) * np.timedelta64(60, "s")
    traffic = TrafficSet(features, times, tuple(vdids), ("speed",), source=source)
    hdf5.write(tmp_path / "any.h5", traffic)
    found = hdf5.read(tmp_path / "any.h5")
    np.testing.assert_array_equal(features, found.features)
    assert (tuple(vdids), source) == (found.vdids, found.source)
    assert found.positions is None


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (_drop("data"), "group data is missing"),
        (_drop("metadata"), "group metadata is missing"),
        (_drop("data/features"), "dataset /data/features is missing"),
        (_drop("metadata/vdids"), "dataset /metadata/vdids is missing"),
        (_drop("metadata/timestamps"), "dataset /metadata/timestamps is missing"),
        (_drop("metadata/feature_names"), "dataset /metadata/feature_names is missing"),
        (_replace("metadata/vdids", ["a", "b"]), "30 timestamps, 2 vdids"),
        (_replace("metadata/vdids", ["a", "b", "c", "b"]), "detector 'b' appears twice"),
        (_replace("metadata/vdids", ["a", "b", "", "c"]), "detector name ''"),
        (_replace("metadata/vdids", [1, 2, 3, 4]), "vdids is int64, not strings"),
        (_replace("metadata/vdids", [["a", "b", "c", "d"]]), "has 2 dimensions"),
        (_replace("metadata/feature_names", ["speed"]), "1 feature_names"),
        (_replace("metadata/feature_names", ["speed", "speed"]), "feature 'speed' appears twice"),
        (_replace("data/features", np.zeros((30, 4))), "features have shape [30, 4]"),
        (_replace("data/features", np.zeros((30, 4, 2), dtype=int)), "is int64, not float32"),
        (_replace("data/features", np.zeros((30, 4, 2), dtype="S3")), "not float32"),
        (_replace("data/features", 3.0), "features have shape []"),
        (_set_value(201.0), "impossible value 201"),
        (_set_value(-2.0), "impossible value -2"),
        (_set_value(np.inf), "impossible value inf"),
        (_timestamps(_4="2017-01-01 00:05:00"), "is earlier than"),
        (_timestamps(_4="2017-01-01 00:15:00"), "repeats"),
        (_timestamps(_4="yesterday"), "timestamp 4 is 'yesterday'"),
        (_timestamps(_4="today"), "timestamp 4 is 'today'"),
        (_timestamps(_4=""), "timestamp 4 is ''"),
        (_timestamps(_4="2017-02-30 00:00:00"), "not a date of the calendar"),
        (_replace("metadata/timestamps_epoch", np.arange(30)), "name different times"),
        (_replace("metadata/timestamps_epoch", np.arange(29)), "timestamps_epoch is int64 [29]"),
        (_replace("metadata/frequency", "1min"), "frequency says 1min, but most steps are 5min"),
        (_replace("metadata/frequency", "often"), "'often' is not a step length"),
        (_replace("metadata/units", "{"), "units are not JSON"),
        (_replace("metadata/units", "[1]"), "units are a list"),
        (_replace("metadata/source", [1, 2]), "source is not a single string"),
        (_attribute("position_lat", np.nan), "detector 400007 has the position [nan"),
        (_attribute("position_lat", 91.0), "detector 400007 has the impossible position"),
        (_attribute("position_lon", -200.0), "detector 400007 has the impossible position"),
        (_attribute("position_lon", "west"), "position_lon of detector 400007 is 'west'"),
        (_attribute("position_lon", [1.0, 2.0]), "not a number"),
        (_drop("metadata/vd_info/400007"), "1 of 4 detectors have no position (first: 400007)"),
        (lambda file: file.create_group("metadata/vd_info/999"), "unknown detector '999'"),
        (
            lambda file: file["metadata/vd_info"].attrs.modify("coord_crs", "EPSG:3857"),
            "coord_crs is 'EPSG:3857'",
        ),
    ],
)
def test_each_broken_rule_has_its_message(written: Path, change: Callable, words: str) -> None:
    """A file that breaks a rule is refused with its name, the fault and a remedy."""
    _edit(written, change)
    with pytest.raises(InputError) as refused:
        hdf5.validate(written)
    assert words in str(refused.value)
    assert str(written) in str(refused.value)
    assert ";" in str(refused.value)


@pytest.mark.parametrize("code", [-99.0, -1.0, 255.0, np.nan])
def test_missing_codes_become_nan(written: Path, code: float) -> None:
    """The detectors' error codes and NaN mean that nothing was measured."""
    _edit(written, _set_value(code))
    assert np.isnan(hdf5.read(written).features[3, 1, 0])


def test_255_vehicles_are_a_flow_and_not_a_code(written: Path) -> None:
    """What is an error code for a speed is a plausible number of vehicles."""
    _edit(written, lambda file: file["data/features"].__setitem__((3, 1, 1), 255.0))
    assert hdf5.read(written).features[3, 1, 1] == 255.0


def test_the_speed_range_holds_for_speeds_alone(written: Path) -> None:
    """Both ends of the range are valid speeds, and other features may be larger."""

    def change(file: h5py.File) -> None:
        file["data/features"][0, 0] = [200.0, 1500.0]
        file["data/features"][1, 0] = [0.0, 0.0]

    _edit(written, change)
    np.testing.assert_array_equal([[200.0, 1500.0], [0.0, 0.0]], hdf5.read(written).features[:2, 0])


def test_doubles_are_read_as_float32(written: Path) -> None:
    """A file of doubles is usable; one whose double does not fit is refused without a warning."""
    values = np.full((30, 4, 2), 60.0)
    _edit(written, _replace("data/features", values))
    assert np.float32 == hdf5.read(written).features.dtype
    values[0, 0, 1] = 1e300
    _edit(written, _replace("data/features", values))
    with pytest.raises(InputError, match="impossible value inf"):
        hdf5.read(written)


def test_an_epoch_in_another_time_zone_is_accepted(written: Path) -> None:
    """Timestamps in local time may stand beside epochs in UTC."""
    _edit(
        written,
        lambda file: file["metadata/timestamps_epoch"].__setitem__(
            slice(None), file["metadata/timestamps_epoch"][:] + 8 * 3600
        ),
    )
    assert hdf5.read(written).frequency_seconds == 300


def test_a_file_may_have_no_positions_at_all(written: Path) -> None:
    """Positions are not part of what a file must have."""
    _edit(written, _drop("metadata/vd_info"))
    assert hdf5.read(written).positions is None


def test_partial_positions_are_nan_when_asked_for(written: Path) -> None:
    """Who trains without pooling may read a file in which some detectors have no position."""
    _edit(written, _drop("metadata/vd_info/400007"))
    found = hdf5.read(written, partial_positions=True)
    assert [False, True, False, False] == np.isnan(found.positions).all(axis=1).tolist()


@pytest.mark.parametrize(
    ("content", "words"),
    [(b"", "is empty"), (b"speed,1,2\n", "is not an HDF5 file"), (b"\x89HDF\r\n\x1a\n", "damaged")],
)
def test_what_is_no_hdf5_file_is_called_so(tmp_path: Path, content: bytes, words: str) -> None:
    """An empty, foreign or beheaded file is named for what it is."""
    path = tmp_path / "what.h5"
    path.write_bytes(content)
    with pytest.raises(InputError, match=words):
        hdf5.read(path)


def test_a_path_that_is_no_file_is_called_so(tmp_path: Path) -> None:
    """A missing file and a folder are refused with the path."""
    with pytest.raises(InputError, match="No such file"):
        hdf5.read(tmp_path / "nothing.h5")
    with pytest.raises(InputError, match="is a folder"):
        hdf5.read(tmp_path)


def test_a_truncated_file_is_called_so(written: Path) -> None:
    """Half a file, as an interrupted copy leaves it, is named truncated."""
    written.write_bytes(written.read_bytes()[:-100])
    with pytest.raises(InputError, match="is truncated"):
        hdf5.read(written)


def test_damaged_values_are_noticed(written: Path) -> None:
    """A bit flipped among the values breaks their checksum."""
    with h5py.File(written) as file:
        place = file["data/features"].id.get_chunk_info(0).byte_offset
    content = bytearray(written.read_bytes())
    content[place + 40] ^= 1
    written.write_bytes(content)
    with pytest.raises(InputError, match="damaged"):
        hdf5.read(written)


def test_a_claim_of_terabytes_is_not_believed(written: Path) -> None:
    """A shape the file cannot hold is refused before memory is asked for."""

    def change(file: h5py.File) -> None:
        del file["data/features"]
        file.create_dataset("data/features", shape=(2**40, 4, 2), dtype="f4", chunks=(64, 4, 2))

    _edit(written, change)
    with pytest.raises(InputError, match="claims 35,184,372,088,832 bytes but stores 0"):
        hdf5.read(written)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"features": np.zeros((30, 4, 2))}, "float64, not float32"),
        (
            {"features": np.zeros((0, 4, 2), dtype=np.float32), "timestamps": np.array([], "datetime64[s]")},
            "empty",
        ),
        ({"features": np.full((30, 4, 2), 300, dtype=np.float32)}, "impossible value 300"),
        ({"vdids": ("a", "b/c", "d", "e")}, "'b/c' cannot be used"),
        ({"vdids": ("a", "b", "d")}, "3 vdids"),
        ({"positions": np.zeros((3, 2))}, "positions have shape"),
        ({"positions": np.full((4, 2), 95.0)}, "impossible position"),
        ({"directions": ("N",)}, "1 directions for 4 detectors"),
        ({"source": "a\ud800b"}, "cannot be written"),
    ],
)
def test_an_invalid_set_is_not_written(tmp_path: Path, change: dict, words: str) -> None:
    """What reading would refuse is not written, and nothing is left behind."""
    with pytest.raises(InputError, match=words):
        hdf5.write(tmp_path / "set.h5", replace(generate(SMALL), **change))
    assert [] == list(tmp_path.iterdir())


def test_a_failed_write_keeps_the_old_file(written: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Writing replaces a file at the very end, so a failure in between leaves the old one whole."""
    before = written.read_bytes()

    def no_space(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(hdf5, "write_detectors", no_space)
    with pytest.raises(InputError, match="No space left on device"):
        hdf5.write(written, generate(SMALL))
    assert before == written.read_bytes()
    assert [written] == list(written.parent.iterdir())


def test_a_file_is_opened_once_by_reading(written: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading a whole set opens its file a single time."""
    opened = []
    real = h5py.File
    monkeypatch.setattr(h5py, "File", lambda *args, **options: opened.append(args) or real(*args, **options))
    hdf5.read(written)
    assert len(opened) == 1


def test_texts_of_variable_length_are_read(written: Path) -> None:
    """Files that h5py wrote with its default strings, as other programs do, are read alike."""
    expected = hdf5.read(written)

    def change(file: h5py.File) -> None:
        for name in ("vdids", "feature_names", "timestamps"):
            _replace(
                f"metadata/{name}", list(file[f"metadata/{name}"].asstr()[:]), dtype=h5py.string_dtype()
            )(file)
        _replace("metadata/units", json.dumps({"speed": "km/h"}), dtype=h5py.string_dtype())(file)
        file["metadata/vd_info"].attrs["coord_crs"] = "EPSG:4326"

    _edit(written, change)
    found = hdf5.read(written)
    assert (expected.vdids, expected.feature_names) == (found.vdids, found.feature_names)
    assert {"speed": "km/h"} == found.units
