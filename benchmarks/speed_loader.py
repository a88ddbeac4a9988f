"""How fast batches come, beside the dict of detectors and a plain copy, and what workers cost in memory."""

import statistics
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import psutil
import torch

from benchmarks.interleaved import Row, Work, at_least, at_most, compare
from social_xlstm.config import DataConfig, LoaderConfig, SplitConfig
from social_xlstm.data.loader import build_loader
from social_xlstm.data.prepare import prepare
from social_xlstm.data.sets import TrafficSet
from social_xlstm.data.windows import Batch, Windows, collate_detectors
from social_xlstm.train.transfer import move_to_device

DETECTORS, FEATURES, BATCH = 325, 3, 64
LARGE_BYTES = 2**30


def rows(*, quick: bool, memory: bool) -> Iterator[Row]:
    """Measure line by line."""
    pairs = 15 if quick else 41
    windows = _windows(steps=2000)
    order = np.random.default_rng(0).permutation(len(windows))[:BATCH]

    def centralized() -> Batch:
        return windows.gather(order)

    def as_dicts() -> Any:
        return collate_detectors([windows[index] for index in order], windows.vdids)

    batch = centralized()
    tensors = [batch.features, batch.targets, batch.mask]

    def copies() -> list[torch.Tensor]:
        return [tensor.clone() for tensor in tensors]

    yield at_least(
        "centralized batch against a dict of detectors, collated sample by sample",
        20.0,
        compare(as_dicts, centralized, pairs=5, repeat_second=20),
    )
    yield at_most(
        "centralized batch against a plain copy of the same bytes",
        2.0,
        compare(centralized, copies, pairs=pairs, repeat_first=10, repeat_second=10),
    )
    yield from _resident(windows, pairs)
    if memory:
        yield _memory()


def _resident(windows: Windows, pairs: int) -> Iterator[Row]:
    config = LoaderConfig(batch_size=BATCH, num_workers=0)
    epochs: list[Work] = []
    moved: list[int] = []
    for resident in (False, True):
        chosen = LoaderConfig(**{**vars(config), "resident": resident})
        loader = build_loader(windows, chosen, device="cpu", shuffle=True, seed=0)
        before = next(iter(loader))
        after = move_to_device(before, torch.device("cpu"))
        moved.append(0 if after.features.data_ptr() == before.features.data_ptr() else BATCH)
        epochs.append(lambda loader=loader: [None for _ in loader])
    yield at_least(
        "centralized loader against the resident one, an epoch (on a CPU both read the same memory)",
        0.95,
        compare(*epochs, pairs=pairs),
    )
    yield Row("bytes a resident batch still has to move", "0", moved[1] == 0, str(moved[1]))


def _windows(steps: int) -> Windows:
    rng = np.random.default_rng(0)
    features = rng.uniform(20, 70, (steps, DETECTORS, FEATURES)).astype(np.float32)
    stamps = np.datetime64("2026-01-01T00:00:00", "s") + np.arange(steps) * np.timedelta64(300, "s")
    traffic = TrafficSet(
        features=features,
        timestamps=stamps,
        vdids=tuple(f"VD{index:03d}" for index in range(DETECTORS)),
        feature_names=("speed", "flow", "occupancy"),
    )
    split = SplitConfig(train=0.98, val=0.01, test=0.01)
    return prepare(DataConfig(split=split, normalize="none"), traffic).train


def _memory() -> Row:
    """Compare the memory of a process and its workers, shared pages divided among those who share them."""
    alone, with_workers = (
        int(subprocess.check_output([sys.executable, "-m", "benchmarks.speed_loader", str(workers)]))
        for workers in (0, 4)
    )
    ratio = with_workers / alone
    figure = f"{ratio:.2f}× ({with_workers / 2**20:.0f} MB against {alone / 2**20:.0f} MB)"
    return Row("host memory with 4 workers against none, data of 1 GB", "< 1.2×", ratio < 1.2, figure)


def _peak_bytes(workers: int) -> int:
    """Load until nearly every page was read; return the median of the last looks."""
    windows = _windows(steps=LARGE_BYTES // (4 * DETECTORS * FEATURES))
    config = LoaderConfig(batch_size=BATCH, num_workers=workers)
    loader = build_loader(windows, config, device="cpu", shuffle=True, seed=0)
    seen = []
    for index, _ in enumerate(loader):
        if index % 100 == 50:
            seen.append(_family_bytes())
        if index == 1050:
            break
    loader.close()
    return int(statistics.median(seen[-5:]))


def _family_bytes() -> int:
    family = [psutil.Process(), *psutil.Process().children(recursive=True)]
    return sum(member.memory_full_info().pss for member in family)


if __name__ == "__main__":
    print(_peak_bytes(int(sys.argv[1])))
