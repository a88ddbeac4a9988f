"""What the hand-written passes of the fast cells share: when they apply, and the convolution both ways.

Autograd writes every intermediate result of a layer to memory of its own. On a CPU the fresh pages cost more
than the arithmetic, so there the fast cells run as one function each, whose backward pass is written out and
works in few buffers. Everywhere else (GPU, torch.compile, vmap, autocast) the plain formula runs.
"""

import torch
from torch import Tensor

# A part of this many bytes per activation stays in the processor's cache between one operation and the next.
_CACHED_BYTES = 4 * 2**20


def applies(x: Tensor) -> bool:
    """Tell whether a hand-written pass may take this input."""
    return (
        not torch.compiler.is_compiling()
        # What torch's own autograd functions ask: under vmap and its kin they cannot run as they are.
        and not torch._C._are_functorch_transforms_active()
        # Not cpu:0: under an index a CPU stands for another device, such as a modelled card, and runs as it.
        and x.device == torch.device("cpu")
        and x.dtype in (torch.float32, torch.float64)
        and not torch.is_autocast_enabled("cpu")
    )


def part_size(x: Tensor, width: int) -> int:
    """Return how many sequences of x [M,T,E] to take at a time when activations are `width` wide."""
    sequence_bytes = x.shape[1] * width * x.element_size()
    parts = -(-x.shape[0] * sequence_bytes // _CACHED_BYTES)
    return -(-x.shape[0] // parts)  # parts of equal size: a small last one would run at a lower rate


def convolve(x: Tensor, taps: Tensor, bias: Tensor) -> Tensor:
    """Convolve every channel of [m,T,E] with its own past; taps [kernel,E], the present step's last."""
    T = x.shape[1]
    y = torch.addcmul(bias, x, taps[-1])
    for lag in range(1, min(len(taps), T)):
        y[:, lag:].addcmul_(x[:, : T - lag], taps[-1 - lag])
    return y


def add_convolution_gradients(dy: Tensor, x: Tensor, taps: Tensor, dx: Tensor, dtaps: Tensor) -> None:
    """Add the gradients of the convolution's input to dx [m,T,E] and of its taps to dtaps [kernel,E]."""
    T, E = x.shape[1:]
    buffer = dy.new_empty(dy.numel())
    for lag in range(min(len(taps), T)):
        later, earlier = dy[:, lag:], x[:, : T - lag]
        dx[:, : T - lag].addcmul_(later, taps[-1 - lag])
        # Contiguous products: a sum over strided rows is twenty times as slow.
        products = buffer[: later.numel()].view(later.shape)
        torch.mul(later, earlier, out=products)
        dtaps[-1 - lag].add_(products.view(-1, E).sum(0))
