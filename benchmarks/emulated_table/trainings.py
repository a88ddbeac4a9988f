"""Trainings of the table: each builds itself on any device and returns its step.

Kernels of an emulated card compute nothing, so whatever a shape depends on reads as zero there: masks select
nothing in either column. Sizes are small: what is compared are counts.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from tests.perf.subject import Size, training

Step = Callable[[], Any]
Build = Callable[[str], Step]
Optimize = Callable[[list[nn.Parameter]], torch.optim.Optimizer]
Loss = Callable[[], torch.Tensor]
ROWS, WIDTH, LENGTH, WORDS, HEADS = 32, 64, 16, 100, 4
TRAININGS: dict[str, Build] = {}


def named(title: str) -> Callable[[Build], Build]:
    """Put a training into the list under its title."""

    def enter(build: Build) -> Build:
        TRAININGS[title] = build
        return build

    return enter


def sgd(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.01, foreach=False)


def adamw(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=1e-3)


def fused(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=1e-3, fused=True)


def trained(loss: Loss, parameters: Sequence[nn.Parameter], optimize: Optimize = adamw) -> Step:
    """Return the usual step: gradients dropped, loss, backward, optimizer."""
    optimizer = optimize(list(parameters))

    def step() -> None:
        optimizer.zero_grad()
        loss().backward()
        optimizer.step()

    return step


def mlp(device: str) -> nn.Module:
    return nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.ReLU(), nn.Linear(2 * WIDTH, WIDTH)).to(device)


def rows(device: str, *shape: int) -> torch.Tensor:
    return torch.randn(shape or (ROWS, WIDTH)).to(device)


def words(device: str, *shape: int) -> torch.Tensor:
    return torch.zeros(shape or (ROWS, LENGTH), dtype=torch.long).to(device)


def plain(device: str, model: nn.Module, *shape: int, optimize: Optimize = adamw) -> Step:
    """Train a model on the square of what it returns for one batch."""
    model, x = model.to(device), rows(device, *shape)
    return trained(lambda: model(x).square().mean(), list(model.parameters()), optimize)


@named("MLP, SGD in a loop")
def _(device: str) -> Step:
    return plain(device, mlp(device), optimize=sgd)


@named("MLP, foreach AdamW")
def _(device: str) -> Step:
    return plain(device, mlp(device))


@named("MLP, fused AdamW")
def _(device: str) -> Step:
    return plain(device, mlp(device), optimize=fused)


@named("MLP with .item()")
def _(device: str) -> Step:
    model, x = mlp(device), rows(device)

    def loss() -> torch.Tensor:
        value = model(x).square().mean()
        value.item()
        return value

    return trained(loss, list(model.parameters()))


@named("MLP, batch from pinned memory")
def _(device: str) -> Step:
    model, batch = mlp(device), torch.randn(ROWS, WIDTH).pin_memory()
    return trained(
        lambda: model(batch.to(device, non_blocking=True)).square().mean(), list(model.parameters())
    )


@named("transformer layer")
def _(device: str) -> Step:
    layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 2 * WIDTH, dropout=0.0, batch_first=True)
    return plain(device, layer, ROWS, LENGTH, WIDTH)


@named("transformer layer, dropout 0.1")
def _(device: str) -> Step:
    layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 2 * WIDTH, dropout=0.1, batch_first=True)
    return plain(device, layer, ROWS, LENGTH, WIDTH)


@named("CNN with batch norm")
def _(device: str) -> Step:
    model = nn.Sequential(
        *(nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2)),
        *(
            nn.Conv2d(8, 16, 3, padding=1),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(16, 10),
        ),
    )
    return plain(device, model, 8, 3, 16, 16)


@named("embedding")
def _(device: str) -> Step:
    model, x = nn.Embedding(WORDS, WIDTH).to(device), words(device)
    return trained(lambda: model(x).square().mean(), list(model.parameters()))


@named("cross-entropy")
def _(device: str) -> Step:
    model, x, target = nn.Linear(WIDTH, WORDS).to(device), rows(device), words(device, ROWS)
    return trained(lambda: F.cross_entropy(model(x), target), list(model.parameters()))


@named("layer norm")
def _(device: str) -> Step:
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.LayerNorm(WIDTH), nn.GELU(), nn.LayerNorm(WIDTH))
    return plain(device, model, ROWS, LENGTH, WIDTH)


@named("group norm")
def _(device: str) -> Step:
    model = nn.Sequential(nn.Conv1d(8, 16, 3, padding=1), nn.GroupNorm(4, 16), nn.SiLU())
    return plain(device, model, ROWS, 8, LENGTH)


@named("clip_grad_norm_")
def _(device: str) -> Step:
    model, x = mlp(device), rows(device)
    parameters = list(model.parameters())
    optimizer = adamw(parameters)

    def step() -> None:
        optimizer.zero_grad()
        model(x).square().mean().backward()
        nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()

    return step


@named("boolean mask")
def _(device: str) -> Step:
    model, x = nn.Linear(WIDTH, WIDTH).to(device), rows(device)
    mask = torch.zeros(ROWS, dtype=torch.bool).to(device)
    return trained(lambda: model(x)[mask].square().sum(), list(model.parameters()))


@named("masked_fill and where")
def _(device: str) -> Step:
    model, x = nn.Linear(WIDTH, WIDTH).to(device), rows(device)
    mask = torch.zeros(ROWS, WIDTH, dtype=torch.bool).to(device)

    def loss() -> torch.Tensor:
        out = model(x).masked_fill(mask, 0.0)
        return torch.where(mask, out, out.tanh()).mean()

    return trained(loss, list(model.parameters()))


@named("einsum")
def _(device: str) -> Step:
    x = rows(device, ROWS, LENGTH, WIDTH)
    weight = nn.Parameter(rows(device, HEADS, WIDTH, WIDTH))
    return trained(lambda: torch.einsum("btd,hde->bhte", x, weight).square().mean(), [weight])


@named("scatter_add and gather")
def _(device: str) -> Step:
    model, x = nn.Linear(WIDTH, WIDTH).to(device), rows(device)
    index = words(device, ROWS, WIDTH)

    def loss() -> torch.Tensor:
        out = model(x)
        summed = torch.zeros(ROWS, WIDTH, device=device).scatter_add(0, index, out)
        return (summed.gather(0, index) * out).mean()

    return trained(loss, list(model.parameters()))


@named("index_add and index_select")
def _(device: str) -> Step:
    model, x, index = nn.Linear(WIDTH, WIDTH).to(device), rows(device), words(device, ROWS)

    def loss() -> torch.Tensor:
        out = model(x)
        summed = torch.zeros(ROWS, WIDTH, device=device).index_add(0, index, out)
        return summed.index_select(0, index).square().mean()

    return trained(loss, list(model.parameters()))


@named("positions as index")
def _(device: str) -> Step:
    table, index = nn.Parameter(rows(device, WORDS, WIDTH)), words(device, ROWS)
    return trained(lambda: table[index].square().mean(), [table])


class First(nn.Module):
    """A recurrent layer that returns its outputs alone."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.layer(x)[0]
        return out


@named("RNN")
def _(device: str) -> Step:
    return plain(device, First(nn.RNN(WIDTH, WIDTH, batch_first=True)), ROWS, LENGTH, WIDTH)


@named("LSTM")
def _(device: str) -> Step:
    return plain(device, First(nn.LSTM(WIDTH, WIDTH, 2, batch_first=True)), ROWS, LENGTH, WIDTH)


@named("GRU")
def _(device: str) -> Step:
    return plain(device, First(nn.GRU(WIDTH, WIDTH, batch_first=True)), ROWS, LENGTH, WIDTH)


def attention(device: str, dtype: torch.dtype, *, is_causal: bool = False) -> Step:
    project = nn.Linear(WIDTH, 3 * WIDTH).to(device, dtype)
    x = rows(device, ROWS, LENGTH, WIDTH).to(dtype)

    def loss() -> torch.Tensor:
        parts = project(x).view(ROWS, LENGTH, 3, HEADS, -1).permute(2, 0, 3, 1, 4).unbind(0)
        return F.scaled_dot_product_attention(*parts, is_causal=is_causal).square().mean()

    return trained(loss, list(project.parameters()), fused)


@named("attention, float32")
def _(device: str) -> Step:
    return attention(device, torch.float32)


@named("attention, float16")
def _(device: str) -> Step:
    return attention(device, torch.float16)


@named("attention, bfloat16, causal")
def _(device: str) -> Step:
    return attention(device, torch.bfloat16, is_causal=True)


@named("autocast float16 with GradScaler")
def _(device: str) -> Step:
    kind = torch.device(device).type
    model = nn.Sequential(
        nn.Linear(WIDTH, 2 * WIDTH), nn.GELU(), nn.LayerNorm(2 * WIDTH), nn.Linear(2 * WIDTH, 1)
    )
    model, x = model.to(device), rows(device)
    optimizer, scaler = adamw(list(model.parameters())), torch.amp.GradScaler(kind)

    def step() -> None:
        optimizer.zero_grad()
        with torch.autocast(kind, torch.float16):
            loss = F.mse_loss(model(x), torch.zeros(ROWS, 1, device=device))
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()

    return step


@named("autocast bfloat16, transformer layer")
def _(device: str) -> Step:
    kind = torch.device(device).type
    layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 2 * WIDTH, dropout=0.0, batch_first=True).to(device)
    x = rows(device, ROWS, LENGTH, WIDTH)

    def loss() -> torch.Tensor:
        with torch.autocast(kind, torch.bfloat16):
            return layer(x).square().mean()

    return trained(loss, list(layer.parameters()), fused)


@named("activation checkpointing")
def _(device: str) -> Step:
    blocks = nn.ModuleList(mlp(device) for _ in range(3))
    x = rows(device)

    def loss() -> torch.Tensor:
        out = x
        for block in blocks:
            out = checkpoint(block, out, use_reentrant=False)
        return out.square().mean()

    return trained(loss, list(blocks.parameters()))


@named("gradient accumulation")
def _(device: str) -> Step:
    model, parts = mlp(device), rows(device, 4, ROWS, WIDTH)
    optimizer = adamw(list(model.parameters()))

    def step() -> None:
        optimizer.zero_grad()
        for part in parts:
            (model(part).square().mean() / len(parts)).backward()
        optimizer.step()

    return step


class TinyGPT(nn.Module):
    """Words and positions, one causal block, and the words' own embedding as readout."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.first, self.second = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.mix, self.out = nn.Linear(WIDTH, 3 * WIDTH, bias=False), nn.Linear(WIDTH, WIDTH, bias=False)
        self.wide = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.words(x) + self.places(torch.arange(x.shape[1], device=x.device))
        parts = (
            part.unflatten(-1, (HEADS, -1)).transpose(1, 2) for part in self.mix(self.first(h)).chunk(3, -1)
        )
        mixed = F.scaled_dot_product_attention(*parts, is_causal=True).transpose(1, 2).flatten(-2)
        h = h + self.out(mixed)
        h = h + self.wide(self.second(h))
        return F.linear(h, self.words.weight)


@named("small GPT with tied embedding")
def _(device: str) -> Step:
    model, x = TinyGPT().to(device), words(device)
    return trained(
        lambda: F.cross_entropy(model(x).flatten(0, 1), x.flatten()), list(model.parameters()), fused
    )


@named("shared encoder")
def _(device: str) -> Step:
    return training(device, Size(windows=2, detectors=6)).step


@named("one encoder per detector, in a loop")
def _(device: str) -> Step:
    return training(device, Size(windows=2, detectors=6), encoder="per_vd").step
