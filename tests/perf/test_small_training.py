"""A small training measured end to end: the step, its loop with a loader, and two optimizations."""

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

SAMPLES = 64
FEATURES, HIDDEN, HEADS = 64, 256, 24


def network(device: str) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(FEATURES, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, 1)
    ).to(device)


def training(device: str, *, foreach: bool = True):
    """Return one training step that takes a batch and returns the loss."""
    model = network(device)
    optimizer = torch.optim.Adam(model.parameters(), foreach=foreach)

    def step(batch):
        features, targets = (part.to(device, non_blocking=True) for part in batch)
        optimizer.zero_grad(set_to_none=True)
        loss = nn.functional.mse_loss(model(features), targets)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


def a_batch(device: str):
    generator = torch.Generator().manual_seed(0)
    return (
        torch.randn(SAMPLES, FEATURES, generator=generator).to(device),
        torch.randn(SAMPLES, 1, generator=generator).to(device),
    )


@pytest.mark.perf(min_samples_per_s=1000, max_peak_memory="256 MiB")
def test_training_step(perf):
    """A step of a small network keeps up with a thousand samples a second."""
    step, batch = training(perf.device), a_batch(perf.device)
    perf(lambda: step(batch), samples_per_step=SAMPLES)


@pytest.mark.perf(min_samples_per_s=1000, max_data_wait="60 %")
def test_training_loop(perf):
    """The loader does not starve the training."""
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(4096, FEATURES), torch.randn(4096, 1))
    perf.loop(DataLoader(data, batch_size=SAMPLES), training(perf.device))


@pytest.mark.perf(min_speedup=2)
def test_one_product_beats_a_loop_over_detectors(perf):
    """One product for all detectors is faster than one per detector, with the same result."""
    torch.manual_seed(0)
    layer = nn.Linear(FEATURES, 8).to(perf.device)
    states = torch.randn(HEADS, SAMPLES, FEATURES, device=perf.device)
    perf.compare(
        without=lambda: torch.stack([layer(state) for state in states]),
        with_=lambda: layer(states),
        samples_per_step=SAMPLES,
        result=lambda out: out,
    )


@pytest.mark.gpu
@pytest.mark.perf(min_utilization="50 %")
def test_a_large_product_keeps_the_gpu_busy(perf):
    """A product of two large matrices leaves no gap between kernels."""
    matrix = torch.randn(4096, 4096, device=perf.device)
    perf(lambda: matrix @ matrix)
