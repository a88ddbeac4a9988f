"""Encode one detector's windows; the encoders over many detectors are made of this."""

from torch import Tensor, nn

from social_xlstm.config import CellKind, XLSTMConfig
from social_xlstm.errors import InputError
from social_xlstm.model.cells import build_stack

# Shapes: M sequences, T steps, F features, E width.


class SequenceEncoder(nn.Module):
    """Lift features to the stack's width and run the stack; optionally forecast from every step."""

    def __init__(
        self, config: XLSTMConfig, cell: CellKind, n_features: int, out_features: int | None = None
    ) -> None:
        super().__init__()
        # The mLSTM's causal mask has this size; longer windows would fail deep inside a product.
        self.longest = None if cell == "lstm" else config.context_length
        self.embed = nn.Linear(n_features, config.embedding_dim)
        self.dropout = nn.Dropout(config.dropout)
        self.stack = build_stack(config, cell)
        # The reference's stand-alone forecaster for one detector; the whole model reads the states instead.
        self.project = None if out_features is None else nn.Linear(config.embedding_dim, out_features)

    def forward(self, x: Tensor, identity: Tensor | None = None) -> Tensor:
        """Map [M,T,F], with an embedding [M or 1,E] of whose window it is, to [M,T,E or out_features]."""
        self.check_steps(x.shape[1])
        lifted = self.embed(x)
        if identity is not None:
            lifted = lifted + identity.unsqueeze(-2)
        states = self.stack(self.dropout(lifted))
        return states if self.project is None else self.project(states)

    def check_steps(self, steps: int) -> None:
        """Refuse windows longer than the stack was made for."""
        if self.longest is not None and steps > self.longest:
            raise InputError(
                f"a window has {steps} steps, but model.xlstm.context_length is {self.longest}; "
                "raise context_length to data.sequence_length"
            )
