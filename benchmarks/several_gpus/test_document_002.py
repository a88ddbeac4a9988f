"""Document 002's training on one rank against all: weak and strong scaling, and its loop with a loader."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch.utils.data import DataLoader

from social_xlstm.config import OptimizerConfig, PoolingConfig
from social_xlstm.config_file import load
from social_xlstm.data.windows import Batch
from social_xlstm.model.social_xlstm import SocialXLSTM
from social_xlstm.train.distributed import World, wrap
from social_xlstm.train.precision import Precision
from social_xlstm.train.step import Recipe, Sums, build_optimizer, train_step

ADVISED = Path(__file__).parents[2] / "tests" / "perf" / "documents" / "002-after.yaml"
DETECTORS, FEATURES = 16, 3


def training(device: str, rank: int, size: int, windows: int):
    """Return the document's advised step and its batch, for one rank of so many."""
    config = load(ADVISED)
    torch.manual_seed(0)
    model = SocialXLSTM(
        config.model,
        PoolingConfig(enabled=False),
        n_detectors=DETECTORS,
        n_features=FEATURES,
        prediction_length=config.data.prediction_length,
    ).to(device)
    world = World(rank, size, rank)
    wrapped = wrap(model, world, torch.device(device))
    recipe = Recipe(
        model=wrapped.call,
        optimizer=build_optimizer(OptimizerConfig(), model.parameters()),
        precision=Precision.from_name(config.trainer.precision, device),
        sums=Sums.zero(device),
        without_sync=wrapped.without_sync,
        sum_over_world=world.sum if size > 1 else None,
        world_size=size,
    )
    values = torch.randn(windows, config.data.sequence_length, DETECTORS, FEATURES)
    targets = torch.randn(windows, config.data.prediction_length, DETECTORS, FEATURES)
    batch = Batch(values, targets, torch.ones_like(targets, dtype=torch.bool))
    return recipe, replace(
        batch, features=values.to(device), targets=targets.to(device), mask=batch.mask.to(device)
    )


@pytest.mark.multi_gpu(2)
@pytest.mark.parametrize("mode", ["weak", "strong"])
def test_scaling_of_the_second_document(perf, mode):
    """Every rank a batch of 32 (weak), or 32 shared among all (strong)."""

    def build(world):
        windows = 32 if mode == "weak" else 32 // world.size
        recipe, batch = training(perf.device, world.rank, world.size, windows)
        return lambda: train_step(recipe, batch)

    perf.scaling(build, samples_per_step=32, mode=mode)


@pytest.mark.multi_gpu(2)
def test_loop_of_the_second_document(perf):
    """Every rank with a loader of its own: who waits for data, and for whom the others wait."""
    recipe, batch = training(perf.device, perf.rank, perf.world_size, 32)
    windows = [(batch.features[0].cpu(), batch.targets[0].cpu(), batch.mask[0].cpu())] * 640

    def collate(rows):
        return Batch(*(torch.stack(column) for column in zip(*rows, strict=True)))

    loader = DataLoader(windows, batch_size=32, collate_fn=collate, drop_last=True)
    perf.loop(loader, lambda loaded: train_step(recipe, loaded), samples_per_step=32)
