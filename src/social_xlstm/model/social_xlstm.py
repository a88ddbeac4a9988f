"""The whole model: encode each detector, pool over its neighbours, forecast; refuses what does not fit."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from social_xlstm.config import ModelConfig, PoolingConfig
from social_xlstm.errors import InputError
from social_xlstm.model.encoder import build_encoder
from social_xlstm.model.heads import ContextGate, build_head
from social_xlstm.model.pooling import SocialPooling
from social_xlstm.model.readout import LastStep, TemporalAttention

# Shapes: B windows, T input steps, P predicted steps, N detectors, F features, E width.


class SocialXLSTM(nn.Module):
    """Forecast all detectors from windows of normalized values; every parameter exists from the start."""

    def __init__(
        self,
        model: ModelConfig,
        pooling: PoolingConfig,
        *,
        n_detectors: int,
        n_features: int,
        prediction_length: int,
        positions_xy: Tensor | None = None,
        directions: Sequence[str | None] | None = None,
    ) -> None:
        super().__init__()
        sizes = {"n_detectors": n_detectors, "n_features": n_features, "prediction_length": prediction_length}
        for name, size in sizes.items():
            if size < 1:
                raise InputError(f"{name} is {size}; it must be at least 1")
        self.n_detectors, self.n_features, self.prediction_length = n_detectors, n_features, prediction_length
        self.residual = model.residual
        width = model.xlstm.embedding_dim
        self.detector_embedding = nn.Embedding(n_detectors, width) if model.detector_embedding else None
        if self.detector_embedding is not None:
            # Small beside the lifted features: detectors start alike and grow apart.
            nn.init.normal_(self.detector_embedding.weight, std=0.02)
        self.encoder = build_encoder(model, n_detectors, n_features)
        self.readout = TemporalAttention(width) if model.attention_readout else LastStep()
        self.pooling = _build_pooling(pooling, n_detectors, positions_xy, directions)
        if model.context_gate and self.pooling is None:
            raise InputError("model.context_gate is on but pooling is off; set social_pooling.enabled: true")
        self.context_gate = ContextGate(width) if model.context_gate else None
        self.head = build_head(
            model,
            n_detectors=n_detectors,
            n_out=prediction_length * n_features,
            pooled=self.pooling is not None,
        )

    def encode(self, features: Tensor) -> Tensor:
        """Map features [B,T,N,F] to every step's states [B,N,T,E]."""
        expected = (self.n_detectors, self.n_features)
        if features.ndim != 4 or features.shape[1] < 1 or features.shape[2:] != expected:
            raise InputError(
                f"features have shape {tuple(features.shape)}; this model takes [windows, steps, "
                f"{self.n_detectors} detectors, {self.n_features} features]"
            )
        identity = None if self.detector_embedding is None else self.detector_embedding.weight
        return self.encoder(features.transpose(1, 2), identity)

    def importance(self, features: Tensor) -> Tensor:
        """Return how much attention each input step gets, [B,N,T]."""
        if not isinstance(self.readout, TemporalAttention):
            raise InputError(
                "this model reads the last step only; train it with model.attention_readout: true"
            )
        return self.readout.importance(self.encode(features))

    def forward(self, features: Tensor) -> Tensor:
        """Map features [B,T,N,F] to forecasts [B,P,N,F], both normalized."""
        state = self.readout(self.encode(features))
        if self.pooling is not None:
            context = self.pooling(state)
            if self.context_gate is not None:
                context = self.context_gate(state, context)
            state = torch.cat([state, context], dim=-1)
        change = self.head(state).unflatten(-1, (self.prediction_length, self.n_features))
        # Under autocast the head answers in half precision; sums and losses on it should not.
        forecast = change.transpose(1, 2).to(features.dtype)
        return forecast + features[:, -1:] if self.residual else forecast


def _build_pooling(
    config: PoolingConfig,
    n_detectors: int,
    positions_xy: Tensor | None,
    directions: Sequence[str | None] | None,
) -> SocialPooling | None:
    if not config.enabled:
        return None
    if positions_xy is None:
        raise InputError(
            "social pooling is on but the data has no positions; add position_lat and position_lon to "
            "metadata/vd_info, or set social_pooling.enabled: false"
        )
    if len(positions_xy) != n_detectors:
        raise InputError(
            f"{len(positions_xy)} positions were given for {n_detectors} detectors; "
            "give one for each, in order"
        )
    return SocialPooling(config, positions_xy, directions)
