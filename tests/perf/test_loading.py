"""Contracts of loading: collate (O5), workers (O8–O10), shapes and hangs (O13), cached data (O23)."""

from dataclasses import replace

import pytest
import torch

from social_xlstm.config import LoaderConfig
from social_xlstm.data.loader import build_loader
from social_xlstm.data.series import Series
from social_xlstm.data.windows import collate_detectors
from social_xlstm.data.workers import choose_num_workers, host_memory_bytes
from social_xlstm.errors import InputError
from tests.perf.contract import contract
from tests.perf.feeding import (
    AsConfigured,
    CopiedSeries,
    large_windows,
    loader,
    prepared,
    private_bytes,
    slowed,
)
from tests.perf.subject import Size, a_batch, training

SMALL = Size(windows=4, detectors=8, blocks=1, slstm_at=())  # a step of a few milliseconds


@contract("O5", "cpu")
def test_one_gather_beats_a_dict_of_detectors(case):
    """A batch copied in one pass comes many times faster than one stacked detector by detector."""
    windows = prepared(detectors=100).train
    chosen = list(range(0, 160, 10))

    def by_detector():
        return collate_detectors([windows[index] for index in chosen], windows.vdids)

    def at_once():
        return windows.__getitems__(chosen)

    def total(batch):
        values = batch.features
        return sum(part.sum() for part in values.values()) if isinstance(values, dict) else values.sum()

    case.compare(without=by_detector, with_=at_once, samples=len(chosen), result=total)


@contract("O8", "cpu")
def test_automatic_workers_keep_a_slow_disk_from_starving_the_step(case):
    """Chosen by measurement, workers hide a loader as slow as the step; forty of them are refused."""
    trained = training(case.device, Size())
    seconds = trained.step_seconds()
    windows = slowed(prepared(detectors=24).train, seconds=seconds)
    chosen = loader(windows, batch_size=4, num_workers=case.optimized("auto", 0), step_seconds=seconds)
    case.loops(without=loader(windows, batch_size=4, num_workers=0), with_=chosen, step=trained.on)
    case.tell(f"chose {chosen.num_workers}")
    with pytest.raises(InputError, match=r"num_workers is 40, but more than .* only compete"):
        loader(windows, batch_size=4, num_workers=40)


@contract("O8", "model")
def test_automatic_workers_are_within_a_tenth_of_the_best(case):
    """Against every number of workers, the choice from loading and step time loses at most a tenth."""
    trained = training(case.device, SMALL)
    batches = [a_batch(SMALL)]
    step_seconds = case.perf(trained.step, samples_per_step=4, name="step alone").step_seconds
    speeds = {}
    for cost in (0.2, 3.5):  # of a step's time
        chosen = choose_num_workers(cost * step_seconds, step_seconds, cores=20)
        chosen = case.optimized(chosen, 0)
        for workers in sorted({0, 1, 2, 4, 8, chosen}):
            config = LoaderConfig(num_workers=workers)
            reading = case.perf.loop(
                AsConfigured(batches, config, epoch=50),
                trained.on,
                modelled_batch_time=cost * step_seconds,
                name=f"{cost:g} steps a batch, {workers} workers",
            )
            speeds[cost, workers] = reading.samples_per_s
        best = max(speed for (c, _), speed in speeds.items() if c == cost)
        share = speeds[cost, chosen] / best
        case.tell(f"{chosen} workers for {cost:g}: {share:.2f} of the best")
        case.require([_behind(cost, chosen, share, case.limits["share_of_best"])])


def _behind(cost: float, chosen: int, share: float, least: float) -> str:
    what = f"{chosen} workers for a batch that costs {cost:g} steps reach {share:.2f} of the best speed"
    return "" if share >= least else f"{what}, below the {least:g} expected by the table"


@contract("O9", "cpu")
def test_prefetching_bridges_a_loader_that_stalls_now_and_then(case):
    """Eight batches ahead hide every eighth batch's stall, one does not; host memory is the formula's."""
    trained = training(case.device, Size())
    # Six steps in every eight: more than one batch bridges, less than eight do, on any machine at any load.
    stall = 6 * trained.step_seconds()
    windows = slowed(prepared(detectors=24).train, burst_seconds=stall, batch_size=4)
    ahead = loader(windows, batch_size=4, num_workers=1, prefetch_factor=case.optimized(8, 1))
    short = loader(windows, batch_size=4, num_workers=1, prefetch_factor=1)
    case.loops(without=short, with_=ahead, step=trained.on)
    formula = host_memory_bytes(1, ahead.prefetch_factor, 4, windows.sample_bytes)
    assert formula == ahead.host_memory_bytes == ahead.prefetch_factor * 4 * windows.sample_bytes
    case.tell(f"host memory {short.host_memory_bytes / 1024:.0f} → {formula / 1024:.0f} KiB")


@contract("O10", "cpu")
def test_persistent_workers_start_the_next_epoch_at_once(case):
    """Workers that stay save their start at every epoch."""
    windows = prepared(detectors=8).train
    few = _first(windows, 64)
    anew = loader(few, batch_size=16, num_workers=2, persistent_workers=False)
    kept = loader(few, batch_size=16, num_workers=2, persistent_workers=True)
    case.compare(without=lambda: list(anew), with_=lambda: list(kept), samples=64)
    kept.close()


def _first(windows, count):
    """Keep the first windows only."""
    span = windows.sequence_length + windows.prediction_length - 1
    return replace(windows, timestamps=windows.timestamps[: count + span])


@contract("O13", "cpu")
def test_dropping_the_last_batch_keeps_one_shape_and_one_graph(case):
    """A ragged last batch is compiled for again; without it an epoch has one shape."""
    trained = training(case.device, Size(windows=16, detectors=2, width=8, blocks=1, slstm_at=()))
    windows = _first(prepared(detectors=2).train, 40)
    batches = loader(windows, batch_size=16, num_workers=0, drop_last=case.optimized(True, False))
    torch.compiler.reset()
    trained = trained.calling(torch.compile(trained.model, backend="eager", dynamic=False))
    before = _graphs()
    shapes = {tuple(batch.features.shape) for batch in batches}
    for batch in batches:
        trained.on(batch)
    graphs = _graphs() - before
    case.tell(f"{len(shapes)} shape, {graphs} graph")
    case.loop(batches, trained.on)
    torch.compiler.reset()
    most = case.limits["graphs"]
    case.require(
        [f"{graphs} graphs for {len(shapes)} shapes, above the {most} expected by the table"]
        * (graphs > most)
    )


def _graphs() -> int:
    import torch._dynamo

    return torch._dynamo.utils.counters["stats"]["unique_graphs"]


@contract("O13", "cpu")
def test_a_hung_worker_ends_in_a_clear_error(case):
    """With a timeout a worker that hangs is named; without one the training would stand still."""
    trained = training(case.device, SMALL)
    windows = prepared(detectors=8).train
    timeout = case.optimized(1.0, 0.0)
    hung = loader(slowed(windows, seconds=4.0), batch_size=4, num_workers=1, timeout=timeout)
    case.loop(loader(windows, batch_size=4, num_workers=1, timeout=timeout), trained.on)
    said = _said_by(hung)
    hung.close()
    case.tell(f"told after {timeout:g} s")
    case.require(
        [] if "a worker hangs: find where with num_workers 0" in said else [f"a hung worker said: {said}"]
    )


def _said_by(hung) -> str:
    """Return the error of a loader that waits too long, or that there was none."""
    try:
        next(iter(hung))
    except TimeoutError as error:
        return str(error)
    return "nothing, the loader waited for it"


@contract("O23", "cpu")
def test_mapped_data_beats_reading_the_file(case, tmp_path):
    """Prepared once and mapped, windows come many times faster than out of the HDF5 file."""
    in_file = prepared(detectors=32, storage="file", cache_dir=str(tmp_path / "file")).train
    mapped = prepared(detectors=32, storage="memmap", cache_dir=str(tmp_path / "memmap")).train
    chosen = list(range(0, 640, 40))
    case.compare(
        without=lambda: in_file.__getitems__(chosen),
        with_=lambda: mapped.__getitems__(chosen),
        samples=len(chosen),
        result=lambda batch: batch.features,
    )


@contract("O23", "cpu")
def test_workers_share_one_copy_of_the_data(case):
    """Four workers hold hardly more memory of their own than none of the data."""
    size = 96
    windows = large_windows(size, case.optimized(Series, CopiedSeries))
    batches = build_loader(
        windows, LoaderConfig(batch_size=16, num_workers=4, pin_memory=False), shuffle=False, seed=0
    )
    reading = case.loop(batches, lambda batch: batch.features.sum())
    workers = [worker.pid for worker in batches._by_workers._iterator._workers]
    own = max(private_bytes(pid) for pid in workers) / 2**20
    batches.close()
    assert reading.steps > len(workers), "not every worker has read yet"
    case.tell(f"a worker's own memory {own:.0f} MiB, the data {size} MiB")
    most = case.limits["own_mebibytes"]
    case.require(
        [f"a worker holds {own:.0f} MiB of its own, above the {most} expected by the table"] * (own > most)
    )
