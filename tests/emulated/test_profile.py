"""What the CUDA device finds by profiling, held against what the emulated runtime counts of the same steps."""

import pytest

from tests.emulated.runs import on_torch

pytestmark = pytest.mark.cuda_torch

INSPECTED = """
import json, torch
from pathlib import Path
from torch import nn
from perfsuite.devices.cuda.profile import inspect
from perfsuite.devices.emulated import Runtime
from perfsuite.devices.emulated.tally import counted
weight = torch.ones(512, 512, device="cuda"); event = torch.cuda.Event()
here = torch.ones(512, 512); pinned = here.pin_memory(); back = torch.empty(512, 512)
model = nn.Sequential(nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 1)).cuda()
optimizer = torch.optim.AdamW(model.parameters())
def train():
    optimizer.zero_grad(); model(weight).pow(2).mean().backward(); optimizer.step()
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph): (weight @ weight).relu().sum()
def both(body):
    def step():
        exec(body, {**globals(), "product": weight @ weight})
    for _ in range(3): step()
    runtime = counted(Runtime(), step, Path.cwd(), torch.cuda.synchronize).figures
    found = inspect(torch, 0, step, 1e-3).figures
    return [[figures.get(name) for name in ("kernels", "syncs", "launches", "blocking_copies", "d2d_copies", "memsets")] for figures in (found, runtime)]
"""
STEPS = {  # what a step does besides a product → its waits
    "train()": 0,
    "graph.replay()": 0,
    "product.zero_(); torch.empty_like(product).copy_(product)": 0,
    "torch.cuda.synchronize()": 1,
    "event.record(); event.synchronize()": 1,
    "torch.cuda.current_stream().synchronize()": 1,
    "product.sum().item()": 1,
    "product.nonzero()": 1,
    "product.cpu()": 1,
    "back.copy_(product, non_blocking=True)": 1,
    "here.cuda()": 1,
    "here.cuda(non_blocking=True)": 0,
    "pinned.cuda(non_blocking=True)": 0,
    "pinned.cuda()": 1,
    "train(); product.sum().item(); product.cpu(); torch.cuda.synchronize()": 3,
}


def test_the_profile_counts_what_the_runtime_counts():
    """Kernels, launches, waits and copies of a step, also the waits that torch's detector does not find."""
    found = on_torch(f"{INSPECTED}\nprint(json.dumps({{body: both(body) for body in {list(STEPS)!r}}}))")
    assert {body: runtime for body, (_, runtime) in found.items()} == {
        body: profiled for body, (profiled, _) in found.items()
    }
    assert STEPS == {body: profiled[1] for body, (profiled, _) in found.items()}
