"""The mLSTM block for the CPU: forward and backward written out, few buffers, parts that stay in cache."""

import math
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from social_xlstm.model.eager_pass import add_convolution_gradients, convolve, part_size

# Shapes: m sequences of a part, T steps, r = m·T rows, E width, I inner width, H heads, D = I/H head width.
# «Head-major» is [H,r,D]; a row-major [r,I] is read and written as head-major through a view.

_NORM_EPSILON = 1e-5  # torch's and the package's
_NORMALIZER_FLOOR = 1e-6
aten = torch.ops.aten


class Weights(NamedTuple):
    """Everything the block multiplies by."""

    norm: Tensor  # [E]
    up: Tensor  # [2I,E]
    taps: Tensor  # [kernel,I]
    conv_bias: Tensor  # [I]
    score: Tensor  # [H,D,D]
    value: Tensor  # [H,D,D]
    gates_of_convolved: Tensor  # [H,D,2H]
    gates_of_input: Tensor  # [H,D,2H]
    gate_bias: Tensor  # [2H]
    read_scale: Tensor  # [H,1,D]
    skip: Tensor  # [H,1,D]
    down: Tensor  # [E,I]


class Kept(NamedTuple):
    """What the backward pass of one part is given; it computes the rest again.

    Writing ten megabytes to fresh memory takes longer than a product, a convolution or an activation.
    """

    normed: Tensor  # [r,E]
    mean: Tensor
    rstd: Tensor
    up: Tensor  # [r,2I]
    log_f_slope: Tensor  # [H,m,T]
    decay: Tensor  # [H·m,T,T]
    unnormalized: Tensor  # [H·m,T,T]
    normalizer: Tensor  # [H·m,T,1]
    normalizer_slope: Tensor  # [H·m,T,1]: of the normalizer by the row's sum, −1, 0 or 1
    weights: Tensor  # [H·m,T,T]
    read_rstd: Tensor  # [H·m,T,1]
    normed_read: Tensor  # [H·m,T,D]


def run(x: Tensor, weights: Weights, *, residual: bool) -> Tensor:
    """Map [M,T,E] to the block's branch [M,T,E], or to x plus the branch."""
    return _Pass.apply(x, residual, *weights)


class _Pass(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, residual: bool, *tensors: Tensor) -> Tensor:
        weights = Weights(*tensors)
        size = part_size(x, weights.down.shape[1])
        output = torch.empty_like(x, memory_format=torch.contiguous_format)
        kept: list[Tensor] = []
        needed = any(ctx.needs_input_grad)
        for part, into in zip(x.split(size), output.split(size), strict=True):
            gated, of_part = _forward(part, weights)
            out = into.view(-1, x.shape[2])
            if residual:
                torch.addmm(part.reshape(out.shape), gated, weights.down.t(), out=out)
            else:
                torch.mm(gated, weights.down.t(), out=out)
            if needed:
                kept += of_part
        ctx.save_for_backward(x, *weights, *kept)
        ctx.size, ctx.residual = size, residual
        return output

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dout: Tensor) -> tuple[Tensor | None, ...]:
        x, *tensors = ctx.saved_tensors
        weights, kept = Weights(*tensors[: len(Weights._fields)]), tensors[len(Weights._fields) :]
        gradients = Weights(*(torch.zeros_like(weight) for weight in weights))
        dx = torch.empty_like(x)
        parts = zip(x.split(ctx.size), dout.split(ctx.size), dx.split(ctx.size), strict=True)
        for index, (part, dpart, into) in enumerate(parts):
            start = index * len(Kept._fields)
            of_part = Kept(*kept[start : start + len(Kept._fields)])
            dbranch = _backward(dpart, part, weights, of_part, gradients)
            if ctx.residual:
                torch.add(dbranch, dpart, out=into)
            else:
                into.copy_(dbranch)
        return dx, None, *gradients


def _head_major(rows: Tensor, heads: int) -> Tensor:
    return rows.view(rows.shape[0], heads, -1).transpose(0, 1)


def _convolved(inner: Tensor, w: Weights, m: int) -> tuple[Tensor, Tensor]:
    """Return the convolution before its activation, [m,T,I], and behind it, head-major."""
    r, I = inner.shape  # noqa: E741
    H, D, _ = w.score.shape
    before = convolve(inner.view(m, -1, I), w.taps, w.conv_bias)
    convolved = inner.new_empty(H, r, D)
    aten.silu.out(_head_major(before.view(r, I), H), out=convolved)
    return before, convolved


def _forward(x: Tensor, w: Weights) -> tuple[Tensor, Kept]:
    """Return what the down-projection reads, [r,I], and what the backward pass needs."""
    m, T, E = x.shape
    H, D, _ = w.score.shape
    r, I = m * T, H * D  # noqa: E741
    by_sequence = (H * m, T, D)
    normed, mean, rstd = aten.native_layer_norm(x.reshape(r, E), [E], w.norm, None, _NORM_EPSILON)
    up = torch.mm(normed, w.up.t())
    inner = up[:, :I]
    _, convolved = _convolved(inner, w, m)
    shares = torch.bmm(convolved, w.gates_of_convolved)
    shares.baddbmm_(_head_major(inner, H), w.gates_of_input)
    i, f = shares.sum(0).add_(w.gate_bias).t().reshape(2, H, m, T)
    decay, floor = _decays(i, F.logsigmoid(f))
    asked = torch.bmm(convolved, w.score).view(by_sequence)
    unnormalized = torch.bmm(asked, convolved.view(by_sequence).transpose(1, 2)).mul_(decay)
    total = unnormalized.sum(-1, keepdim=True)
    normalizer = torch.maximum(total.abs(), floor).add_(_NORMALIZER_FLOOR)
    normalizer_slope = torch.sign(total).mul_(total.abs() >= floor)
    weights = unnormalized / normalizer
    values = torch.bmm(_head_major(inner, H), w.value).view(by_sequence)
    read = torch.bmm(weights, values)
    normed_read, _, read_rstd = aten.native_layer_norm(read, [D], None, None, _NORM_EPSILON)
    _, _, gated = _gated(normed_read.view(H, r, D), convolved, up[:, I:], w)
    return gated, Kept(
        normed, mean, rstd, up, torch.sigmoid(f.neg()), decay, unnormalized, normalizer, normalizer_slope,
        weights, read_rstd, normed_read,
    )  # fmt: skip


def _decays(i: Tensor, log_f: Tensor) -> tuple[Tensor, Tensor]:
    """Return how much step s still counts at step t, [H·m,T,T], and the normalizer's floor, [H·m,T,1]."""
    T = i.shape[-1]
    since_start = torch.cumsum(log_f, -1)
    weight_of = i - since_start
    largest = torch.cummax(weight_of, -1).values.add_(since_start)
    exponent = since_start.sub_(largest).unsqueeze(-1) + weight_of.unsqueeze(-2)
    exponent.add_(torch.full((T, T), -math.inf, dtype=i.dtype).triu_(1))
    return exponent.exp_().view(-1, T, T), largest.neg_().exp_().view(-1, T, 1)


def _gated(normed_read: Tensor, convolved: Tensor, z: Tensor, w: Weights) -> tuple[Tensor, Tensor, Tensor]:
    """Return the memory's answer before the output gate, the gate, and their product, [r,I] each."""
    H = len(w.skip)
    ungated, gate = torch.empty_like(z, memory_format=torch.contiguous_format), F.silu(z)
    by_head = _head_major(ungated, H)
    torch.mul(normed_read, w.read_scale, out=by_head)
    by_head.addcmul_(w.skip, convolved)
    return ungated, gate, ungated * gate


def _backward(dout: Tensor, x: Tensor, w: Weights, kept: Kept, g: Weights) -> Tensor:
    """Return the branch's gradient by x; add the weights' to g."""
    m, T, E = x.shape
    H, D, _ = w.score.shape
    r, I = m * T, H * D  # noqa: E741
    by_sequence = (H * m, T, D)
    inner = kept.up[:, :I]
    before, convolved = _convolved(inner, w, m)
    dup = x.new_empty(r, 2 * I)
    dread, dconvolved = _ungate(dout.reshape(r, E), w, kept, g, convolved=convolved, dz=dup[:, I:])
    # The norm's gradient but for its factor rstd, which goes to the small tensors instead.
    zero, one = torch.zeros_like(kept.read_rstd), torch.ones_like(kept.read_rstd)
    dread = aten.native_layer_norm_backward(
        dread.view(by_sequence), kept.normed_read, [D], zero, one, None, None, [True, False, False]
    )[0]
    values = torch.bmm(_head_major(inner, H), w.value).view(by_sequence)
    dweights = torch.bmm(dread, values.transpose(1, 2)).mul_(kept.read_rstd)
    dvalues = torch.bmm(torch.mul(kept.weights, kept.read_rstd).transpose(1, 2), dread).view(H, r, D)
    dscores, dgates = _unweigh(dweights, kept)
    dasked = torch.bmm(dscores, convolved.view(by_sequence)).view(H, r, D)
    asked = torch.bmm(convolved, w.score, out=values.view(H, r, D)).view(by_sequence)
    dconvolved.view(by_sequence).baddbmm_(dscores.transpose(1, 2), asked)
    dconvolved.baddbmm_(dasked, w.score.transpose(1, 2))
    g.gate_bias.add_(dgates.sum(0))
    dgates = dgates.expand(H, r, 2 * H)  # every head's share of a gate has the gate's gradient
    dconvolved.baddbmm_(dgates, w.gates_of_convolved.transpose(1, 2))
    g.score.baddbmm_(convolved.transpose(1, 2), dasked)
    g.gates_of_convolved.baddbmm_(convolved.transpose(1, 2), dgates)
    g.value.baddbmm_(_head_major(inner, H).transpose(1, 2), dvalues)
    g.gates_of_input.baddbmm_(_head_major(inner, H).transpose(1, 2), dgates)
    dinner = torch.bmm(dvalues, w.value.transpose(1, 2), out=dasked)
    dinner.baddbmm_(dgates, w.gates_of_input.transpose(1, 2))
    _head_major(dup[:, :I], H).copy_(dinner)
    dbefore = dconvolved.transpose(0, 1).reshape(m, T, I)
    aten.silu_backward.grad_input(dbefore, before, grad_input=dbefore)
    g.conv_bias.add_(dbefore.view(r, I).sum(0))
    add_convolution_gradients(dbefore, inner.view(m, T, I), w.taps, dup[:, :I].view(m, T, I), g.taps)
    g.up.addmm_(dup.t(), kept.normed)
    dx, dnorm, _ = aten.native_layer_norm_backward(
        torch.mm(dup, w.up), x.reshape(r, E), [E], kept.mean, kept.rstd, w.norm, None, [True, True, False]
    )
    g.norm.add_(dnorm)
    return dx.view(m, T, E)


def _ungate(
    dout: Tensor, w: Weights, kept: Kept, g: Weights, *, convolved: Tensor, dz: Tensor
) -> tuple[Tensor, Tensor]:
    """Go back through down-projection and output gate: the gradients of the normed read and of c, [H,r,D]."""
    H = len(convolved)
    z = kept.up[:, w.down.shape[1] :]
    normed_read = kept.normed_read.view(convolved.shape)
    ungated, gate, gated = _gated(normed_read, convolved, z, w)
    g.down.addmm_(dout.t(), gated)
    dgated = torch.mm(dout, w.down, out=gated)
    aten.silu_backward.grad_input(ungated.mul_(dgated), z, grad_input=dz)
    dungated = torch.empty_like(convolved)
    torch.mul(_head_major(dgated, H), _head_major(gate, H), out=dungated)
    buffer = gate.view(convolved.shape)
    g.skip.add_(torch.mul(dungated, convolved, out=buffer).sum(1, keepdim=True))
    g.read_scale.add_(torch.mul(dungated, normed_read, out=buffer).sum(1, keepdim=True))
    dconvolved = torch.mul(dungated, w.skip, out=buffer)
    return dungated.mul_(w.read_scale), dconvolved


def _unweigh(dweights: Tensor, kept: Kept) -> tuple[Tensor, Tensor]:
    """Go back through normalizer and decay: the gradients of the scores [H·m,T,T] and of the gates [r,2H]."""
    H, m, T = kept.log_f_slope.shape
    through_normalizer = torch.mul(dweights, kept.weights).sum(-1, keepdim=True).mul_(kept.normalizer_slope)
    dunnormalized = dweights.sub_(through_normalizer).div_(kept.normalizer)
    dexponent = torch.mul(dunnormalized, kept.unnormalized).view(H, m, T, T)
    dgates = dweights.new_empty(2, H, m, T)
    di = torch.sum(dexponent, -2, out=dgates[0])
    dsince_start = dexponent.sum(-1).sub_(di)
    # A forget gate counts for its own step and all later ones.
    dlog_f = dsince_start.flip(-1).cumsum(-1).flip(-1)
    torch.mul(dlog_f, kept.log_f_slope, out=dgates[1])
    return dunnormalized.mul_(kept.decay), dgates.view(2 * H, m * T).t().contiguous()
