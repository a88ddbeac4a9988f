"""Broken files of every kind end in an InputError, or are read as a valid set; nothing else escapes."""

import contextlib
import functools
import random
import struct
from pathlib import Path

import h5py
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from social_xlstm.data import hdf5, hdf5_guard, shards
from social_xlstm.data.convert import ConvertOptions, read_foreign, read_locations
from social_xlstm.data.sets import TrafficSet, format_timestamps
from social_xlstm.data.synthetic import SyntheticOptions, generate
from social_xlstm.errors import InputError

fuzz = functools.partial(
    settings, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
TEXT_TYPE = h5py.string_dtype()


@pytest.fixture(scope="module")
def valid() -> bytes:
    """Give the bytes of a small valid file."""
    path = Path("valid.h5")
    with h5py.File(path, "w", driver="core", backing_store=False, libver="v110") as file:
        hdf5._write_open(file, generate(SyntheticOptions(detectors=3, steps=20, features=("speed", "flow"))))
        file.flush()
        return file.id.get_file_image()


@pytest.fixture(scope="module")
def old(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """Give the bytes of a file in the older format, with the strings h5py writes by default."""
    path = tmp_path_factory.mktemp("old") / "old.h5"
    traffic = generate(SyntheticOptions(detectors=3, steps=20))
    with h5py.File(path, "w", libver="earliest") as file:
        file["data/features"] = traffic.features
        for name, texts in (
            ("vdids", traffic.vdids),
            ("feature_names", traffic.feature_names),
            ("timestamps", format_timestamps(traffic.timestamps)),
        ):
            file.create_dataset(f"metadata/{name}", data=list(texts), dtype=TEXT_TYPE)
    return path.read_bytes()


def _read_or_refuse(path: Path) -> TrafficSet | None:
    try:
        return hdf5.read(path)
    except InputError:
        return None


@fuzz(max_examples=150)
@given(content=st.binary(max_size=400))
def test_random_bytes(tmp_path: Path, content: bytes) -> None:
    """Random bytes are refused by every reader."""
    path = tmp_path / "random.h5"
    for prefix in (b"", hdf5_guard.SIGNATURE):
        path.write_bytes(prefix + content)
        with pytest.raises(InputError):
            hdf5.read(path)


@fuzz(max_examples=150)
@given(data=st.data())
def test_truncated_files(tmp_path: Path, valid: bytes, data: st.DataObject) -> None:
    """A valid file cut anywhere is refused."""
    path = tmp_path / "cut.h5"
    path.write_bytes(valid[: data.draw(st.integers(0, len(valid) - 1))])
    with pytest.raises(InputError):
        hdf5.read(path)


@fuzz(max_examples=300)
@given(data=st.data())
def test_flipped_bytes(tmp_path: Path, valid: bytes, data: st.DataObject) -> None:
    """A valid file with changed bytes is refused, or what is read obeys every rule."""
    content = bytearray(valid)
    # The version of the format lies in byte 8: older ones are tried out in a process, tested below.
    places = st.integers(0, len(content) - 1).filter(lambda place: place != 8)
    for place in data.draw(st.lists(places, min_size=1, max_size=8)):
        content[place] = data.draw(st.integers(0, 255))
    path = tmp_path / "flipped.h5"
    path.write_bytes(content)
    found = _read_or_refuse(path)
    if found is not None:
        hdf5.write(tmp_path / "again.h5", found)


PLACES = (
    "data/features",
    "metadata/vdids",
    "metadata/timestamps",
    "metadata/timestamps_epoch",
    "metadata/units",
    "metadata/frequency",
    "metadata/vd_info",
)
ARRAYS = st.one_of(
    st.integers(0, 3).map(lambda side: np.zeros((side, 2, 1), dtype=np.float32)),
    st.sampled_from([np.int8, np.uint64, np.float16, np.complex64, np.bool_, "S4"]).map(
        lambda dtype: np.zeros((3, 2, 1), dtype=dtype)
    ),
    st.lists(st.floats(width=32), max_size=6).map(lambda values: np.array(values, dtype=np.float32)),
    st.just(np.float32(1.0)),
    st.just(np.zeros(3, dtype=[("a", "f4"), ("b", "i4")])),
)


@fuzz(max_examples=150)
@given(name=st.sampled_from(PLACES), array=ARRAYS)
def test_wrong_types_and_shapes(tmp_path: Path, valid: bytes, name: str, array: np.ndarray) -> None:
    """Any array in any place is refused, or what is read obeys every rule."""
    path = tmp_path / "typed.h5"
    path.write_bytes(valid)
    with h5py.File(path, "r+") as file:
        del file[name]
        file.create_dataset(name, data=array)
    found = _read_or_refuse(path)
    if found is not None:
        hdf5.write(tmp_path / "again.h5", found)


@fuzz(max_examples=150)
@given(
    content=st.one_of(
        st.binary(max_size=200), st.text("0123456789.,-\n abNa\"'\t\0", max_size=200).map(str.encode)
    )
)
def test_random_csv(tmp_path: Path, content: bytes) -> None:
    """Random text is refused as speeds and as locations, or gives a valid set."""
    path = tmp_path / "random.csv"
    path.write_bytes(content)
    with contextlib.suppress(InputError):
        hdf5.write(tmp_path / "set.h5", read_foreign(path, ConvertOptions(start="2020-01-01 00:00:00")))
    try:
        found = read_locations(path)
    except InputError:
        return
    assert all(np.isfinite(place).all() for place in found.positions.values())


@fuzz(max_examples=60)
@given(data=st.data())
def test_wrong_frames(tmp_path: Path, data: st.DataObject) -> None:
    """Any arrays in the place of a pandas frame are refused, or give a valid set."""
    path = tmp_path / "frame.h5"
    with h5py.File(path, "w", libver="v110") as file:
        for name in data.draw(
            st.sets(st.sampled_from(["axis0", "axis1", "block0_values", "block0_items", "block1_values"]))
        ):
            good = {
                "axis0": np.array([b"1", b"2"]),
                "block0_items": np.array([b"2", b"1"]),
                "axis1": np.arange(3) * 300 * 10**9,
            }.get(name, np.full((3, 2), 50.0))
            file[f"df/{name}"] = data.draw(st.one_of(st.just(good), ARRAYS))
    with contextlib.suppress(InputError):
        hdf5.write(tmp_path / "set.h5", read_foreign(path, ConvertOptions()))


def test_a_file_that_hangs_the_library_is_refused(
    tmp_path: Path, old: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A heap object of size zero makes HDF5 loop for ever; the trial ends it, and the reader never starts."""
    heap = old.index(b"GCOL")
    content = bytearray(old)
    place = heap + 16
    while True:  # to the collection's free space, the object numbered 0
        index, size = struct.unpack_from("<HxxxxxxQ", content, place)
        if index == 0:
            break
        place += 16 + -(-size // 8) * 8
    struct.pack_into("<Q", content, place + 8, 0)
    path = tmp_path / "endless.h5"
    path.write_bytes(content)
    monkeypatch.setattr(hdf5_guard, "try_reading", functools.partial(hdf5_guard.try_reading, seconds=1.5))
    with pytest.raises(InputError, match="does not end within 2 s"):
        hdf5.read(path)


def test_a_file_that_kills_the_library_is_refused(
    tmp_path: Path, old: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where reading ends the process, only the trial's process ends."""
    reader = tmp_path / "reader.py"
    reader.write_text("import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)\n")
    monkeypatch.setattr(hdf5_guard, "_READER", reader)
    path = tmp_path / "deadly.h5"
    path.write_bytes(old)
    with pytest.raises(InputError, match="ends the process with SIGSEGV"):
        hdf5.read(path)


@pytest.mark.slow
def test_flipped_bytes_in_the_old_format(tmp_path: Path, old: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files without checksums, too, are refused or read as a valid set, even if the library crashes."""
    monkeypatch.setattr(hdf5_guard, "try_reading", functools.partial(hdf5_guard.try_reading, seconds=3.0))
    rng = random.Random(0)
    path = tmp_path / "old.h5"
    for _ in range(40):
        content = bytearray(old)
        for _ in range(rng.choice([1, 2, 8])):
            content[rng.randrange(len(content))] = rng.randrange(256)
        path.write_bytes(content)
        found = _read_or_refuse(path)
        if found is not None:
            hdf5.write(tmp_path / "again.h5", found)


def test_a_damaged_shard_names_itself(tmp_path: Path) -> None:
    """Of many shards, the message names the one that is broken."""
    files = shards.write(
        tmp_path / "set", generate(SyntheticOptions(detectors=2, steps=30)), steps_per_shard=10
    )
    files[1].write_bytes(files[1].read_bytes()[:200])
    with pytest.raises(InputError, match=r"shard-00001\.h5 is truncated"):
        shards.read(tmp_path / "set")
