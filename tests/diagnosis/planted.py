"""Trainings with one planted cause each; run by test_planted.py in a project of its own."""

import time

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

FEATURES = 64


def network(device, width=512, depth=3):
    torch.manual_seed(0)
    layers = [nn.Linear(FEATURES, width), nn.ReLU()]
    for _ in range(depth):
        layers += [nn.Linear(width, width), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(width, 1)).to(device)


def trainer(device, *, width=512, depth=3, read_loss=False, foreach=True, moves=True):
    """Return a step on a batch (features, targets)."""
    model = network(device, width, depth)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4, foreach=foreach)

    def step(batch):
        features, targets = (part.to(device, non_blocking=True) for part in batch) if moves else batch
        loss = nn.functional.mse_loss(model(features), targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.item() if read_loss else loss.detach()

    return step


def batch_of(size, device="cpu"):
    return torch.randn(size, FEATURES, device=device), torch.randn(size, 1, device=device)


class Samples(Dataset):
    """Samples with a given cost."""

    def __init__(self, count=256, sleep=0.0, spin=0.0):
        self._count, self._sleep, self._spin = count, sleep, spin
        self._row = torch.randn(FEATURES), torch.randn(1)

    def __len__(self):
        return self._count

    def __getitem__(self, index):
        if self._sleep:
            time.sleep(self._sleep)
        until = time.perf_counter() + self._spin
        while time.perf_counter() < until:
            pass
        return self._row


def plain(count):
    return TensorDataset(torch.randn(count, FEATURES), torch.randn(count, 1))


@pytest.mark.perf
def test_slow_dataset(perf):
    """4 ms of computing per sample: no number of workers can keep up."""
    data = Samples(count=64, spin=0.004)
    perf.loop(DataLoader(data, batch_size=32, num_workers=2, persistent_workers=True), trainer(perf.device))


@pytest.mark.perf
def test_zero_workers(perf):
    """Samples that two workers could make while the step runs."""
    data = Samples(count=640, spin=0.00005)
    perf.loop(DataLoader(data, batch_size=64), trainer(perf.device))


@pytest.mark.perf
def test_forty_workers(perf):
    """More processes than anything can use."""
    perf.loop(DataLoader(plain(2560), batch_size=64, num_workers=40), trainer(perf.device))


@pytest.mark.perf
def test_pageable_copies(perf):
    """Large batches from ordinary memory."""
    layer = nn.Linear(512, 1).to(perf.device)
    batch = torch.randn(16384, 512)

    def step():
        layer(batch.to(perf.device)).sum().backward()

    perf(step, samples_per_step=16384)


@pytest.mark.perf
def test_item_every_step(perf):
    """The loss is read in every step."""
    step, batch = trainer(perf.device, width=768, depth=8, read_loss=True), batch_of(512, perf.device)
    perf(lambda: step(batch), samples_per_step=512)


@pytest.mark.perf
def test_loop_over_detectors(perf):
    """One call for each of two hundred detectors."""
    torch.manual_seed(0)
    layer = nn.Linear(8, 8).to(perf.device)
    states = torch.randn(200, 32, 8, device=perf.device)

    def step():
        outputs = [torch.tanh(layer(state)) for state in states]
        torch.stack(outputs).sum().backward()

    perf(step, samples_per_step=32)


@pytest.mark.perf
def test_batch_of_two(perf):
    """Two samples a step."""
    step = trainer(perf.device, width=64, depth=4)
    batch = batch_of(2, perf.device)
    perf(lambda: step(batch), samples_per_step=2)


@pytest.mark.perf
def test_restarted_workers(perf):
    """Workers that are restarted every eight batches."""
    perf.loop(DataLoader(plain(512), batch_size=64, num_workers=2), trainer(perf.device))


@pytest.mark.perf
def test_memory_nearly_full(perf):
    """Activations that fill a small card to more than nine tenths."""
    step, batch = trainer(perf.device, width=512, depth=3), batch_of(8192, perf.device)
    perf(lambda: step(batch), samples_per_step=8192)


@pytest.mark.perf
def test_nothing_wrong(perf):
    """Large matrix products on resident data."""
    step, batch = trainer(perf.device, width=1024, depth=3, moves=False), batch_of(2048, perf.device)
    perf(lambda: step(batch), samples_per_step=2048)
