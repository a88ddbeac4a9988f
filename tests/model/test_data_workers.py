"""The number of workers: as few as keep up, never more than help, refused where it is absurd."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from social_xlstm.config import DataConfig
from social_xlstm.data import loader, workers
from social_xlstm.data.loader import EpochOrder
from social_xlstm.data.prepare import Prepared, prepare
from social_xlstm.data.synthetic import SyntheticOptions, generate
from social_xlstm.errors import InputError


@pytest.fixture(scope="module")
def prepared() -> Prepared:
    """Prepare a small set."""
    return prepare(DataConfig(), generate(SyntheticOptions(detectors=5, steps=600, missing_share=0)))


@pytest.mark.parametrize(
    ("loader_seconds", "step_seconds", "cores", "chosen"),
    [
        (0.0002, 0.010, 8, 0),  # 2 % of the step: not worth a process
        (0.0005, 0.010, 8, 0),  # exactly 5 %
        (0.0009, 0.002, 8, 0),  # the handover would cost as much
        (0.0011, 0.010, 8, 1),
        (0.008, 0.010, 8, 1),  # one worker is just fast enough, with its quarter of headroom
        (0.009, 0.010, 8, 2),
        (0.050, 0.010, 8, 7),
        (0.500, 0.010, 8, 8),  # all cores, and no more
        (0.500, 0.010, 2, 2),
        (9.0, 0.010, 128, 32),
        (0.0, 1.0, 1, 0),
    ],
)
def test_the_fewest_workers_that_keep_up(
    loader_seconds: float, step_seconds: float, cores: int, chosen: int
) -> None:
    """Loading in between is best while it is 5 % of the step or costs less than the handover."""
    assert chosen == workers.choose_num_workers(loader_seconds, step_seconds, cores=cores)


@given(st.floats(0, 10), st.floats(1e-4, 10), st.integers(1, 256))
def test_the_choice_is_always_allowed_and_never_more_than_the_cores(
    load: float, step: float, cores: int
) -> None:
    """What auto chooses passes the check of explicit numbers; slower loading never chooses fewer."""
    chosen = workers.choose_num_workers(load, step, cores=cores)
    assert 0 <= workers.check_num_workers(chosen, cores) <= cores
    assert chosen <= workers.choose_num_workers(load * 2, step, cores=cores)


@pytest.mark.parametrize(
    ("cores", "most"), [(1, 8), (2, 8), (8, 8), (9, 9), (20, 20), (32, 32), (64, 32), (256, 32)]
)
def test_numbers_beyond_the_useful_range_are_refused(cores: int, most: int) -> None:
    """The largest useful number passes, one more is refused, and 40 is refused on every machine."""
    assert most == workers.check_num_workers(most, cores)
    for number in (most + 1, 40):
        with pytest.raises(
            InputError, match=f"num_workers is {number}, but more than {most} workers on {cores} cores"
        ):
            workers.check_num_workers(number, cores)


def test_times_that_were_not_measured_are_refused() -> None:
    """A step takes time."""
    with pytest.raises(InputError, match="give measured, positive times"):
        workers.choose_num_workers(0.1, 0.0, cores=2)


@pytest.mark.parametrize(
    ("batch_size", "on_accelerator", "step_seconds", "measured", "chosen"),
    [
        (8, False, None, None, 0),  # on CPU a worker would take a core from the model
        (8, True, None, None, 0),  # a few kilobytes are gathered faster than handed over
        (8, True, 0.010, 0.020, 3),  # measured: loading takes twice the step
        (8, True, 0.010, 0.001, 0),
        (64, True, 0.010, 0.020, 0),  # six batches: workers would start longer than they load
    ],
)
def test_auto_decides_by_rule_or_by_measurement(
    prepared: Prepared,
    monkeypatch: pytest.MonkeyPatch,
    batch_size: int,
    on_accelerator: bool,
    step_seconds: float | None,
    measured: float | None,
    chosen: int,
) -> None:
    """With a known step time loading is measured; without, it is estimated from the bytes of a batch."""
    monkeypatch.setattr(loader, "measure_loader_seconds", lambda *_: measured)
    order = EpochOrder(len(prepared.train), batch_size, True, 0, True)
    assert chosen == loader.auto_num_workers(
        prepared.train,
        order,
        "centralized",
        on_accelerator=on_accelerator,
        cores=8,
        step_seconds=step_seconds,
    )


def test_the_estimate_grows_with_what_makes_loading_slow(prepared: Prepared) -> None:
    """Larger batches, a dict of detectors and a file on disk are expected to take longer."""
    small = workers.estimate_loader_seconds(prepared.train, 8, "centralized")
    assert small < workers.estimate_loader_seconds(prepared.train, 16, "centralized")
    assert small < workers.estimate_loader_seconds(prepared.train, 8, "distributed")


def test_loading_is_measured_after_a_warm_up(prepared: Prepared, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first batch is not counted, and the median of the others is given."""
    clock = iter(np.cumsum([0, 9, 1, 0.5, 1, 0.1, 1, 0.2, 1, 0.3, 1, 7.0]))
    monkeypatch.setattr(workers.time, "perf_counter", lambda: next(clock))
    assert 0.3 == round(workers.measure_loader_seconds(prepared.train, 4), 6)


@pytest.mark.parametrize(
    ("num_workers", "prefetch", "expected"),
    [(8, 4, 8 * 4 * 64 * 1000), (2, 2, 2 * 2 * 64 * 1000), (0, None, 64 * 1000)],
)
def test_host_memory_is_workers_by_prefetch_by_batch_by_sample(
    num_workers: int, prefetch: int, expected: int
) -> None:
    """The formula of the documents, and one batch where nothing is fetched ahead."""
    assert expected == workers.host_memory_bytes(num_workers, prefetch, 64, 1000)


def test_cores_are_shared_by_the_processes_of_a_training(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of four processes on eight cores has two, and there is always one."""
    monkeypatch.setattr(workers.os, "sched_getaffinity", lambda _: range(8), raising=False)
    monkeypatch.setattr(workers.Path, "read_text", lambda _: "max 100000")
    assert [8, 2, 1] == [workers.usable_cores(size) for size in (1, 4, 16)]
    monkeypatch.setattr(workers.Path, "read_text", lambda _: "150000 100000")
    assert 2 == workers.usable_cores()
