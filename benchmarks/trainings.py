"""Training steps that benchmarks and their tests share: Social-xLSTM in any size, an LSTM, a transformer."""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from social_xlstm.config import ModelConfig, OptimizerConfig, PoolingConfig, XLSTMConfig
from social_xlstm.data.windows import Batch
from social_xlstm.model.social_xlstm import SocialXLSTM
from social_xlstm.train.precision import Precision
from social_xlstm.train.step import Recipe, Sums, build_optimizer, train_step

Step = Callable[[], Any]
STEPS, PREDICTED, FEATURES = 12, 3, 3


@dataclass(frozen=True)
class Size:
    """How large a Social-xLSTM training is; the defaults are the reference model's on PEMS-BAY."""

    detectors: int = 325
    width: int = 128
    blocks: int = 6
    windows: int = 16


def social_xlstm(encoder: str, size: Size, device: Any, *, cell: str = "package") -> Step:
    """Return the project's own training step, with its fused optimizer, on a batch that is on the device."""
    torch.manual_seed(0)
    xlstm = XLSTMConfig(
        embedding_dim=size.width,
        num_blocks=size.blocks,
        slstm_at=tuple(place for place in (1, 3) if place < size.blocks),
    )
    model = SocialXLSTM(
        dataclasses.replace(ModelConfig(xlstm=xlstm), encoder=encoder, cell=cell),
        PoolingConfig(enabled=False),
        n_detectors=size.detectors,
        n_features=FEATURES,
        prediction_length=PREDICTED,
    ).to(device)
    optimizer = build_optimizer(OptimizerConfig(), model.parameters())
    recipe = Recipe(model, optimizer, Precision.from_name("32-true", device), Sums.zero(device), clip=1.0)
    shape = (size.windows, STEPS, size.detectors, FEATURES)
    targets = (size.windows, PREDICTED, size.detectors, FEATURES)
    batch = Batch(
        torch.randn(shape).to(device),
        torch.randn(targets).to(device),
        torch.ones(targets, dtype=torch.bool).to(device),
    )
    return lambda: train_step(recipe, batch)


class LastOfLSTM(nn.Module):
    """Two recurrent layers and a readout of the last step."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.layers, self.out = nn.LSTM(width, width, 2, batch_first=True), nn.Linear(width, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map [B,T,E] to [B,1]."""
        last: torch.Tensor = self.out(self.layers(x)[0][:, -1])
        return last


def lstm(width: int, rows: int, device: Any) -> Step:
    """Return a training step of two recurrent layers."""
    return _plain(LastOfLSTM(width), (rows, STEPS, width), device)


def transformer(width: int, rows: int, device: Any) -> Step:
    """Return a training step of two transformer layers."""
    layer = nn.TransformerEncoderLayer(width, 4, 2 * width, batch_first=True)
    return _plain(nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), (rows, 16, width), device)


def _plain(model: nn.Module, shape: tuple[int, ...], device: Any) -> Step:
    torch.manual_seed(0)
    model, x = model.to(device), torch.randn(shape).to(device)
    optimizer = torch.optim.Adam(model.parameters(), fused=True)

    def step() -> None:
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()

    return step
