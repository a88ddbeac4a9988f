"""An mLSTM block for short windows that takes the xlstm package's weights without its layout's cost."""

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from social_xlstm.model.cpu import operators
from social_xlstm.model.layers import CausalConv, Norm

# Shapes: M sequences, T steps, R = M·T rows, E width, I inner width, H heads, D = I/H head width,
# K blocks of b×b weights.

NORMALIZER_FLOOR = 1e-6  # the package's, added to the normalizer


class BlockLinear(nn.Module):
    """Hold one small matrix per block of channels, [K,b,b]; the layer folds them into larger products."""

    def __init__(self, width: int, block: int, init_width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(width // block, block, block))
        nn.init.normal_(self.weight, std=math.sqrt(2 / (5 * init_width)))


class MLSTMCell(nn.Module):
    """Hold the gates and the norm under the package's names."""

    def __init__(self, inner: int, heads: int) -> None:
        super().__init__()
        self.igate = nn.Linear(3 * inner, heads)
        self.fgate = nn.Linear(3 * inner, heads)
        self.outnorm = Norm(inner, groups=heads)
        nn.init.zeros_(self.igate.weight)
        nn.init.zeros_(self.fgate.weight)
        nn.init.normal_(self.igate.bias, std=0.1)
        with torch.no_grad():
            self.fgate.bias.copy_(torch.linspace(3.0, 6.0, heads))


class Folded(NamedTuple):
    """The layer's small weights, multiplied out once per call into the form its products want."""

    score: Tensor  # [H,D,D]: c·score·cᵀ are the scores q·kᵀ/√D
    value: Tensor  # [H,D,D]
    gates_of_convolved: Tensor  # [H,D,2H]: a head's share of all input and forget gates
    gates_of_input: Tensor  # [H,D,2H]
    gate_bias: Tensor  # [2H]
    read_scale: Tensor  # [H,1,D]
    skip: Tensor  # [H,1,D]


def dense(blocks: Tensor, heads: int) -> Tensor:
    """Lay blocks [K,out,in] on the diagonals of one matrix per head, [H,in,out].

    Multiplying zeros costs less than multiplying thousands of tiny matrices.
    """
    by_head = blocks.unflatten(0, (heads, -1))
    spread = torch.diag_embed(by_head.permute(0, 3, 2, 1))  # [H,in,out,K/H,K/H]
    return spread.permute(0, 3, 1, 4, 2).flatten(3, 4).flatten(1, 2)


class MLSTMLayer(nn.Module):
    """Up-projection, convolution, gated memory read over all steps at once, down-projection.

    With c the convolved input, q = c·Wqᵀ and k = c·Wkᵀ: the scores q·kᵀ are c·(Wqᵀ·Wk)·cᵀ, and queries and
    keys are never formed. The gates are linear in q, k and v, hence in c and the input: they are read there.
    """

    def __init__(
        self, width: int, heads: int, *, inner: int, kernel: int, block: int, dropout: float, num_blocks: int
    ) -> None:
        super().__init__()
        self.heads, self.inner = heads, inner
        self.proj_up = nn.Linear(width, 2 * inner, bias=False)
        self.q_proj = BlockLinear(inner, block, width)
        self.k_proj = BlockLinear(inner, block, width)
        self.v_proj = BlockLinear(inner, block, width)
        self.conv1d = CausalConv(inner, kernel)
        self.mlstm_cell = MLSTMCell(inner, heads)
        self.learnable_skip = nn.Parameter(torch.ones(inner))
        self.proj_down = nn.Linear(inner, width, bias=False)
        self.dropout = nn.Dropout(dropout)
        nn.init.normal_(self.proj_up.weight, std=math.sqrt(2 / (5 * width)))
        nn.init.normal_(self.proj_down.weight, std=2 / num_blocks / math.sqrt(width))

    def folded(self) -> Folded:
        """Fold queries into keys and all three projections into the gates."""
        cell, heads, D = self.mlstm_cell, self.heads, self.inner // self.heads
        q, k, v = self.q_proj.weight, self.k_proj.weight, self.v_proj.weight
        gates = torch.cat([cell.igate.weight, cell.fgate.weight])
        of_q, of_k, of_v = gates.unflatten(1, (3, *q.shape[:2])).unbind(1)

        def by_head(of: Tensor) -> Tensor:
            return of.reshape(2 * heads, heads, D).permute(1, 2, 0)

        # Each row of gate weights through the block that made its input.
        through = "gko,koi->gki"
        convolved = torch.einsum(through, of_q, q) + torch.einsum(through, of_k, k)
        return Folded(
            # Laid out [out,in] = [k,q] so that `dense` returns c's side first.
            score=dense(torch.bmm(k.transpose(1, 2), q) / math.sqrt(D), heads),
            value=dense(v, heads),
            gates_of_convolved=by_head(convolved),
            gates_of_input=by_head(torch.einsum(through, of_v, v)),
            gate_bias=torch.cat([cell.igate.bias, cell.fgate.bias]),
            read_scale=cell.outnorm.scale().view(heads, 1, D),
            skip=self.learnable_skip.view(heads, 1, D),
        )

    def forward(self, x: Tensor) -> Tensor:
        """Map [M,T,E] to [M,T,E]."""
        M, T, _ = x.shape
        heads, folded = self.heads, self.folded()

        def head_major(rows: Tensor) -> Tensor:  # [M,T,I] to [H,R,D]
            return rows.reshape(M * T, heads, -1).transpose(0, 1)

        inner, z = self.proj_up(x).chunk(2, dim=-1)
        convolved = head_major(F.silu(self.conv1d(inner))).contiguous()
        read = remember(convolved, head_major(inner), folded, M)
        normed = F.layer_norm(read, read.shape[-1:]) * folded.read_scale
        gated = torch.addcmul(normed, folded.skip, convolved).to(z.dtype) * F.silu(head_major(z))
        return self.dropout(self.proj_down(gated.transpose(0, 1).reshape(M, T, self.inner)))


def remember(convolved: Tensor, inner: Tensor, folded: Folded, M: int) -> Tensor:
    """Read the memory at every step, [H,R,D] to [H,R,D]."""
    H, R, D = convolved.shape
    shape = (H * M, R // M, D)
    asked = torch.bmm(convolved, folded.score.to(convolved.dtype)).view(shape)
    values = torch.bmm(inner, folded.value.to(inner.dtype)).view(shape)
    scores = torch.bmm(asked, convolved.view(shape).transpose(1, 2))
    # Every gate reads all heads: the heads' shares are summed.
    shares = torch.bmm(convolved, folded.gates_of_convolved.to(convolved.dtype))
    shares = shares + torch.bmm(inner, folded.gates_of_input.to(inner.dtype))
    # Exponential gates over many steps lose too much in half precision.
    wide = torch.promote_types(shares.dtype, torch.float32)
    gates = (shares.to(wide).sum(0) + folded.gate_bias.to(wide)).t().reshape(2, H * M, -1)
    decay, floor = decays(gates[0], F.logsigmoid(gates[1]))
    weights = scores.to(decay.dtype) * decay
    normalizer = torch.maximum(weights.sum(-1, keepdim=True).abs(), floor) + NORMALIZER_FLOOR
    return torch.bmm((weights / normalizer).to(values.dtype), values).view(H, R, D)


def decays(i: Tensor, log_f: Tensor) -> tuple[Tensor, Tensor]:
    """Return how much step s still counts at step t, [...,T,T], and the normalizer's floor, [...,T,1]."""
    since_start = torch.cumsum(log_f, dim=-1)
    weight_of = i - since_start
    with torch.no_grad():
        # The largest exponent of each row. It scales memory and normalizer alike, and their ratio does not
        # see it: a constant to autograd.
        largest = torch.cummax(weight_of, dim=-1).values + since_start
        T = i.shape[-1]
        later = torch.ones(T, T, dtype=torch.bool, device=i.device).triu(1)
    exponent = (since_start - largest).unsqueeze(-1) + weight_of.unsqueeze(-2)
    return torch.exp(exponent.masked_fill(later, -math.inf)), torch.exp(-largest).unsqueeze(-1)


class MLSTMBlock(nn.Module):
    """Pre-norm residual block around the mLSTM layer."""

    def __init__(
        self, width: int, heads: int, *, inner: int, kernel: int, block: int, dropout: float, num_blocks: int
    ) -> None:
        super().__init__()
        self.xlstm_norm = Norm(width)
        self.xlstm = MLSTMLayer(
            width, heads, inner=inner, kernel=kernel, block=block, dropout=dropout, num_blocks=num_blocks
        )

    def forward(self, x: Tensor) -> Tensor:
        """Map [M,T,E] to [M,T,E]; in C also [G,M,T,E], every weight being [G,...]."""
        if operators.applies(x, own := self._own_weights(), self.xlstm.inner):
            return operators.run("mlstm", x, operators.mask(self.xlstm.dropout, x), self._sizes(), own)
        return x + self.xlstm(self.xlstm_norm(x))

    def runs_in_c(self, x: Tensor) -> bool:
        """Return whether the C library takes this input."""
        return operators.applies(x, self._own_weights(), self.xlstm.inner)

    def _own_weights(self) -> tuple[Tensor, ...]:
        """Return the weights in the order of the C structure."""
        layer = self.xlstm
        cell, conv = layer.mlstm_cell, layer.conv1d.conv
        return (
            self.xlstm_norm.weight, layer.proj_up.weight, conv.weight, conv.bias,
            layer.q_proj.weight, layer.k_proj.weight, layer.v_proj.weight,
            cell.igate.weight, cell.fgate.weight, cell.igate.bias, cell.fgate.bias,
            cell.outnorm.weight, layer.learnable_skip, layer.proj_down.weight,
        )  # fmt: skip

    def _sizes(self) -> tuple[int, ...]:
        layer = self.xlstm
        block, kernel = layer.q_proj.weight.shape[-1], layer.conv1d.conv.kernel_size[0]
        return layer.proj_down.out_features, layer.inner, layer.heads, kernel, block
