"""Turn a window's states into one vector per detector: the last state, or attention over the steps."""

from collections.abc import Iterable
from typing import Protocol

import torch
from torch import Tensor, nn

from social_xlstm.errors import InputError

# Shapes: B windows, N detectors, T steps, E width.


class LastStep(nn.Module):
    """Take the state after the last step."""

    def forward(self, states: Tensor) -> Tensor:
        """Map [B,N,T,E] to [B,N,E]."""
        return states[..., -1, :]


class TemporalAttention(nn.Module):
    """Weigh the steps by a small score network and sum their states."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.hidden = nn.Linear(width, width)
        # No bias: softmax does not see one, so it would never receive a gradient.
        self.score = nn.Linear(width, 1, bias=False)

    def importance(self, states: Tensor) -> Tensor:
        """Return the steps' weights [B,N,T], which sum to one."""
        return torch.softmax(self.score(torch.tanh(self.hidden(states))).squeeze(-1), dim=-1)

    def forward(self, states: Tensor) -> Tensor:
        """Map [B,N,T,E] to [B,N,E]."""
        weights = self.importance(states)
        return (weights.unsqueeze(-2).to(states.dtype) @ states).squeeze(-2)


class Importance(Protocol):
    """A model that knows how much each step of a window counts."""

    training: bool

    def importance(self, features: Tensor) -> Tensor:
        """Return weights [B,N,T] for features [B,T,N,F]."""

    def train(self, mode: bool = True) -> nn.Module:
        """Switch between training and evaluation."""


def mean_importance(model: Importance, batches: Iterable[Tensor]) -> Tensor:
    """Average the steps' importance over batches of features on the model's device, as a host [N,T]."""
    total: Tensor | None = None
    windows = 0
    was_training = model.training
    model.train(False)
    try:
        with torch.inference_mode():
            for features in batches:
                part = model.importance(features).double().sum(dim=0)
                total = part if total is None else total + part
                windows += len(features)
    finally:
        model.train(was_training)
    if total is None:
        raise InputError(
            "no batch was given to average the attention over; check the data's length and split"
        )
    return (total / windows).cpu()  # waits for the device: the only copy
