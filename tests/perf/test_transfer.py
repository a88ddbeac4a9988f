"""Contracts of the way to the device: pinned (O11), non-blocking (O12), resident (O24), steady (O26)."""

import dataclasses
from typing import NamedTuple

import torch

from social_xlstm.config import LoaderConfig
from social_xlstm.data.loader import build_loader
from social_xlstm.data.windows import Batch
from social_xlstm.train.transfer import move_to_device
from tests.perf.contract import contract
from tests.perf.feeding import AsConfigured, prepared
from tests.perf.steadiness import period, swing
from tests.perf.subject import Size, a_batch, training

WIDE = Size(windows=64, detectors=325)  # 1.2 MB: a batch of the documents' size


@contract("O11", "gpu")
def test_pinned_batches_cross_the_bus_faster(case):
    """From pinned memory a batch comes in fewer milliseconds, and the host goes on meanwhile."""
    pageable = a_batch(WIDE)
    pinned = pageable.pin_memory()
    size = sum(values.nbytes for values in (pageable.features, pageable.targets, pageable.mask))

    def used(batch: Batch) -> torch.Tensor:
        moved = move_to_device(batch, case.device)
        return moved.features.sum() + moved.targets.sum() + moved.mask.sum()

    reading = case.compare(
        without=lambda: used(pageable), with_=lambda: used(pinned), samples=WIDE.windows, result=lambda x: x
    )
    rates = [size / one.step_seconds / 1e9 for one in (reading.without, reading)]
    case.tell(f"{rates[0]:.1f} → {rates[1]:.1f} GB/s")


class Pair(NamedTuple):
    """A namedtuple, which a naive mover would turn into a tuple or break."""

    left: torch.Tensor
    right: torch.Tensor


@dataclasses.dataclass(frozen=True)
class Labelled:
    """A frozen dataclass with something that is no tensor."""

    name: str
    values: dict[str, Pair]


@contract("O12", "gpu")
def test_a_nested_batch_moves_without_making_the_host_wait(case):
    """Tensors in any container go to the device without a blocking copy, and the containers survive."""
    tensors = [torch.full((256, 256), float(i)).pin_memory() for i in range(2)]
    batch = [Labelled("kept", {"inner": Pair(*tensors)}), "text", None]

    def moved(non_blocking: bool) -> torch.Tensor:
        labelled, text, nothing = move_to_device(batch, case.device, non_blocking=non_blocking)
        assert ("kept", "text", None) == (labelled.name, text, nothing)
        assert isinstance(labelled.values["inner"], Pair)
        return labelled.values["inner"].left.sum() + labelled.values["inner"].right.sum()

    case.compare(without=lambda: moved(False), with_=lambda: moved(True), result=lambda total: total)


@contract("O24", "gpu")
def test_resident_data_never_crosses_the_bus(case):
    """Windows gathered on the device need no transfer: zero bytes a step, and the same losses."""
    size = case.size("resident")
    windows = prepared(detectors=size.detectors).train

    def fed(*, resident: bool):
        trained = training(case.device, size)
        config = LoaderConfig(batch_size=size.windows, num_workers=0, resident=resident)
        batches = build_loader(windows, config, device=case.device, shuffle=True, seed=0)
        given = (batch for epoch in range(1000) for batch in batches)
        return lambda: trained.on(next(given))

    case.compare(
        without=fed(resident=False),
        with_=fed(resident=True),
        samples=size.windows,
        result=lambda loss: loss,
    )


@contract("O26", "model")
def test_workers_that_stay_keep_the_utilization_steady(case):
    """Workers started anew at every epoch let the card idle each time; those that stay do not."""
    size = Size(windows=48, detectors=16, width=128, blocks=1, slstm_at=())
    trained = training(case.device, size)
    batches = [a_batch(size)]

    def seen(*, persistent: bool, name: str):
        config = LoaderConfig(num_workers=4, prefetch_factor=4, persistent_workers=persistent)
        return case.perf.loop(
            AsConfigured(batches, config, epoch=150), trained.on, modelled_batch_time="20 ms", name=name
        )

    before = seen(persistent=False, name="without")
    after = seen(persistent=case.optimized(True, False), name="with")
    swings, repeats = [swing(one) for one in (before, after)], period(before)
    case.tell(f"swing {swings[0]:.0%} → {swings[1]:.0%}")
    case.tell(f"utilization {before.utilization:.0%} → {after.utilization:.0%}")
    case.tell("no period" if repeats is None else f"period {repeats:.1f} s before")
    most = case.limits["swing"]
    case.require(
        [f"the swing is {swings[1]:.0%}, above the {most:.0%} expected by the table"] * (swings[1] > most)
    )
