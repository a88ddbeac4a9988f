"""Small layers under the xlstm package's parameter names: causal convolution, norms, head-wise weights."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

# Shapes: M sequences, T steps, E width, H heads, D = E/H head width.


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

    def taps(self) -> Tensor:
        """Return the weights as [kernel,E], the present step's last."""
        return self.conv.weight.squeeze(1).t()

    def forward(self, x: Tensor) -> Tensor:
        """Map [M,T,E] to [M,T,E]; step t depends on steps up to t."""
        taps = self.taps().to(x.dtype)
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

    def scale(self) -> Tensor:
        """Return what the normalized channels are multiplied by."""
        return 1.0 + self.weight

    def forward(self, x: Tensor) -> Tensor:
        """Map [...,E] to [...,E]."""
        if self.groups == 1:
            return F.layer_norm(x, x.shape[-1:], self.scale())
        grouped = x.unflatten(-1, (self.groups, -1))
        return F.layer_norm(grouped, grouped.shape[-1:]).flatten(-2) * self.scale()
