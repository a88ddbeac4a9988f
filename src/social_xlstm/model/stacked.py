"""Independent weights per detector, run at once: one more dimension on every weight instead of a loop."""

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, vmap

from social_xlstm.config import ModelConfig
from social_xlstm.errors import InputError
from social_xlstm.model.cells import BlockStack, LSTMStack
from social_xlstm.model.mlstm import MLSTMBlock
from social_xlstm.model.sequence_encoder import SequenceEncoder
from social_xlstm.model.slstm import SLSTMBlock


class UnrolledLSTM(nn.Module):
    """Compute nn.LSTM from plain operations, which vmap can batch over weights (it cannot batch nn.LSTM)."""

    def __init__(self, lstm: nn.LSTM) -> None:
        super().__init__()
        self.layers, self.between = lstm.num_layers, nn.Dropout(lstm.dropout)
        for name, weight in lstm.named_parameters():
            self.register_parameter(name, weight)

    def forward(self, x: Tensor) -> tuple[Tensor, None]:
        """Map [M,T,E] to [M,T,E]; the final state is not kept."""
        for layer in range(self.layers):
            x = self._layer(x if layer == 0 else self.between(x), layer)
        return x, None

    def _layer(self, x: Tensor, layer: int) -> Tensor:
        ih, hh = getattr(self, f"weight_ih_l{layer}"), getattr(self, f"weight_hh_l{layer}")
        bias = getattr(self, f"bias_ih_l{layer}") + getattr(self, f"bias_hh_l{layer}")
        inputs = (x @ ih.T + bias).unbind(1)
        h = c = torch.zeros_like(x[:, 0])
        states = []
        for step in inputs:
            i, f, g, o = (step + h @ hh.T).chunk(4, dim=-1)
            c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
            h = torch.sigmoid(o) * torch.tanh(c)
            states.append(h)
        return torch.stack(states, dim=1)


class StackedEncoder(nn.Module):
    """Hold every weight of N encoders as one tensor [N,...] and encode all detectors in the same launches."""

    def __init__(self, model: ModelConfig, n_detectors: int, n_features: int) -> None:
        super().__init__()
        if model.cell == "package":
            raise InputError(
                "model.encoder 'stacked' cannot run the package's cells, which branch on their data; "
                "use model.cell: fast, which loads the same weights"
            )
        members = [SequenceEncoder(model.xlstm, model.cell, n_features) for _ in range(n_detectors)]
        for member in members:
            if isinstance(member.stack, LSTMStack):
                member.stack.lstm = UnrolledLSTM(member.stack.lstm)
        # One member's modules carry the stacked weights: the names stay those of a single encoder.
        self.encoder = members[0]
        weights = [dict(member.named_parameters()) for member in members]
        for name in weights[0]:
            owner, _, leaf = name.rpartition(".")
            stacked = torch.stack([own[name].detach() for own in weights])
            self.encoder.get_submodule(owner).register_parameter(leaf, nn.Parameter(stacked))

    def forward(self, x: Tensor, identity: Tensor | None = None) -> Tensor:
        """Map [B,N,T,F] and embeddings [N,E] to [B,N,T,E]."""
        if self._runs_in_c(x):
            return self._in_c(x, identity)

        def run(weights: dict[str, Tensor], window: Tensor, row: Tensor | None) -> Tensor:
            return functional_call(self.encoder, weights, (window, None if row is None else row.unsqueeze(0)))

        per_detector = vmap(
            run, in_dims=(0, 1, None if identity is None else 0), out_dims=1, randomness="different"
        )
        return per_detector(dict(self.encoder.named_parameters()), x, identity)

    def _runs_in_c(self, x: Tensor) -> bool:
        """Return whether the C library takes every block for all detectors at once."""
        lifted = x.transpose(0, 1)[..., :1].expand(-1, -1, -1, self.encoder.embed.weight.shape[1])
        stack = self.encoder.stack
        return isinstance(stack, BlockStack) and all(
            isinstance(block, MLSTMBlock | SLSTMBlock) and block.runs_in_c(lifted) for block in stack.blocks
        )

    def _in_c(self, x: Tensor, identity: Tensor | None) -> Tensor:
        """Compute what one encoder's forward computes, with the detectors [N] in front of everything."""
        encoder, (B, _, T, _) = self.encoder, x.shape
        encoder.check_steps(T)
        embed, norm = encoder.embed, encoder.stack.post_blocks_norm
        rows = x.transpose(0, 1).flatten(1, 2)
        lifted = torch.baddbmm(embed.bias.unsqueeze(1), rows, embed.weight.transpose(1, 2))
        lifted = lifted.unflatten(1, (B, T))
        if identity is not None:
            lifted = lifted + identity[:, None, None]
        states = encoder.dropout(lifted)
        for block in encoder.stack.blocks:
            states = block(states)
        normed = F.layer_norm(states, states.shape[-1:]) * norm.scale()[:, None, None]
        return normed.transpose(0, 1)


def stack_weights(per_vd: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Turn a per_vd encoder's state dict into the stacked encoder's."""
    names = [key.partition(".")[2].partition(".") for key in per_vd]
    count = 1 + max(int(index) for index, _, _ in names)
    members = dict.fromkeys(name for _, _, name in names)
    return {
        f"encoder.{name}": torch.stack([per_vd[f"encoders.{index}.{name}"] for index in range(count)])
        for name in members
    }


def unstack_weights(stacked: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Turn a stacked encoder's state dict into the per_vd encoder's."""
    return {
        f"encoders.{index}.{key.removeprefix('encoder.')}": weight.clone()
        for key, weights in stacked.items()
        for index, weight in enumerate(weights.unbind(0))
    }
