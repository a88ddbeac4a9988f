"""Micro-benchmarks with pytest-benchmark's fixture: collate, window gathering, pooling, transfer."""

import numpy as np
import pytest
import torch

from social_xlstm.config import PoolingConfig
from social_xlstm.data.windows import collate, collate_detectors
from social_xlstm.model.pooling import SocialPooling
from social_xlstm.train.transfer import move_to_device
from tests.perf.feeding import prepared
from tests.perf.subject import Size, a_batch, positions

pytestmark = [
    pytest.mark.perf(tolerance="100 %", memory_tolerance="100 %"),
    pytest.mark.benchmark(max_time=0.3, min_rounds=5, warmup="on", warmup_iterations=3),
]
on_the_host = pytest.mark.perf(device="cpu")  # whatever card there is
DETECTORS, BATCH = 100, 16


@pytest.fixture(scope="module")
def windows():
    """Give prepared windows over a hundred detectors."""
    return prepared(detectors=DETECTORS).train


@on_the_host
@pytest.mark.parametrize("way", ["centralized", "by detector"])
def test_collate(benchmark, windows, way):
    """Samples read one by one become a batch."""
    samples = [windows[index] for index in range(BATCH)]
    if way == "centralized":
        batch = benchmark(collate, samples)
        assert (BATCH, 12, DETECTORS, 1) == tuple(batch.features.shape)
    else:
        batch = benchmark(collate_detectors, samples, windows.vdids)
        assert (BATCH, 12, 1) == tuple(batch.features[windows.vdids[0]].shape)


@on_the_host
def test_window_gathering(benchmark, windows):
    """A batch of windows is copied in one pass."""
    batch = benchmark(windows.gather, np.arange(0, 10 * BATCH, 10))
    assert torch.equal(batch.features[1], windows[10].features)


@pytest.mark.parametrize("sparse", [False, True], ids=["dense", "sparse"])
def test_pooling(benchmark, perf, sparse):
    """Contexts of all detectors from their neighbours' states."""
    torch.manual_seed(0)
    pool = SocialPooling(PoolingConfig(sparse=sparse), positions(DETECTORS)).to(perf.device)
    states = torch.randn(BATCH, DETECTORS, 64, device=perf.device)
    contexts = benchmark(pool, states)
    assert states.shape == contexts.shape


def test_transfer(benchmark, perf):
    """A batch goes to the device; on the CPU it is there already and costs the walk through it."""
    batch = a_batch(Size(windows=BATCH, detectors=DETECTORS))
    moved = benchmark(move_to_device, batch, perf.device)
    assert torch.equal(batch.features, moved.features.cpu())
