"""The loader: the same batches whichever way they are loaded, exact resume, and switches that speak up."""

import threading
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.data import get_worker_info

from social_xlstm.config import DataConfig, LoaderConfig
from social_xlstm.data import loader as loader_module
from social_xlstm.data import series as series_module
from social_xlstm.data.loader import Loader, LoaderState, build_loader
from social_xlstm.data.prepare import Prepared, prepare
from social_xlstm.data.synthetic import SyntheticOptions, generate
from social_xlstm.data.windows import Batch, DetectorBatch, Windows
from social_xlstm.errors import InputError


@pytest.fixture(scope="module")
def prepared() -> Prepared:
    """Prepare a small set with gaps."""
    return prepare(DataConfig(), generate(SyntheticOptions(detectors=5, steps=600, missing_share=0.1)))


def _loader(windows: Windows, *, batch_format: str = "centralized", **switches: Any) -> Loader:
    cfg = LoaderConfig(**{"batch_size": 32, "num_workers": 0, **switches})
    return build_loader(windows, cfg, device="cpu", shuffle=True, seed=5, batch_format=batch_format)


def _numbers(batches: Any) -> list[list[torch.Tensor]]:
    return [[batch.features.clone(), batch.targets.clone(), batch.mask.clone()] for batch in batches]


def _same(one: list, two: list) -> bool:
    return len(one) == len(two) and all(
        torch.equal(a, b)
        for left, right in zip(one, two, strict=True)
        for a, b in zip(left, right, strict=True)
    )


@pytest.mark.parametrize(
    "switches",
    [
        {"num_workers": 1},
        {"num_workers": 2, "prefetch_factor": 4},
        {"num_workers": 2, "persistent_workers": False},
        {"resident": True, "num_workers": "auto"},
        {"num_workers": "auto"},
        {"num_workers": "auto", "prefetch_factor": 4},
    ],
)
def test_every_way_of_loading_gives_the_same_batches(prepared: Prepared, switches: dict) -> None:
    """Workers, prefetching and resident data change the speed and not one number, over two epochs."""
    plain, other = _loader(prepared.train), _loader(prepared.train, **switches)
    for epoch in range(2):
        plain.set_epoch(epoch)
        other.set_epoch(epoch)
        assert _same(_numbers(plain), _numbers(other))
    other.close()


def test_more_workers_than_cores_are_no_reason_to_warn(
    prepared: Prepared, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Up to eight workers are allowed on any machine, and torch's own warning about them is not shown."""
    monkeypatch.setattr(torch.utils.data.dataloader.os, "sched_getaffinity", lambda _: {0}, raising=False)
    loader = _loader(prepared.train, num_workers=3)
    assert len(loader) == len(list(loader))
    loader.close()


def test_batches_come_with_positions(prepared: Prepared) -> None:
    """Positions are given once per set and accompany every batch, in either format."""
    for batch in _loader(prepared.train):
        assert torch.equal(prepared.positions_xy, batch.positions_xy)
    split = next(iter(_loader(prepared.train, batch_format="distributed")))
    assert torch.equal(prepared.positions_xy[3], split.positions_xy[prepared.vdids[3]])
    assert next(iter(_loader(replace(prepared.train, positions_xy=None)))).positions_xy is None


@pytest.mark.parametrize("num_workers", [0, 1])
def test_the_distributed_format_holds_the_same_numbers(prepared: Prepared, num_workers: int) -> None:
    """A dict of detectors joined again is the centralized batch."""
    plain = _loader(prepared.train)
    split = _loader(prepared.train, batch_format="distributed", num_workers=num_workers)
    for batch, parts in zip(plain, split, strict=True):
        assert isinstance(batch, Batch)
        assert isinstance(parts, DetectorBatch)
        assert prepared.vdids == tuple(parts.features)
        assert _same(_numbers([batch]), _numbers([parts.centralized(prepared.vdids)]))
    split.close()


def test_epochs_are_shuffled_anew_and_repeatably(prepared: Prepared) -> None:
    """An epoch's order depends on its number; iterating twice without a new number repeats it."""
    loader = _loader(prepared.train)
    first = _numbers(loader)
    assert _same(first, _numbers(loader))
    loader.set_epoch(1)
    assert not _same(first, _numbers(loader))
    loader.set_epoch(0)
    assert _same(first, _numbers(loader))


@pytest.mark.parametrize(
    "switches", [{}, {"num_workers": 2}, {"num_workers": 1, "persistent_workers": False}, {"resident": True}]
)
def test_a_training_resumes_in_the_middle_of_an_epoch(prepared: Prepared, switches: dict) -> None:
    """Set to the state another was stopped in, a loader gives the rest of the epoch and then the next."""
    whole = _loader(prepared.train)
    whole.set_epoch(3)
    expected = _numbers(whole)
    stopped = _loader(prepared.train, **switches)
    stopped.set_epoch(3)
    for taken, _ in enumerate(stopped, start=1):
        if taken == 4:
            break
    assert LoaderState(epoch=3, batch=4) == stopped.state
    resumed = _loader(prepared.train, **switches)
    for loader in (resumed, stopped):
        loader.set_epoch(3, start_batch=4)
        assert LoaderState(3, 4) == loader.state
        assert _same(expected[4:], _numbers(loader))
        assert len(whole) == len(loader)
        assert _same(expected, _numbers(loader))  # the next iteration is whole again
        loader.set_epoch(4)
        assert len(whole) == len(_numbers(loader))
        loader.close()


def test_positions_that_do_not_exist_are_refused(prepared: Prepared) -> None:
    """An epoch is entered between its first batch and its end."""
    loader = _loader(prepared.train)
    loader.set_epoch(0, start_batch=len(loader))
    assert [] == list(loader)
    for epoch, start in ((-1, 0), (0, -1), (0, len(loader) + 1)):
        with pytest.raises(InputError, match="does not exist"):
            loader.set_epoch(epoch, start)


@pytest.mark.parametrize("num_workers", [0, 1])
def test_loading_leaves_the_training_random_numbers_alone(prepared: Prepared, num_workers: int) -> None:
    """Starting workers and shuffling do not move torch's or numpy's global generators."""
    torch.manual_seed(0)
    before, numbers = torch.get_rng_state(), np.random.get_state()[1].copy()
    loader = _loader(prepared.train, num_workers=num_workers)
    assert len(list(loader)) == len(loader)
    loader.close()
    assert torch.equal(before, torch.get_rng_state())
    np.testing.assert_array_equal(numbers, np.random.get_state()[1])


def test_the_last_batch_is_dropped_or_short(prepared: Prepared) -> None:
    """drop_last keeps shapes constant; without it every window comes, the rest in a shorter batch."""
    windows = len(prepared.train)
    assert {32} == {len(batch.features) for batch in _loader(prepared.train)}
    sizes = [len(batch.features) for batch in _loader(prepared.train, drop_last=False)]
    assert (windows, windows % 32) == (sum(sizes), sizes[-1])


def test_processes_get_different_windows_and_equally_many(prepared: Prepared) -> None:
    """Each process has its own share; together they are one process's batches."""
    cfg = LoaderConfig(batch_size=8, num_workers=0)
    parts = [
        build_loader(prepared.train, cfg, shuffle=True, seed=5, rank=rank, world_size=2) for rank in range(2)
    ]
    whole = build_loader(prepared.train, replace(cfg, batch_size=16), shuffle=True, seed=5)
    assert len(whole) == len(parts[0]) == len(parts[1])
    joined = torch.cat([batch.features for part in parts for batch in part]).flatten(1).sum(1).sort().values
    assert torch.equal(torch.cat([batch.features for batch in whole]).flatten(1).sum(1).sort().values, joined)


def test_switches_without_workers_are_off(prepared: Prepared) -> None:
    """Nothing is fetched ahead, kept, pinned or timed where there is no worker and no accelerator."""
    loader = _loader(prepared.train, pin_memory=True, persistent_workers=True, timeout=5.0)
    found = (loader.batch_size, loader.num_workers, loader.prefetch_factor, loader.persistent_workers)
    assert (32, 0, None, False) == found
    assert (False, 0.0) == (loader.pin_memory, loader.timeout)
    assert 32 == len(next(iter(loader)).features)


def test_switches_with_workers_are_on(prepared: Prepared) -> None:
    """With workers the defaults of torch are made visible, and an accelerator is pinned for."""
    loader = _loader(prepared.train, num_workers=2, timeout=5.0)
    assert (2, 2, True, 5.0) == (
        loader.num_workers,
        loader.prefetch_factor,
        loader.persistent_workers,
        loader.timeout,
    )
    assert 2 * 2 * 32 * prepared.train.sample_bytes == loader.host_memory_bytes
    pinned = Loader(
        replace(prepared.train, positions_xy=None), loader.order, LoaderConfig(),
        device=torch.device("cuda"), num_workers=0, batch_format="centralized",
    )  # fmt: skip
    assert pinned.pin_memory


@pytest.mark.parametrize(
    ("switches", "words"),
    [
        ({"num_workers": 0, "prefetch_factor": 2}, "prefetch_factor is 2 with num_workers 0"),
        ({"num_workers": 1, "prefetch_factor": 0}, "prefetch_factor is 0"),
        ({"num_workers": 40}, "num_workers is 40.*use auto"),
        ({"num_workers": -1}, "num_workers is -1"),
        ({"timeout": -1.0}, "timeout is -1"),
        ({"resident": True, "num_workers": 2}, "2 workers have nothing to load"),
        ({"batch_size": 0}, "batch_size is 0"),
        ({"batch_size": 10_000}, "do not fill one batch of 10000"),
    ],
)
def test_switches_that_contradict_are_refused(prepared: Prepared, switches: dict, words: str) -> None:
    """Each wrong switch is named with what to set instead."""
    with pytest.raises(InputError, match=words):
        _loader(prepared.train, **switches)
    with pytest.raises(InputError, match="choose centralized or distributed"):
        _loader(prepared.train, batch_format="scattered")


def test_batches_in_flight_must_fit_into_shared_memory(
    prepared: Prepared, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Workers that would fill the shared memory are refused before they start."""
    monkeypatch.setattr(series_module.shutil, "disk_usage", lambda _: type("Usage", (), {"free": 1000}))
    with pytest.raises(InputError, match="batches in flight need"):
        _loader(prepared.train, num_workers=2)


@dataclass(frozen=True, eq=False)
class _Hanging(Windows):
    """Windows that never come out of a worker."""

    def gather(self, *arguments: Any, **options: Any) -> Batch:
        if get_worker_info() is not None:
            threading.Event().wait()
        return super().gather(*arguments, **options)


@dataclass(frozen=True, eq=False)
class _Broken(Windows):
    """Windows whose data turns out to be unusable."""

    def gather(self, *arguments: Any, **options: Any) -> Batch:
        raise InputError("the data is gone; copy it again")


def _as(kind: type[Windows], windows: Windows) -> Windows:
    fields = {name: value for name, value in vars(windows).items() if name != "starts"}
    return kind(**fields)


def test_a_hung_worker_ends_in_an_error_that_names_the_timeout(
    prepared: Prepared, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker that never answers is ended, and the message says which setting gave up and what to try."""
    monkeypatch.setattr(
        torch.utils.data._utils, "MP_STATUS_CHECK_INTERVAL", 0.2
    )  # how long torch waits for it
    loader = _loader(_as(_Hanging, prepared.train), num_workers=1, timeout=0.5)
    with pytest.raises(TimeoutError, match=r"data\.loader\.timeout = 0\.5 s.*num_workers 0") as hung:
        next(iter(loader))
    assert hung.value.__traceback__ is not None  # kept, and with it all that its frames refer to
    assert [] == [child for child in torch.multiprocessing.active_children() if child.is_alive()]


def test_errors_in_workers_keep_their_kind(prepared: Prepared) -> None:
    """An InputError raised in a worker arrives as one."""
    loader = _loader(_as(_Broken, prepared.train), num_workers=1)
    with pytest.raises(InputError, match="the data is gone"):
        next(iter(loader))
    loader.close()


class _Copies(TorchDispatchMode):
    """Count the bytes copied from the host to the device."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if isinstance(result, torch.Tensor) and result.device.type == "meta":
            from_host = [a for a in args if isinstance(a, torch.Tensor) and a.device.type == "cpu"]
            self.bytes += sum(tensor.nbytes for tensor in from_host)
        return result


@pytest.mark.slow
def test_resident_data_is_not_copied_per_step(prepared: Prepared) -> None:
    """After the epoch's window starts, not one byte goes from host to device; without resident all would."""
    cfg = LoaderConfig(batch_size=32, resident=True)
    with _Copies() as copies:
        loader = build_loader(prepared.train, cfg, device="meta", shuffle=True, seed=0)
        data_bytes = prepared.train.series.nbytes + prepared.positions_xy.nbytes
        assert data_bytes == copies.bytes
        batches = iter(loader)
        batch = next(batches)
        assert data_bytes + len(loader) * 32 * 8 == copies.bytes
        assert "meta" == batch.features.device.type == batch.positions_xy.device.type
        assert len(loader) - 1 == sum(1 for _ in batches)
        assert data_bytes + len(loader) * 32 * 8 == copies.bytes


def test_measured_workers_follow_the_step_time(prepared: Prepared, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the step's time known, auto compares it with what loading takes."""
    seen = {}

    def choose(windows: Windows, order: object, batch_format: str, **known: object) -> int:
        seen.update(known)
        return 1

    monkeypatch.setattr(loader_module, "auto_num_workers", choose)
    cfg = LoaderConfig(batch_size=8)
    loader = build_loader(prepared.train, cfg, shuffle=True, seed=0, step_seconds=0.25)
    assert (1, 0.25, False) == (loader.num_workers, seen["step_seconds"], seen["on_accelerator"])
