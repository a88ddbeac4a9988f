"""An sLSTM block without host syncs or data-dependent branches that takes the xlstm package's weights."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from social_xlstm.model.cpu import operators
from social_xlstm.model.layers import CausalConv, HeadwiseLinear, Norm

# Shapes: M sequences, T steps, E width, H heads, D = E/H head width; G = 4 gates in the order i, f, z, o.


class SLSTMCell(nn.Module):
    """Run the recurrence over head-major gate pre-activations."""

    def __init__(self, width: int, heads: int, *, block_index: int, num_blocks: int) -> None:
        super().__init__()
        self.heads, self.head_width = heads, width // heads
        self._recurrent_kernel_ = nn.Parameter(torch.zeros(heads, 4 * self.head_width, self.head_width))
        self._bias_ = nn.Parameter(torch.zeros(4 * width))
        depth = block_index / (num_blocks - 1) if num_blocks > 1 else 0.0
        ramp = torch.arange(self.head_width) / (self.head_width - 1)
        with torch.no_grad():
            # Forget biases from +5 to −7: units that remember long beside units that forget at once.
            self._bias_.view(4, heads, self.head_width)[1] = 5.0 - 12.0 * ramp ** (0.3 + 1.3 * depth)

    def bias(self) -> Tensor:
        """Return the gate biases as [H,1,G·D]; they are stored gate-major."""
        by_gate = self._bias_.view(4, self.heads, self.head_width)
        return by_gate.transpose(0, 1).reshape(self.heads, 1, 4 * self.head_width)

    def recurrence(self) -> Tensor:
        """Return what a state is multiplied by, [H,D,G·D]."""
        return self._recurrent_kernel_.transpose(1, 2)

    def forward(self, gates: Tensor) -> Tensor:
        """Map gate inputs [T,H,M,G·D] (biases added) to states [T,H,M,D]."""
        recurrence = self.recurrence().to(gates.dtype)
        # With c, n and the stabilizer m of the paper, what is read is c/n and all that the next step needs of
        # n and m is log_weight = log n + m. Both follow from how far the newcomer is ahead of the memory:
        # no maximum, no division, nothing that overflows.
        # The state before the first step is zero, so step 0 needs neither the recurrent product nor the
        # forget gate. The package checks the data for this («n == 0?») in every step: a host sync each time.
        first, *later = gates.unbind(0)
        log_weight, _, z, o = first.chunk(4, dim=-1)
        read = torch.tanh(z)
        state = torch.sigmoid(o) * read
        states = [state]
        for inputs in later:
            i, f, z, o = torch.baddbmm(inputs, state, recurrence).chunk(4, dim=-1)
            ahead = i + F.softplus(-f) - log_weight
            read = torch.lerp(read, torch.tanh(z), torch.sigmoid(ahead))
            log_weight = i + F.softplus(-ahead)
            state = torch.sigmoid(o) * read
            states.append(state)
        return torch.stack(states)


class SLSTMLayer(nn.Module):
    """Convolution, gates, recurrence and per-head norm, with the package's parameter names."""

    def __init__(
        self, width: int, heads: int, *, kernel: int, dropout: float, block_index: int, num_blocks: int
    ) -> None:
        super().__init__()
        self.heads, self.head_width = heads, width // heads
        self.conv1d = CausalConv(width, kernel)
        self.fgate = HeadwiseLinear(width, heads)
        self.igate = HeadwiseLinear(width, heads)
        self.zgate = HeadwiseLinear(width, heads)
        self.ogate = HeadwiseLinear(width, heads)
        self.slstm_cell = SLSTMCell(width, heads, block_index=block_index, num_blocks=num_blocks)
        self.group_norm = Norm(width, groups=heads)
        self.dropout = nn.Dropout(dropout)

    def _head_major(self, x: Tensor) -> Tensor:
        """Turn [M,T,E] into [T·H,M,D], so that all heads and steps are one batched product."""
        M, T, _ = x.shape
        by_head = x.view(M, T, self.heads, self.head_width).permute(1, 2, 0, 3)
        return by_head.reshape(T * self.heads, M, self.head_width)

    def weights(self) -> tuple[Tensor, Tensor]:
        """Return what convolved input and input are multiplied by, [H,D,2D] each: i and f, z and o."""
        # The package feeds the matrix called fgate to the input gate and igate to the forget gate; weights
        # trained there mean it that way, so the exchange is kept.
        smooth = torch.cat([self.fgate.weight, self.igate.weight], dim=1).transpose(1, 2)
        direct = torch.cat([self.zgate.weight, self.ogate.weight], dim=1).transpose(1, 2)
        return smooth, direct

    def gates(self, x: Tensor) -> Tensor:
        """Return the gate inputs of all steps with their biases, [T,H,M,G·D]."""
        M, T, _ = x.shape
        both = torch.cat([self._head_major(F.silu(self.conv1d(x))), self._head_major(x)], dim=-1)
        smooth, direct = self.weights()
        # One product for both kinds: multiplying the zeros costs less than joining two results.
        weight = torch.cat([F.pad(smooth, (0, smooth.shape[2])), F.pad(direct, (direct.shape[2], 0))], dim=1)
        products = torch.bmm(both, weight.to(both.dtype).expand(T, -1, -1, -1).flatten(0, 1))
        # Exponential gates over many steps lose too much in half precision: the recurrence is float32.
        wide = products.to(torch.promote_types(products.dtype, torch.float32))
        return wide.view(T, self.heads, M, 4 * self.head_width) + self.slstm_cell.bias()

    def states(self, x: Tensor) -> Tensor:
        """Map normalized inputs [M,T,E] to the recurrence's states [M,T,E]."""
        gates = self.gates(x)
        with torch.autocast(x.device.type, enabled=False):
            return self.slstm_cell(gates).permute(2, 0, 1, 3).reshape(x.shape)

    def forward(self, x: Tensor) -> Tensor:
        """Map [M,T,E] to [M,T,E]."""
        states = self.states(x)
        with torch.autocast(x.device.type, enabled=False):
            return self.group_norm(self.dropout(states)).to(x.dtype)


class GatedFeedForward(nn.Module):
    """Expand, gate with GELU and project back."""

    def __init__(self, width: int, expanded: int, *, num_blocks: int) -> None:
        super().__init__()
        self.proj_up = nn.Linear(width, 2 * expanded, bias=False)
        self.proj_down = nn.Linear(expanded, width, bias=False)
        nn.init.normal_(self.proj_up.weight, std=math.sqrt(2 / (5 * width)))
        nn.init.normal_(self.proj_down.weight, std=2 / num_blocks / math.sqrt(width))

    def forward(self, x: Tensor) -> Tensor:
        """Map [M,T,E] to [M,T,E]."""
        both = self.proj_up(x)
        gate, value = both.chunk(2, dim=-1)
        return self.proj_down(F.gelu(gate) * value)


class SLSTMBlock(nn.Module):
    """Pre-norm residual block: sLSTM layer, then gated feed-forward."""

    def __init__(
        self,
        width: int,
        heads: int,
        *,
        kernel: int,
        expanded: int,
        dropout: float,
        block_index: int,
        num_blocks: int,
    ) -> None:
        super().__init__()
        self.xlstm_norm = Norm(width)
        self.xlstm = SLSTMLayer(
            width, heads, kernel=kernel, dropout=dropout, block_index=block_index, num_blocks=num_blocks
        )
        self.ffn_norm = Norm(width)
        self.ffn = GatedFeedForward(width, expanded, num_blocks=num_blocks)

    def forward(self, x: Tensor) -> Tensor:
        """Map [M,T,E] to [M,T,E]; in C also [G,M,T,E], every weight being [G,...]."""
        if operators.applies(x, own := self._own_weights(), own[-1].shape[-1]):
            layer, cell = self.xlstm, self.xlstm.slstm_cell
            sizes = (cell.heads * cell.head_width, cell.heads, layer.conv1d.conv.kernel_size[0])
            x = operators.run("slstm", x, operators.mask(layer.dropout, x), sizes, own[:-3])
            return operators.run("ffn", x, None, own[-1].shape[-2:], own[-3:])
        x = x + self.xlstm(self.xlstm_norm(x))
        return x + self.ffn(self.ffn_norm(x))

    def runs_in_c(self, x: Tensor) -> bool:
        """Return whether the C library takes this input."""
        return operators.applies(x, own := self._own_weights(), own[-1].shape[-1])

    def _own_weights(self) -> tuple[Tensor, ...]:
        """Return the weights in the order of the C structures, the feed-forward's three last."""
        layer, ffn = self.xlstm, self.ffn
        cell, conv = layer.slstm_cell, layer.conv1d.conv
        return (
            self.xlstm_norm.weight, conv.weight, conv.bias,
            # The package's exchange of the names, as in SLSTMLayer.weights.
            layer.fgate.weight, layer.igate.weight, layer.zgate.weight, layer.ogate.weight,
            cell._recurrent_kernel_, cell._bias_, layer.group_norm.weight,
            self.ffn_norm.weight, ffn.proj_up.weight, ffn.proj_down.weight,
        )  # fmt: skip
