"""The workload of benchmarks/verdicts.py: one xLSTM training step on one thread, slower as told."""

import dataclasses
import os

import torch

from social_xlstm.config import ModelConfig, PoolingConfig
from social_xlstm.model.social_xlstm import SocialXLSTM

DETECTORS, WINDOWS, STEPS = 8, 4, 12
TINY_OPERATIONS_PER_STEP = 10_500  # measured: step_in_tiny_ops × 500


def training(device):
    """Return one step of a small Social-xLSTM."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    config = ModelConfig()
    narrow = dataclasses.replace(config.xlstm, embedding_dim=32)
    config = dataclasses.replace(
        config, cell="sync_free", xlstm=narrow
    )  # the cells the recordings were made with
    sizes = {"n_detectors": DETECTORS, "n_features": 1, "prediction_length": 3}
    model = SocialXLSTM(config, PoolingConfig(enabled=False), **sizes).to(device)
    optimizer = torch.optim.Adam(model.parameters())
    features, targets = torch.randn(WINDOWS, STEPS, DETECTORS, 1), torch.randn(WINDOWS, 3, DETECTORS, 1)

    def step():
        optimizer.zero_grad()
        (model(features).reshape(-1) - targets.reshape(-1)).square().mean().backward()
        optimizer.step()

    return step


def test_training_step(perf):
    """Every step is longer by the same share: tiny operations, of which a step is as long as so many."""
    step = training(perf.device)
    extra = round(float(os.environ.get("PERFSUITE_SLOWDOWN", "0")) * TINY_OPERATIONS_PER_STEP)
    vector = torch.ones(8)

    def slowed():
        step()
        for _ in range(extra):
            vector + 1

    perf(slowed if extra else step)
