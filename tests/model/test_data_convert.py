"""Files of other layouts: speeds as CSV, positions as CSV in every published variant, frames of pandas."""

from pathlib import Path

import h5py
import numpy as np
import pytest

from social_xlstm.data import hdf5
from social_xlstm.data.convert import ConvertOptions, convert_file, read_foreign, read_locations
from social_xlstm.errors import InputError

SHARED = Path(__file__).parents[3] / "shared" / "data"
LOS_LOOP = SHARED / "los_loop" / "los_speed.csv"
LOCATIONS = SHARED / "sensor_locations"
needs_real_data = pytest.mark.skipif(not LOS_LOOP.is_file(), reason="the Los-loop data is not there")

START = "2012-03-01 00:00:00"
SPEEDS = "timestamp,7,8\n2012-03-01 00:00:00,60.5,61\n2012-03-01 00:05:00,,0\n2012-03-01 00:10:00,-1,NaN\n"


def _file(folder: Path, text: str, name: str = "speeds.csv") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def test_a_csv_with_times_becomes_a_set(tmp_path: Path) -> None:
    """Empty cells, words of absence and error codes are missing; a zero is a speed unless said otherwise."""
    found = read_foreign(_file(tmp_path, SPEEDS), ConvertOptions())
    nan = np.nan
    np.testing.assert_array_equal([[60.5, 61], [nan, 0], [nan, nan]], found.features[:, :, 0])
    assert ("7", "8") == found.vdids
    assert ("speed",) == found.feature_names
    assert {"speed": "mph"} == found.units
    assert found.frequency_seconds == 300
    assert str(found.timestamps[1]) == "2012-03-01T00:05:00"


def test_zeros_are_missing_when_the_option_says_so(tmp_path: Path) -> None:
    """METR-LA writes 0 where nothing was measured."""
    found = read_foreign(_file(tmp_path, SPEEDS), ConvertOptions(zeros_are_missing=True))
    assert 4 == np.isnan(found.features).sum()


def test_times_come_from_start_and_frequency(tmp_path: Path) -> None:
    """A table without times gets them from the options."""
    path = _file(tmp_path, "7,8\n1,2\n3,4\n")
    found = read_foreign(path, ConvertOptions(start=START, frequency="1h"))
    assert [START.replace(" ", "T"), "2012-03-01T01:00:00"] == found.timestamps.astype(str).tolist()
    with pytest.raises(InputError, match="--start"):
        read_foreign(path, ConvertOptions())


def test_a_column_of_times_may_be_anywhere_if_named(tmp_path: Path) -> None:
    """The option names a column that is neither first nor called time."""
    path = _file(tmp_path, "7,when,8\n1,2012-03-01T00:00,2\n3,2012-03-01T00:01,4\n")
    found = read_foreign(path, ConvertOptions(timestamps_column="when"))
    assert (("7", "8"), 60) == (found.vdids, found.frequency_seconds)
    with pytest.raises(InputError, match="no column 'then'"):
        read_foreign(path, ConvertOptions(timestamps_column="then"))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "is empty"),
        ("\n\n", "is empty"),
        ("7,8\n", "has a header but no rows"),
        ("7,8\n1,2\n3\n", "line 3 has 1 columns"),
        ("7,8\n1,fast\n", "line 2, column '8' holds 'fast'"),
        ("7,7\n1,2\n", "detector '7' appears twice"),
        ("7,8\n1,201\n", "impossible value 201"),
        ("7,8\n1,inf\n", "impossible value inf"),
        ("time,8\nnoon,2\n", "timestamp 0 is 'noon'"),
        (",8\n0,2\n1,3\n", "timestamp 0 is '0'"),
        ("time,8\n2012-03-01 00:05:00,2\n2012-03-01 00:00:00,2\n", "is earlier than"),
        ('7,8\n"1,2\n', "is not CSV"),
        ("7,\n1,2\n", "detector name ''"),
    ],
)
def test_a_table_that_is_no_table_of_speeds_is_refused(tmp_path: Path, text: str, words: str) -> None:
    """Each fault is named with its line or column."""
    path = _file(tmp_path, text)
    with pytest.raises(InputError, match=words) as refused:
        read_foreign(path, ConvertOptions(start=START))
    assert str(path) in str(refused.value)


def test_bytes_that_are_no_text_are_refused(tmp_path: Path) -> None:
    """A spreadsheet's or picture's bytes are not UTF-8."""
    path = tmp_path / "speeds.csv"
    path.write_bytes(b"\xff\xfe7\x00")
    with pytest.raises(InputError, match="UTF-8"):
        read_foreign(path, ConvertOptions(start=START))
    with pytest.raises(InputError, match="is not a file"):
        read_foreign(tmp_path, ConvertOptions(start=START))


@pytest.mark.parametrize(
    "text",
    [
        "7,37.5,-121.5\n8,37.6,-121.6\n",
        "0,7,37.5,-121.5\n1,8,37.6,-121.6\n",
        "index,sensor_id,latitude,longitude\n0,7,37.5,-121.5\n1,8,37.6,-121.6\n",
        ",ID,Fwy,Dir,District,Latitude,Longitude\n0,7,5,S,7,37.5,-121.5\n1,8,5,N,7,37.6,-121.6\n",
        "Sensor ID,Freeway,Direction,Postmile,Latitude,Longitude,Length (km),Lanes\n"
        "7,101,S,3.1,37.5,-121.5,0.4,5\n8,85,N,1.0,37.6,-121.6,0.7,4\n",
        "\ufefflat, lon, id\n37.5, -121.5, 7\n37.6, -121.6, 8\n",
    ],
)
def test_every_published_header_of_locations_is_understood(tmp_path: Path, text: str) -> None:
    """With a header or without, the identifier, latitude and longitude are found."""
    found = read_locations(_file(tmp_path, text))
    assert {"7": (37.5, -121.5), "8": (37.6, -121.6)} == found.positions


def test_what_else_is_known_of_a_detector_comes_along(tmp_path: Path) -> None:
    """Direction, lanes and length go where the layout keeps them; extra detectors are ignored."""
    header = "Sensor ID,Direction,Latitude,Longitude,Length (km),Lanes\n"
    locations = _file(
        tmp_path, header + "8,N,37.6,-121.6,,4\n9,E,1,1,1,1\n7,S,37.5,-121.5,0.4,5\n", "locations.csv"
    )
    speeds = _file(tmp_path, SPEEDS)
    convert_file(speeds, tmp_path / "set.h5", ConvertOptions(locations=str(locations)))
    found = hdf5.read(tmp_path / "set.h5")
    np.testing.assert_array_equal([[37.5, -121.5], [37.6, -121.6]], found.positions)
    assert (("S", "N"), (5, 4), (0.4, None)) == (found.directions, found.lanes, found.lengths_km)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("id,latitude\n7,1\n", "no column for the longitude"),
        ("7,37.5,-121.5\n", "lacks 1 of 2 detectors"),
        ("7,37.5,-121.5\n7,37.5,-121.5\n", "appears twice"),
        ("7,37.5,-121.5\n8,91,0\n", "impossible position"),
        ("id,latitude,longitude\n7,37.5,-121.5\n8,,0\n", "'' of row"),
        ("id,latitude,longitude\n7,37.5,-121.5\n8,nan,0\n", "'nan' of row"),
        ("7,37.5,-121.5\n8,37.6\n", "line 2 has 2 columns"),
    ],
)
def test_locations_that_do_not_fit_are_refused(tmp_path: Path, text: str, words: str) -> None:
    """A missing column, an unknown detector and an impossible place are named."""
    locations = _file(tmp_path, text, "locations.csv")
    with pytest.raises(InputError, match=words) as refused:
        read_foreign(_file(tmp_path, SPEEDS), ConvertOptions(locations=str(locations)))
    assert "locations.csv" in str(refused.value)


def _frame(path: Path, group: str = "df", **changed: object) -> Path:
    """Write what pandas writes for a frame of numbers indexed by time."""
    parts = {
        "axis0": np.array([b"773869", b"767541", b"767542"]),
        "axis1": np.datetime64(START, "ns").astype(np.int64) + np.arange(4) * 300 * 10**9,
        "block0_items": np.array([b"773869", b"767541", b"767542"]),
        "block0_values": np.array([[64.4, 67.6, 0.0]] * 4),
        **changed,
    }
    with h5py.File(path, "a", libver="v110") as file:
        for name, value in parts.items():
            if value is not None:
                file[f"{group}/{name}"] = value
        if "axis1" in file[group]:
            file[f"{group}/axis1"].attrs["kind"] = np.bytes_(b"datetime64")
    return path


@pytest.mark.parametrize("group", ["df", "speed", "anything"])
def test_frames_of_pandas_are_read_without_pandas(tmp_path: Path, group: str) -> None:
    """The groups of METR-LA (df) and PEMS-BAY (speed), and a frame that is the only one, are found."""
    found = read_foreign(_frame(tmp_path / "frame.h5", group), ConvertOptions(zeros_are_missing=True))
    np.testing.assert_array_equal(np.float32([64.4, 67.6, np.nan]), found.features[0, :, 0])
    assert ("773869", "767541", "767542") == found.vdids
    assert (4, 300) == (len(found.timestamps), found.frequency_seconds)
    assert str(found.timestamps[0]) == START.replace(" ", "T")


def test_whole_numbers_name_the_detectors_of_pems_bay(tmp_path: Path) -> None:
    """An axis of numbers becomes names."""
    ids = np.array([400001, 400017, 400030])
    found = read_foreign(
        _frame(tmp_path / "frame.h5", "speed", axis0=ids, block0_items=ids), ConvertOptions()
    )
    assert ("400001", "400017", "400030") == found.vdids


def test_columns_follow_the_frame_and_not_the_block(tmp_path: Path) -> None:
    """Pandas stores a block's columns in another order than the frame's now and then."""
    path = _frame(tmp_path / "frame.h5", block0_items=np.array([b"767542", b"773869", b"767541"]))
    np.testing.assert_array_equal(
        np.float32([67.6, 0.0, 64.4]), read_foreign(path, ConvertOptions()).features[0, :, 0]
    )


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"axis0": None}, "has 0 pandas frames"),
        ({"axis1": None}, "axis1 is missing"),
        ({"block0_values": None}, "block0_values is missing"),
        ({"block1_values": np.zeros(3)}, "columns of several types"),
        ({"block0_values": np.zeros((3, 3))}, "shape .3, 3., but the axes require .4, 3."),
        ({"block0_values": np.array([[b"a"] * 3] * 4)}, "not numbers"),
        ({"axis0": np.array([1.5, 2.5, 3.5])}, "neither fixed-length texts nor whole numbers"),
        ({"axis1": np.arange(4.0)}, "not int64 times"),
        ({"axis1": np.array([0, 2, 1, 3]) * 10**9}, "is earlier than"),
        ({"axis1": np.array([0, 1, 2, np.iinfo(np.int64).min])}, "missing .NaT."),
        ({"block0_items": np.array([b"1", b"2", b"3"])}, "name different columns"),
        ({"block0_values": np.full((4, 3), 1e300)}, "impossible value inf"),
    ],
)
def test_frames_that_are_no_speeds_are_refused(tmp_path: Path, changed: dict, words: str) -> None:
    """Each fault of a frame is named with the file."""
    path = _frame(tmp_path / "frame.h5", **changed)
    with pytest.raises(InputError, match=words) as refused:
        read_foreign(path, ConvertOptions())
    assert str(path) in str(refused.value)


def test_of_several_frames_one_is_named(tmp_path: Path) -> None:
    """Two frames without a usual name need the option, which must name one of them."""
    path = _frame(_frame(tmp_path / "frame.h5", "one"), "two")
    with pytest.raises(InputError, match="has 2 pandas frames"):
        read_foreign(path, ConvertOptions())
    assert len(read_foreign(path, ConvertOptions(group="two")).vdids) == 3
    with pytest.raises(InputError, match="no pandas frame 'three'; it has one, two"):
        read_foreign(path, ConvertOptions(group="three"))


@needs_real_data
def test_the_real_los_loop_is_converted(tmp_path: Path) -> None:
    """Seven days of 207 real sensors become a set with positions, in the sensors' order."""
    options = ConvertOptions(locations=str(LOCATIONS / "metr_la.csv"), start=START)
    convert_file(LOS_LOOP, tmp_path / "los.h5", options)
    found = hdf5.read(tmp_path / "los.h5")
    assert (2016, 207, 1) == found.features.shape
    assert list(read_locations(LOCATIONS / "metr_la.csv").positions) == list(found.vdids)
    assert (1.0, 70.0) == (found.features.min(), found.features.max())
    assert found.features[0, 0, 0] == 64.375
    assert ("2012-03-07T23:55:00", 300) == (str(found.timestamps[-1]), found.frequency_seconds)


@needs_real_data
@pytest.mark.parametrize(
    ("name", "count"), [("metr_la", 207), ("pems_bay", 325), ("pems_bay_metadata", 325), ("pemsd7m", 228)]
)
def test_the_real_locations_are_read(name: str, count: int) -> None:
    """Every published file of locations is understood."""
    assert count == len(read_locations(LOCATIONS / f"{name}.csv").positions)
