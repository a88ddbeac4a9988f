"""The sLSTM layer and its gated unit for the CPU: forward and backward written out, in few buffers."""

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from social_xlstm.model.eager_pass import add_convolution_gradients, convolve

# Shapes: M sequences, T steps, E width, H heads, D = E/H head width; four gates in the order i, f, z, o.
# Step-major is [T,H,M,...], so that a step is contiguous. The first two gates read the convolved input, the
# last two the input itself: two buffers of two gates each.

aten = torch.ops.aten


class Weights(NamedTuple):
    """Everything the layer multiplies by, between its norms."""

    taps: Tensor  # [kernel,E]
    conv_bias: Tensor  # [E]
    smooth: Tensor  # [H,D,2D]: convolved input to i and f
    direct: Tensor  # [H,D,2D]: input to z and o
    smooth_bias: Tensor  # [H,1,2D]
    direct_bias: Tensor  # [H,1,2D]
    smooth_recurrence: Tensor  # [H,D,2D]
    direct_recurrence: Tensor  # [H,D,2D]


class Kept(NamedTuple):
    """What the backward pass is given."""

    before: Tensor  # [M,T,E]: the convolution before its activation
    convolved: Tensor  # [T,H,M,D]
    inputs: Tensor  # [T,H,M,D]
    values: Tensor  # [T,H,M,D]: tanh z
    shares: Tensor  # [T,H,M,D]: what of the memory is new
    forget_slope: Tensor  # [T,H,M,D]: of log f by its input
    reads: Tensor  # [T,H,M,D]: c/n
    out_gates: Tensor  # [T,H,M,D]
    states: Tensor  # [T,H,M,D]


def run(x: Tensor, weights: Weights) -> Tensor:
    """Map [M,T,E] to states [M,T,E]."""
    return _Pass.apply(x, *weights)


class _Pass(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, *tensors: Tensor) -> Tensor:
        weights = Weights(*tensors)
        before = convolve(x, weights.taps, weights.conv_bias)
        convolved = aten.silu(before)
        H = len(weights.smooth)
        inputs, convolved = _step_major(x, H), _step_major(convolved, H)
        smooth = _product(convolved, weights.smooth)
        direct = _product(inputs, weights.direct)
        kept = Kept(before, convolved, inputs, *_recur(smooth, direct, weights))
        ctx.save_for_backward(x, *weights, *kept)
        return kept.states.permute(2, 0, 1, 3).reshape(x.shape)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dout: Tensor) -> tuple[Tensor, ...]:
        x, *tensors = ctx.saved_tensors
        w, kept = Weights(*tensors[: len(Weights._fields)]), Kept(*tensors[len(Weights._fields) :])
        g = Weights(*(torch.zeros_like(weight) for weight in w))
        T, H, M, D = kept.states.shape
        dsmooth, ddirect = _recur_back(_step_major(dout, H), w, kept, g)
        for weight, gradient, inputs, dgates in (
            (w.smooth, g.smooth, kept.convolved, dsmooth),
            (w.direct, g.direct, kept.inputs, ddirect),
        ):
            by_step = torch.bmm(inputs.view(T * H, M, D).transpose(1, 2), dgates.view(T * H, M, -1))
            gradient.copy_(by_step.view(T, *weight.shape).sum(0))
        dx = _row_major(_product(ddirect, w.direct.transpose(1, 2)))
        dbefore = _row_major(_product(dsmooth, w.smooth.transpose(1, 2)))
        aten.silu_backward.grad_input(dbefore, kept.before, grad_input=dbefore)
        g.conv_bias.copy_(dbefore.view(M * T, -1).sum(0))
        add_convolution_gradients(dbefore, x, w.taps, dx, g.taps)
        return dx, *g


def _step_major(rows: Tensor, heads: int) -> Tensor:
    """Turn [M,T,E] into [T,H,M,D]."""
    steps = rows.reshape(*rows.shape[:2], heads, -1).permute(1, 2, 0, 3)
    return steps.clone(memory_format=torch.contiguous_format)  # always a copy: the backward pass adds to it


def _row_major(steps: Tensor) -> Tensor:
    """Turn [T,H,M,D] into [M,T,E]."""
    return steps.permute(2, 0, 1, 3).flatten(2).contiguous()


def _product(steps: Tensor, weight: Tensor) -> Tensor:
    """Multiply every step [H,M,...] by the heads' weights [H,...,...]."""
    T, H, M, _ = steps.shape
    repeated = weight.expand(T, *weight.shape).reshape(T * H, *weight.shape[1:])
    return torch.bmm(steps.view(T * H, M, -1), repeated).view(T, H, M, -1)


def _recur(smooth: Tensor, direct: Tensor, w: Weights) -> tuple[Tensor, ...]:
    """Run the steps; the gate inputs [T,H,M,2D] are used up. Returns the last six of Kept."""
    T, H, M, D = *smooth.shape[:3], smooth.shape[3] // 2
    values, shares, forget_slope, reads, out_gates, states = smooth.new_empty(6, T, H, M, D)
    smooth.add_(w.smooth_bias)
    direct.add_(w.direct_bias)
    log_weight = smooth[0, ..., :D].contiguous()
    for t in range(T):
        if t:
            smooth[t].baddbmm_(states[t - 1], w.smooth_recurrence)
            direct[t].baddbmm_(states[t - 1], w.direct_recurrence)
        (i, f), (z, o) = smooth[t].chunk(2, dim=-1), direct[t].chunk(2, dim=-1)
        torch.tanh(values[t].copy_(z), out=values[t])  # a strided tanh takes seven times as long
        torch.sigmoid(o, out=out_gates[t])
        not_f = torch.neg(f)
        torch.sigmoid(not_f, out=forget_slope[t])
        if t:
            # How far the newcomer's weight exceeds the memory's, both as logarithms.
            ahead = aten.softplus(not_f).add_(i).sub_(log_weight)
            torch.sigmoid(ahead, out=shares[t])
            torch.lerp(reads[t - 1], values[t], shares[t], out=reads[t])
            log_weight = aten.softplus(ahead.neg_()).add_(i)
        else:
            # Nothing is remembered yet: the first value is the whole memory.
            shares[0].fill_(1.0)
            reads[0].copy_(values[0])
        torch.mul(out_gates[t], reads[t], out=states[t])
    return values, shares, forget_slope, reads, out_gates, states


def _recur_back(dstates: Tensor, w: Weights, kept: Kept, g: Weights) -> tuple[Tensor, Tensor]:
    """Go back through the steps: the gradients of both gate inputs, [T,H,M,2D]; add the recurrence's to g."""
    values, shares, forget_slope, reads, out_gates, states = kept[3:]
    T, H, M, D = values.shape
    # Slopes of all steps at once; only what depends on later steps is left to the loop.
    value_slope = torch.mul(values, values).neg_().add_(1.0).mul_(shares)
    out_slope = torch.mul(out_gates, states).neg_().add_(states)
    dsmooth, ddirect = values.new_empty(2, T, H, M, 2 * D)
    dread, dlog = values.new_zeros(2, H, M, D)
    for t in reversed(range(T)):
        dstate = dstates[t]
        if t < T - 1:
            dstate.baddbmm_(dsmooth[t + 1], w.smooth_recurrence.transpose(1, 2))
            dstate.baddbmm_(ddirect[t + 1], w.direct_recurrence.transpose(1, 2))
        (di, df), (dz, do) = dsmooth[t].chunk(2, dim=-1), ddirect[t].chunk(2, dim=-1)
        torch.mul(dstate, out_slope[t], out=do)
        dread.addcmul_(dstate, out_gates[t])
        torch.mul(dread, value_slope[t], out=dz)
        if t:
            # The read moved from the last one by share·(value − last): the last one keeps 1 − share of it,
            # which is also what the move still had to gain from a larger share.
            dread.addcmul_(dread, shares[t], value=-1)
            gain = torch.sub(reads[t], reads[t - 1]).mul_(dread).addcmul_(dlog, shares[t])
            di.copy_(gain)
            torch.mul(dlog.sub_(gain), forget_slope[t], out=df)
            past = states[t - 1].transpose(1, 2)
            g.smooth_recurrence.baddbmm_(past, dsmooth[t])
            g.direct_recurrence.baddbmm_(past, ddirect[t])
        else:
            di.copy_(dlog)
            df.zero_()
        g.smooth_bias.add_(dsmooth[t].sum(1, keepdim=True))
        g.direct_bias.add_(ddirect[t].sum(1, keepdim=True))
    return dsmooth, ddirect


def gated_gelu(both: Tensor) -> Tensor:
    """Map [...,2F], gate inputs then values, to gelu(gate)·value, [...,F]."""
    return _GatedGelu.apply(both)


class _GatedGelu(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, both: Tensor) -> Tensor:
        ctx.save_for_backward(both)
        gate, value = both.chunk(2, dim=-1)
        return F.gelu(gate).mul_(value)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dout: Tensor) -> Tensor:
        (both,) = ctx.saved_tensors
        gate, value = both.chunk(2, dim=-1)
        dboth = torch.empty_like(both)
        dgate, dvalue = dboth.chunk(2, dim=-1)
        torch.mul(dout, F.gelu(gate), out=dvalue)
        aten.gelu_backward.grad_input(torch.mul(dout, value), gate, grad_input=dgate)
        return dboth
