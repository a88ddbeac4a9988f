"""The training's performance test; a name pytest does not collect here, the project that uses it renames it."""

import pytest
import torch
from model import Perceptron


@pytest.mark.gpu
@pytest.mark.perf(min_time="1 s", max_time="1 s")
def test_step(perf):
    model = Perceptron().to(perf.device)
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    batch = torch.randn(128, 64, device=perf.device)

    def step():
        optimizer.zero_grad()
        model(batch).mean().backward()
        optimizer.step()

    perf(step)
