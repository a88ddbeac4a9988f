"""Windows and batches: one vectorized copy gives what a plain loop gives, without a copy for each worker."""

import os
import pickle
from dataclasses import replace
from multiprocessing.reduction import ForkingPickler
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader, default_collate

from social_xlstm.config import DataConfig, LoaderConfig, SplitConfig
from social_xlstm.data import series as series_module
from social_xlstm.data.loader import build_loader
from social_xlstm.data.prepare import prepare
from social_xlstm.data.series import Series
from social_xlstm.data.sets import TrafficSet
from social_xlstm.data.synthetic import SyntheticOptions, generate
from social_xlstm.data.windows import Batch, Windows, collate, collate_detectors
from social_xlstm.errors import InputError


def _windows(steps: int, detectors: int, features: int, lengths: tuple[int, int], stride: int = 1) -> Windows:
    """Lay windows over counted values, so that every number tells where it came from."""
    values = torch.arange(steps * detectors * features, dtype=torch.float32).view(steps, detectors, features)
    times = np.datetime64("2020-01-01", "s") + np.arange(steps) * np.timedelta64(300, "s")
    series = Series(values, (values.long() * 7919 + 13) % 5 > 0)
    return Windows(series, times, *lengths, stride, 300, tuple(f"d{index}" for index in range(detectors)))


def _equal(one: Batch, two: Batch) -> bool:
    return all(
        torch.equal(getattr(one, name), getattr(two, name)) for name in ("features", "targets", "mask")
    )


@settings(max_examples=80, deadline=None)
@given(
    shape=st.tuples(st.integers(1, 40), st.integers(1, 5), st.integers(1, 3)),
    lengths=st.tuples(st.integers(1, 8), st.integers(1, 4)),
    stride=st.integers(1, 6),
    data=st.data(),
)
def test_a_batch_is_what_a_loop_over_slices_gives(shape: tuple, lengths: tuple, stride: int, data) -> None:
    """For any shape, stride and choice of windows, inputs, targets and masks are the slices of time."""
    windows = _windows(*shape, lengths, stride)
    inputs, targets = lengths
    assert max(0, (shape[0] - inputs - targets) // stride + 1) * (shape[0] >= inputs + targets) == len(
        windows
    )
    if not len(windows):
        return
    chosen = data.draw(st.lists(st.integers(0, len(windows) - 1), min_size=1, max_size=6))
    batch = windows.__getitems__(chosen)
    for row, index in enumerate(chosen):
        begin = index * stride
        values, observed = windows.series.values, windows.series.observed
        assert torch.equal(values[begin : begin + inputs], batch.features[row])
        assert torch.equal(values[begin + inputs : begin + inputs + targets], batch.targets[row])
        assert torch.equal(observed[begin + inputs : begin + inputs + targets], batch.mask[row])
        one = windows[index]
        assert torch.equal(one.features, batch.features[row])
    for name in ("features", "targets", "mask"):
        assert getattr(batch, name).is_contiguous()


def test_a_batch_is_a_copy() -> None:
    """Who changes a batch does not change the data."""
    windows = _windows(10, 2, 1, (2, 1))
    before = windows.series.values.clone()
    windows.__getitems__([0, 1]).features.zero_()
    assert torch.equal(before, windows.series.values)


def test_no_window_crosses_a_break_in_time() -> None:
    """A window's steps follow one another at the set's frequency, however the break is made up for later."""
    windows = _windows(12, 1, 1, (2, 1))
    times = windows.timestamps.copy()
    times[5:] += np.timedelta64(300, "s")  # a step is lost …
    times[8:] -= np.timedelta64(150, "s")  # … and half of one gained
    assert [0, 1, 2, 5, 8, 9] == replace(windows, timestamps=times).starts.tolist()


def test_windows_tell_the_times_they_predict() -> None:
    """A plot needs the times of a window's targets."""
    windows = _windows(12, 1, 1, (3, 2), stride=2)
    assert ["2020-01-01T00:25:00", "2020-01-01T00:30:00"] == windows.target_times(1).astype(str).tolist()


def test_indices_outside_are_refused() -> None:
    """Python's rules for indices hold, so that a plain loop over the set ends."""
    windows = _windows(12, 1, 1, (3, 2))
    assert torch.equal(windows[-1].features, windows[7].features)
    with pytest.raises(IndexError):
        windows[8]
    assert len(windows) == sum(1 for _ in windows)


@pytest.mark.parametrize("name", ["sequence_length", "prediction_length", "stride"])
def test_lengths_are_at_least_one(name: str) -> None:
    """A window without steps is no window."""
    with pytest.raises(InputError, match=f"{name} is 0"):
        replace(_windows(12, 1, 1, (3, 2)), **{name: 0})


def test_a_sample_counts_its_bytes() -> None:
    """The bytes of one window are those of its tensors."""
    windows = _windows(20, 4, 3, (5, 2))
    sample = windows[0]
    assert sum(tensor.nbytes for tensor in sample) == windows.sample_bytes


def test_plain_torch_loaders_can_read_windows() -> None:
    """Sample by sample with torch's own collate, or batched with ours, a plain DataLoader works."""
    windows = _windows(20, 2, 1, (3, 1))
    expected = windows.__getitems__([0, 1, 2, 3])
    stacked = default_collate([windows[index] for index in range(4)])
    assert _equal(expected, Batch(*stacked))
    assert _equal(expected, collate([windows[index] for index in range(4)]))
    assert _equal(expected, next(iter(DataLoader(windows, batch_size=4, collate_fn=collate))))


def test_formats_are_turned_into_each_other() -> None:
    """A dict of detectors and the centralized batch hold the same numbers, in any order of detectors."""
    windows = _windows(20, 3, 2, (3, 1))
    batch = replace(windows.__getitems__([4, 0]), positions_xy=torch.tensor([[0.0, 1], [2, 3], [4, 5]]))
    split = batch.distributed(windows.vdids)
    assert ["d0", "d1", "d2"] == list(split.features)
    assert torch.equal(batch.features[:, :, 1], split.features["d1"])
    assert torch.equal(batch.mask[:, :, 2], split.mask["d2"])
    assert split.features["d1"].is_contiguous()
    joined = split.centralized(windows.vdids)
    assert _equal(batch, joined)
    assert torch.equal(batch.positions_xy, joined.positions_xy)
    turned = split.centralized(("d2", "d0", "d1"))
    assert torch.equal(batch.targets[:, :, [2, 0, 1]], turned.targets)
    slow = collate_detectors([windows[4], windows[0]], windows.vdids)
    assert _equal(batch, slow.centralized(windows.vdids))
    assert slow.centralized(windows.vdids).positions_xy is None


def test_prepared_windows_are_shared_and_not_copied_to_workers() -> None:
    """Sent to another process by any start method, the values travel as a handle of a few bytes."""
    prepared = prepare(DataConfig(), generate(SyntheticOptions(detectors=200, steps=2000, missing_share=0.1)))
    series = prepared.train.series
    assert all(tensor.is_shared() for tensor in series._tensors().values())
    sent = bytes(ForkingPickler.dumps(series))
    assert len(sent) < series.nbytes / 20
    received = pickle.loads(sent)
    assert torch.equal(series.values, received.values)
    received.values[0, 0, 0] = 1234.5
    assert series.values[0, 0, 0] == 1234.5


def _private_bytes(pid: int) -> int:
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Private_"))


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/smaps_rollup").exists(), reason="needs Linux to tell private memory")
@pytest.mark.parametrize("storage", ["shared", "memmap"])
def test_workers_hold_no_copy_of_the_data(tmp_path: Path, storage: str) -> None:
    """After reading everything, no worker's own memory holds even half of the set, however many there are."""
    times = np.datetime64("2020-01-01", "s") + np.arange(60_000) * np.timedelta64(300, "s")
    speeds = np.full((60_000, 600, 1), 60.0, dtype=np.float32)
    speeds[::2] = 50.0
    traffic = TrafficSet(speeds, times, tuple(map(str, range(600))), ("speed",))
    cfg = DataConfig(storage=storage, cache_dir=str(tmp_path), split=SplitConfig(1, 0, 0), stride=15)
    windows = prepare(cfg, traffic).train
    loader = build_loader(windows, LoaderConfig(batch_size=16, num_workers=2), shuffle=False, seed=0)
    for _ in loader:
        pass
    workers = [worker.pid for worker in loader._by_workers._iterator._workers]
    assert 2 == len(workers)
    for pid in workers:
        assert _private_bytes(pid) < windows.series.nbytes / 2
    loader.close()


def test_shared_memory_that_is_too_small_is_refused_before_the_kernel_kills(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Containers give 64 MB by default; the message says how to get more or do without."""
    monkeypatch.setattr(series_module.shutil, "disk_usage", lambda _: type("Usage", (), {"free": 10}))
    with pytest.raises(InputError, match=r"10 are free; enlarge .* or set data.storage: memmap"):
        prepare(DataConfig(), generate(SyntheticOptions(detectors=2, steps=200)))


def test_a_file_left_on_disk_is_opened_once_in_each_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reading windows from the file opens it once here and once in each worker, not once per window."""
    cfg = DataConfig(storage="file", cache_dir=str(tmp_path / "kept"), split=SplitConfig(1, 0, 0))
    windows = prepare(cfg, generate(SyntheticOptions(detectors=3, steps=300))).train
    log = tmp_path / "opened"
    real = h5py.File

    def counted(*args: object, **options: object) -> h5py.File:
        with log.open("a") as file:
            file.write(f"{os.getpid()}\n")
        return real(*args, **options)

    monkeypatch.setattr(h5py, "File", counted)
    here = [
        batch.features for batch in build_loader(windows, LoaderConfig(num_workers=0), shuffle=False, seed=0)
    ]
    loader = build_loader(windows, LoaderConfig(num_workers=2), shuffle=False, seed=0)
    for expected, batch in zip(here, loader, strict=True):
        assert torch.equal(expected, batch.features)
    loader.close()
    opened = log.read_text().split()
    assert 3 == len(opened) == len(set(opened))
    assert str(os.getpid()) in opened
