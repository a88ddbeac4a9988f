"""An sLSTM block without host syncs or data-dependent branches that takes the xlstm package's weights."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

# Shapes: M sequences, T steps, E width, H heads, D = E/H head width; G = 4 gates in the order i, f, z, o.


class HeadwiseLinear(nn.Module):
    """Hold one D×D matrix per head; the layer multiplies several of them at once."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        head_width = width // heads
        self.weight = nn.Parameter(torch.empty(heads, head_width, head_width))
        nn.init.normal_(self.weight, std=math.sqrt(2 / (5 * width)))


class CausalConv(nn.Module):
    """Convolve every channel with its own past, as shifted products.

    Compared with conv1d this has the faster backward pass on the CPU, needs no transposed copies, fuses under
    torch.compile, and vmap can batch it over weights under autocast too.
    """

    def __init__(self, width: int, kernel: int) -> None:
        super().__init__()
        # Holds the weights under the package's names; its own forward is not used.
        self.conv = nn.Conv1d(width, width, kernel, groups=width)

    def forward(self, x: Tensor) -> Tensor:
        """Map [M,T,E] to [M,T,E]; step t sees steps up to t."""
        taps = self.conv.weight.squeeze(1).to(x.dtype).unbind(-1)
        T, past = x.shape[1], len(taps) - 1
        padded = F.pad(x, (0, 0, past, 0))
        y = torch.addcmul(self.conv.bias.to(x.dtype), x, taps[past])
        for lag in range(past):
            y = torch.addcmul(y, padded[:, lag : lag + T], taps[lag])
        return y


class Norm(nn.Module):
    """Normalize groups of channels; the weight is stored as its difference from one."""

    def __init__(self, width: int, groups: int = 1) -> None:
        super().__init__()
        self.groups = groups
        self.weight = nn.Parameter(torch.zeros(width))

    def forward(self, x: Tensor) -> Tensor:
        """Map [...,E] to [...,E]."""
        grouped = x.unflatten(-1, (self.groups, -1))
        return F.layer_norm(grouped, grouped.shape[-1:]).flatten(-2) * (1.0 + self.weight)


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

    def forward(self, gates: Tensor) -> Tensor:
        """Map gate inputs [H,T,M,G·D] (biases added) to states [H,T,M,D]."""
        recurrence = self._recurrent_kernel_.to(gates.dtype).transpose(1, 2)
        steps = gates.unbind(1)
        # The state before the first step is zero, so step 0 needs neither the recurrent product nor the
        # forget gate. The package asks the data for this («n == 0?») in every step: a host sync each time.
        i, _, z, o = steps[0].chunk(4, dim=-1)
        m = i.detach()
        n = torch.exp(i - m)  # one, but its gradient is what later steps ask of the first input gate
        candidate = torch.tanh(z)
        c = n * candidate
        h = torch.sigmoid(o) * candidate
        states = [h]
        for inputs in steps[1:]:
            i, f, z, o = torch.baddbmm(inputs, h, recurrence).chunk(4, dim=-1)
            log_f = F.logsigmoid(f)
            # m only rescales c and n, and h = c/n does not see it: a constant to autograd, as in softmax.
            with torch.no_grad():
                m_new = torch.maximum(log_f + m, i)
                shift = m - m_new
            keep, add = torch.exp(log_f + shift), torch.exp(i - m_new)
            c = torch.addcmul(keep * c, add, torch.tanh(z))
            n = torch.addcmul(add, keep, n)
            m = m_new
            h = torch.sigmoid(o) * (c / n)
            states.append(h)
        return torch.stack(states, dim=1)


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
        """Turn [M,T,E] into [H,T·M,D], so that all heads and steps are one batched product."""
        M, T, _ = x.shape
        by_head = x.view(M, T, self.heads, self.head_width).permute(2, 1, 0, 3)
        return by_head.reshape(self.heads, T * M, self.head_width)

    def gates(self, x: Tensor) -> Tensor:
        """Return the gate inputs of all steps with their biases, [H,T,M,G·D]."""
        M, T, _ = x.shape
        convolved = F.silu(self.conv1d(x))
        # The package feeds the matrix called fgate to the input gate and igate to the forget gate; weights
        # trained there mean it that way, so the exchange is kept.
        smooth = torch.cat([self.fgate.weight, self.igate.weight], dim=1).transpose(1, 2)
        direct = torch.cat([self.zgate.weight, self.ogate.weight], dim=1).transpose(1, 2)
        parts = [torch.bmm(self._head_major(convolved), smooth), torch.bmm(self._head_major(x), direct)]
        joined = torch.cat(parts, dim=-1)
        # Exponential gates over many steps lose too much in half precision: the recurrence is float32.
        wide = joined.to(torch.promote_types(joined.dtype, torch.float32))
        return (wide + self.slstm_cell.bias()).view(self.heads, T, M, 4 * self.head_width)

    def forward(self, x: Tensor) -> Tensor:
        """Map [M,T,E] to [M,T,E]."""
        M, T, E = x.shape
        gates = self.gates(x)
        with torch.autocast(x.device.type, enabled=False):
            states = self.slstm_cell(gates).permute(2, 1, 0, 3).reshape(M, T, E)
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
        gate, value = self.proj_up(x).chunk(2, dim=-1)
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
        """Map [M,T,E] to [M,T,E]."""
        x = x + self.xlstm(self.xlstm_norm(x))
        return x + self.ffn(self.ffn_norm(x))
