"""Encode every detector's window: one encoder in a loop, in groups, shared, or with stacked weights."""

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from social_xlstm.config import ModelConfig
from social_xlstm.errors import InputError
from social_xlstm.model.sequence_encoder import SequenceEncoder
from social_xlstm.model.stacked import StackedEncoder

# Shapes: B windows, N detectors, T steps, F features, E width; M = B·N sequences.


class SharedEncoder(nn.Module):
    """Run all detectors through one encoder as one large batch."""

    def __init__(self, encoder: SequenceEncoder) -> None:
        super().__init__()
        self.encoder = encoder

    def forward(self, x: Tensor, identity: Tensor | None = None) -> Tensor:
        """Map [B,N,T,F] and embeddings [N,E] to [B,N,T,E]."""
        B, N = x.shape[:2]
        rows = None if identity is None else identity.expand(B, -1, -1).flatten(0, 1)
        return self.encoder(x.flatten(0, 1), rows).unflatten(0, (B, N))


class GroupedEncoder(SharedEncoder):
    """Run one encoder over groups of detectors, so that no more than one group's activations exist."""

    def __init__(self, encoder: SequenceEncoder, group_size: int) -> None:
        super().__init__(encoder)
        if group_size < 1:
            raise InputError(f"model.group_size is {group_size}; it must be at least 1")
        self.group_size = group_size

    def forward(self, x: Tensor, identity: Tensor | None = None) -> Tensor:
        """Map [B,N,T,F] and embeddings [N,E] to [B,N,T,E]."""
        run = super().forward
        states = []
        for start in range(0, x.shape[1], self.group_size):
            group = slice(start, start + self.group_size)
            rows = None if identity is None else identity[group]
            # Autograd would keep every group's activations until the backward pass; computing them again
            # there costs a second forward and keeps memory to one group. Without gradients it only runs.
            states.append(checkpoint(run, x[:, group], rows, use_reentrant=False))
        return torch.cat(states, dim=1)


class PerDetectorEncoder(nn.Module):
    """Give every detector its own encoder and call them in turn: the slow reference."""

    def __init__(self, encoders: list[SequenceEncoder]) -> None:
        super().__init__()
        self.encoders = nn.ModuleList(encoders)

    def forward(self, x: Tensor, identity: Tensor | None = None) -> Tensor:
        """Map [B,N,T,F] and embeddings [N,E] to [B,N,T,E]."""
        rows = [None] * x.shape[1] if identity is None else identity.split(1)
        encoded = zip(self.encoders, x.unbind(1), rows, strict=True)
        return torch.stack([encoder(window, row) for encoder, window, row in encoded], dim=1)


def build_encoder(model: ModelConfig, n_detectors: int, n_features: int) -> nn.Module:
    """Build the encoder [B,N,T,F] → [B,N,T,E] of the configured kind, with every parameter in place."""

    def one() -> SequenceEncoder:
        return SequenceEncoder(model.xlstm, model.cell, n_features)

    match model.encoder:
        case "shared" | "shared_heads":
            return SharedEncoder(one())
        case "grouped":
            return GroupedEncoder(one(), model.group_size)
        case "per_vd":
            return PerDetectorEncoder([one() for _ in range(n_detectors)])
        case "stacked":
            return StackedEncoder(model, n_detectors, n_features)
    raise InputError(
        f"model.encoder {model.encoder!r} is unknown; choose per_vd, grouped, shared, shared_heads or stacked"
    )
