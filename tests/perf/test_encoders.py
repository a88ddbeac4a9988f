"""Contracts of the model: how detectors are encoded (O1–O4), its cells (O20), its pooling (O21)."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from scripts.los_loop import Job, train
from social_xlstm.config import PoolingConfig
from social_xlstm.model.stacked import stack_weights
from tests.perf.contract import contract
from tests.perf.subject import load, total_gradient, training

DATA = Path(__file__).parents[3] / "shared" / "data"
SHORT = ("trainer.max_epochs=1", "trainer.limit_train_batches=60", "trainer.limit_val_batches=8")
PART = "stack.blocks.0.xlstm.proj_up.weight"  # a large weight deep inside an encoder


@contract("O1", "cpu", "gpu")
def test_shared_encoder_beats_the_per_detector_loop(case):
    """One encoder over all detectors computes what a loop of tied ones does, in fewer launches."""
    size = case.size("loop")
    loop = training(case.device, size, encoder="per_vd")
    shared = training(case.device, size)
    load(loop.model, shared.model)
    gradients = loop.gradients()
    case.agree(
        "the gradient of the tied encoders, added up,",
        shared.gradients()[f"encoder.encoder.{PART}"],
        total_gradient(gradients, PART, range(size.detectors)),
    )
    case.compare(without=loop.step, with_=shared.step, samples=size.windows, result=lambda loss: loss)


@contract("O2", "cpu")
def test_groups_of_detectors_beat_the_loop(case):
    """Detectors in groups of eight need fewer calls than one by one, though they are computed twice."""
    size = case.size("loop")
    loop = training(case.device, size, encoder="per_vd")
    grouped = training(case.device, size, encoder="grouped")
    load(loop.model, training(case.device, size).model)
    load(grouped.model, training(case.device, size).model)
    case.compare(without=loop.step, with_=grouped.step, samples=size.windows, result=lambda loss: loss)


@contract("O2", "gpu")
def test_groups_of_detectors_bound_the_memory(case):
    """Only one group's activations exist at a time, and the loss is that of all detectors at once."""
    size = case.size("groups")
    shared = training(case.device, size)
    grouped = training(case.device, size, encoder="grouped", group_size=-(-size.detectors // 5))
    case.compare(without=shared.step, with_=grouped.step, samples=size.windows, result=lambda loss: loss)


@contract("O3", "cpu", "gpu")
def test_own_heads_cost_nearly_nothing(case):
    """A head of its own for each detector keeps the shared encoder's speed and makes outputs independent."""
    size = case.size("heads")
    shared = training(case.device, size)
    heads = training(case.device, size, encoder="shared_heads")
    lost = case.if_sabotaged(lambda: training(case.device, size, encoder="per_vd").step)
    case.compare(without=shared.step, with_=heads.step, lost=lost, samples=size.windows)
    biases = heads.model.head.last.bias
    case.require(["all detectors share one head"] * (len(biases) != size.detectors))
    if not case.has_values:
        return
    with torch.no_grad():
        before = heads.model(heads.batch.features)
        biases[3].add_(1.0)
        moved = (heads.model(heads.batch.features) - before).abs().amax(dim=(0, 1, 3)) > 0.5
    assert [3] == moved.nonzero().flatten().tolist()


@contract("O4", "cpu", "gpu")
def test_stacked_weights_beat_the_loop_with_the_same_weights(case):
    """Independent weights run in the same launches for all detectors, with the loop's own numbers."""
    size = case.size("loop")
    loop = training(case.device, size, encoder="per_vd")
    stacked = training(case.device, size, encoder="stacked")
    stacked.model.encoder.load_state_dict(stack_weights(loop.model.encoder.state_dict()))
    rest = {k: v for k, v in loop.model.state_dict().items() if not k.startswith("encoder.")}
    stacked.model.load_state_dict(rest, strict=False)
    case.compare(without=loop.step, with_=stacked.step, samples=size.windows, result=lambda loss: loss)


@contract("O4", "gpu")
def test_stacked_launches_do_not_grow_with_the_detectors(case):
    """Twice the detectors need exactly as many launches."""
    size = case.size("growth")
    twice = replace(size, detectors=2 * size.detectors)
    few, many = (training(case.device, one, encoder="stacked") for one in (size, twice))
    lost = case.if_sabotaged(lambda: training(case.device, twice, encoder="per_vd").step)
    case.compare(without=few.step, with_=many.step, lost=lost, samples=size.windows)


@contract("O20", "cpu", "gpu")
def test_the_sync_free_cell_never_waits_and_computes_the_same(case):
    """The branch-free sLSTM gives the package's loss and gradients and asks the host nothing."""
    size = case.size("sync-free cell")
    package = training(case.device, size, cell="package")
    ours = training(case.device, size, cell="sync_free")
    ours.model.load_state_dict(package.model.state_dict())
    expected, actual = package.gradients(), ours.gradients()
    for name in expected:
        case.agree(f"the gradient of {name}", expected[name], actual[name], 2e-4)
    case.compare(without=package.step, with_=ours.step, samples=size.windows, result=lambda loss: loss)


@contract("O20", "cpu", "gpu")
def test_the_fast_cells_beat_the_package_s(case):
    """Fast mLSTM and sLSTM cells give the package's loss and gradients in less time and without a sync."""
    size = case.size("fast cells")
    package = training(case.device, size, cell="package")
    ours = training(case.device, size, cell="fast")
    ours.model.load_state_dict(package.model.state_dict())
    expected, actual = package.gradients(), ours.gradients()
    for name in expected:
        case.agree(f"the gradient of {name}", expected[name], actual[name], 5e-4)
    case.compare(without=package.step, with_=ours.step, samples=size.windows, result=lambda loss: loss)


@contract("O21", "cpu", "gpu")
def test_pooling_over_real_positions_learns_and_costs_little(case):
    """Neighbours within the radius pass gradients to each other, for a bounded share of the step."""
    size = case.size("pooling")
    alone = training(case.device, size, pooling=PoolingConfig(enabled=False))
    pooled = training(case.device, size, pooling=PoolingConfig(radius=case.optimized(1000.0, 0.0)))
    features = pooled.batch.features.clone().requires_grad_()
    pooled.model(features)[:, :, 5].square().sum().backward()
    reach = features.grad.abs().amax(dim=(0, 1, 3)) > 0
    pooled.recipe.optimizer.zero_grad()
    case.compare(without=alone.step, with_=pooled.step, samples=size.windows)
    if not case.has_values:
        return
    case.tell(f"a forecast hears {int(reach.sum()) - 1} neighbours")
    assert [2, 3, 4, 5, 6, 7, 8] == reach.nonzero().flatten().tolist()


@pytest.mark.skipif(not (DATA / "los_loop").is_dir(), reason="needs los_loop/ in ../shared/data")
@contract("O21", "cpu")
def test_real_neighbours_lower_the_error_on_real_traffic(case):
    """Sixty updates on Los Angeles' freeways forecast better with neighbours than with zeros instead."""

    def error(radius: float) -> float:
        return train(Job("pooled", 0, str(DATA), (*SHORT, f"social_pooling.radius={radius:g}"))).rmse

    alone, pooled = error(0.0), error(case.optimized(5000.0, 0.0))
    case.tell(f"RMSE {alone:.3f} → {pooled:.3f} mph")
    least = case.limits["accuracy"]
    told = f"the error falls {alone / pooled:.4f} times, below the {least} expected by the table"
    case.step(training(case.device).step, samples=4)
    case.require([told] * (alone / pooled < least))
