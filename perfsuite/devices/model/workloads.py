"""The operators a calibration measures, in several sizes, called as autograd and optimizers call them."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch

Call = Callable[[], Any]
SIZES = (1 << 10, 1 << 14, 1 << 18, 1 << 21)  # elements: a latency, two cache sizes, memory
# m, n, k of products, with a batch in front for bmm: squares, thin ones, and the small blocks of gated cells
PRODUCTS = (
    (1, 64, 64, 64), (1, 512, 512, 512), (1, 1024, 1024, 1024), (1, 4096, 128, 128), (1, 128, 512, 2048),
    (1, 16384, 128, 64), (1, 32, 256, 256), (48, 64, 64, 64), (256, 64, 64, 64), (512, 12, 12, 64),
    (4096, 12, 64, 12), (64, 4, 4, 512), (64, 512, 4, 4), (32, 4096, 4, 4), (64, 4, 4, 4096),
    (4, 256, 512, 128), (8, 128, 128, 512), (4, 256, 32, 32), (4, 32, 32, 256), (128, 24, 24, 16),
)  # fmt: skip
_WIDTH = 128
# images, channels, side, kernel and stride of convolutions over all channels
_CONVOLUTIONS = (
    (16, 64, 56, 3, 1),
    (32, 256, 14, 3, 1),
    (32, 256, 28, 1, 1),
    (16, 128, 28, 3, 2),
    (4, 512, 7, 3, 1),
)


def products(device: Any) -> Iterator[tuple[tuple[int, int, int, int], Call]]:
    """Yield matrix products: batch, m, n, k, and the call."""
    for batch, m, n, k in PRODUCTS:
        left, right = torch.randn(batch, m, k, device=device), torch.randn(batch, k, n, device=device)
        if batch == 1:
            a, b = left[0], right[0]
            yield (batch, m, n, k), partial(torch.mm, a, b)
        else:
            # Heads are adjacent in memory, and gradients come transposed.
            heads = torch.randn(m, batch, k, device=device).transpose(0, 1)
            turned = torch.randn(batch, n, k, device=device).transpose(1, 2)
            yield (batch, m, n, k), partial(torch.bmm, heads, right)
            yield (batch, m, n, k), partial(torch.bmm, left, turned)


def row_calls(device: Any) -> Iterator[Call]:
    """Yield calls of operators on elements or rows, one for each operator and size."""
    for size in SIZES:
        yield from _elementwise(size, device)
        yield from _rows(size, device)
    for length, batch, width in ((12, 8, 32), (12, 64, 64), (12, 256, 128), (24, 256, 256)):
        yield from _recurrence(length, batch, width, device)
    for channels, rows in ((64, 16), (256, 64), (256, 512)):
        yield from _convolution(channels, rows, device)


def _elementwise(size: int, device: Any) -> Iterator[Call]:
    aten = torch.ops.aten
    x, y, z = (torch.rand(size, device=device) for _ in range(3))
    cube = x.view(-1, 16, 16).transpose(1, 2)
    mask = y > 0.5
    yield lambda: x + y
    yield lambda: x * y
    yield lambda: x / y
    yield lambda: aten.sub(x, y)
    yield lambda: aten.neg(x)
    yield lambda: aten.eq(x, 0.5)
    yield lambda: aten.gt(x, y)
    yield lambda: aten.minimum(x, y)
    yield lambda: aten.where(mask, x, y)
    yield lambda: aten.masked_fill_(z, mask, 0.5)
    yield lambda: aten.zeros_like(x)
    yield lambda: torch.zeros(size, device=device)
    yield lambda: aten.bernoulli_(z, 0.9)
    yield lambda: aten.clone(cube, memory_format=torch.contiguous_format)
    yield lambda: z.view(-1, 16, 16).copy_(cube)
    yield lambda: aten.cat([x, y])
    yield lambda: aten.stack([x, y])
    yield lambda: aten.slice_backward(x, [2 * size], 0, 0, size, 1)
    yield lambda: aten.select_backward(x, [2, size], 0, 0)
    for name in ("exp", "tanh", "sigmoid", "silu", "gelu", "relu", "log_sigmoid_forward"):
        yield partial(getattr(aten, name), x)
    for name in ("tanh_backward", "sigmoid_backward", "silu_backward", "gelu_backward"):
        yield partial(getattr(aten, name), x, y)
    yield lambda: aten.threshold_backward(x, y, 0)
    yield lambda: aten.log_sigmoid_backward(x, y, z)
    yield lambda: aten.native_dropout(x, 0.1, True)
    yield lambda: aten.native_dropout_backward(x, mask, 1.1)
    yield lambda: aten._fused_adam_(
        *([x], [y], [z], [z], [], [torch.ones((), device=device)]),
        lr=0.0, beta1=0.9, beta2=0.99, weight_decay=0.0, eps=1e-8, amsgrad=False, maximize=False,
    )  # fmt: skip


def _rows(size: int, device: Any) -> Iterator[Call]:
    aten = torch.ops.aten
    x = torch.rand(size // _WIDTH, _WIDTH, device=device)
    weight = torch.ones(_WIDTH, device=device)
    soft = torch.softmax(x, -1)
    out, centre, scale = aten.native_layer_norm(x, [_WIDTH], weight, weight, 1e-5)
    group = (x.shape[0], _WIDTH, 1, 4)  # rows of heads, each normalized separately
    _, mean, deviation = aten.native_group_norm(x, weight, weight, *group, 1e-5)
    yield lambda: aten.sum(x, [0], True)
    yield lambda: aten.max(x, -1)
    yield lambda: aten.all(x)
    yield lambda: aten._softmax(x, -1, False)
    yield lambda: aten._softmax_backward_data(x, soft, -1, torch.float32)
    yield lambda: aten.native_layer_norm(x, [_WIDTH], weight, weight, 1e-5)
    yield lambda: aten.native_layer_norm_backward(
        out, x, [_WIDTH], centre, scale, weight, weight, [True, True, True]
    )
    yield lambda: aten.native_group_norm(x, weight, weight, *group, 1e-5)
    yield lambda: aten.native_group_norm_backward(x, x, mean, deviation, weight, *group, [True, True, True])


def _recurrence(length: int, batch: int, width: int, device: Any) -> Iterator[Call]:
    layer = torch.nn.LSTM(width, width).to(device)
    x = torch.rand(length, batch, width, device=device, requires_grad=True)
    output = layer(x)[0].sum()
    yield lambda: layer(x)
    yield partial(torch.autograd.grad, output, [x, *layer.parameters()], retain_graph=True)


def _convolution(channels: int, rows: int, device: Any) -> Iterator[Call]:
    aten = torch.ops.aten
    x = torch.rand(rows, channels, 12, device=device)
    weight, bias = torch.rand(channels, 1, 4, device=device), torch.rand(channels, device=device)
    shape = ([1], [3], [1], False, [0], channels)
    out = aten.convolution(x, weight, bias, *shape)
    yield lambda: aten.convolution(x, weight, bias, *shape)
    yield lambda: aten.convolution_backward(out, x, weight, [channels], *shape, [True, True, True])


def dense_convolutions(device: Any) -> Iterator[Call]:
    """Yield convolutions as in image models, forward and backward; a processor takes seconds for them."""
    aten = torch.ops.aten
    for images, channels, side, kernel, stride in _CONVOLUTIONS:
        x = torch.rand(images, channels, side, side, device=device)
        weight = torch.rand(channels, channels, kernel, kernel, device=device)
        shape = ([stride] * 2, [kernel // 2] * 2, [1, 1], False, [0, 0], 1)
        out = aten.convolution(x, weight, None, *shape)
        yield partial(aten.convolution, x, weight, None, *shape)
        yield partial(aten.convolution_backward, out, x, weight, None, *shape, [True, True, False])


def training(device: Any, rows: int, width: int, steps: int) -> Call:
    """Return a training step of a gated cell with heads, norm and mixing: operators, views and autograd.

    With tiny sizes it shows what an operator costs in addition to its kernel, with real ones how much
    slower kernels are in a step, where caches are cold, than alone.
    """
    gates = torch.nn.Linear(2 * width, 4 * width).to(device)
    norm = torch.nn.LayerNorm(width).to(device)
    heads = torch.randn(4, width // 4, width // 4, device=device, requires_grad=True)
    x = torch.rand(rows, steps, width, device=device)
    trained = [*gates.parameters(), *norm.parameters(), heads]

    def step() -> None:
        state, cell, states = x[:, 0], x[:, 0], []
        for i in range(steps):
            mixed = (
                torch.bmm(state.view(rows, 4, -1).transpose(0, 1), heads).transpose(0, 1).reshape(rows, -1)
            )
            parts = gates(torch.cat([x[:, i], mixed], -1)).view(rows, 4, width).unbind(1)
            kept, new, shown, value = (*(torch.sigmoid(part) for part in parts[:3]), torch.tanh(parts[3]))
            cell = kept * cell + new * value
            state = shown * torch.tanh(cell)
            states.append(state)
        out = norm(torch.stack(states, 1))
        scores = torch.softmax(out @ out.transpose(1, 2) / width, -1) @ out
        torch.autograd.grad((torch.nn.functional.gelu(out) + scores).square().mean(), trained)

    return step
