"""Turn a detector's own state and its context into the forecast."""

import math

import torch
from torch import Tensor, nn

from social_xlstm.config import ModelConfig

# Shapes: B windows, N detectors, E width, O = P·F outputs.


class PerDetectorLinear(nn.Module):
    """Apply another matrix to each detector, all in one batched product."""

    def __init__(self, n_detectors: int, n_in: int, n_out: int) -> None:
        super().__init__()
        bound = 1 / math.sqrt(n_in)
        self.weight = nn.Parameter(torch.empty(n_detectors, n_in, n_out).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.empty(n_detectors, 1, n_out).uniform_(-bound, bound))

    def forward(self, x: Tensor) -> Tensor:
        """Map [B,N,in] to [B,N,out]."""
        return torch.baddbmm(self.bias, x.transpose(0, 1), self.weight).transpose(0, 1)


class ContextGate(nn.Module):
    """Let state and context decide together how much of each context channel passes."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.gate = nn.Linear(2 * width, width)

    def forward(self, state: Tensor, context: Tensor) -> Tensor:
        """Map two [B,N,E] to the gated context [B,N,E]."""
        return torch.sigmoid(self.gate(torch.cat([state, context], dim=-1))) * context


class ForecastHead(nn.Module):
    """Three linear layers to P·F outputs; the last may be each detector's own."""

    def __init__(self, n_in: int, width: int, n_out: int, *, dropout: float, own: int | None = None) -> None:
        super().__init__()
        half = max(width // 2, 1)
        self.trunk = nn.Sequential(
            nn.Linear(n_in, width),
            nn.ReLU(),
            nn.Dropout(dropout),
            nn.Linear(width, half),
            nn.ReLU(),
            nn.Dropout(dropout),
        )
        self.last = nn.Linear(half, n_out) if own is None else PerDetectorLinear(own, half, n_out)

    def forward(self, x: Tensor) -> Tensor:
        """Map [B,N,in] to [B,N,O]."""
        return self.last(self.trunk(x))


def build_head(model: ModelConfig, *, n_detectors: int, n_out: int, pooled: bool) -> ForecastHead:
    """Build the head of a configuration; with pooling it reads a context beside every state."""
    width = model.xlstm.embedding_dim
    return ForecastHead(
        # Without pooling the head has no context inputs: weights on constant zeros would never be trained.
        2 * width if pooled else width,
        width,
        n_out,
        dropout=model.xlstm.dropout,
        own=n_detectors if model.encoder == "shared_heads" else None,
    )
