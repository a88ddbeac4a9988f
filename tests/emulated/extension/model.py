"""A perceptron whose bias and activation are a CUDA extension, compiled when this is imported."""

from pathlib import Path

import torch
from torch import nn
from torch.utils.cpp_extension import load

load("fused", [str(Path(__file__).with_name("fused.cu"))], is_python_module=False)


class BiasRelu(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, bias):
        y = torch.ops.fused.bias_relu(x, bias)
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, gradient):
        into = torch.ops.fused.bias_relu_backward(gradient.contiguous(), *ctx.saved_tensors)
        return into, into.sum(0)


class Perceptron(nn.Module):
    def __init__(self, width=64, hidden=256):
        super().__init__()
        self.first = nn.Linear(width, hidden, bias=False)
        self.bias = nn.Parameter(torch.zeros(hidden))
        self.last = nn.Linear(hidden, 1)

    def forward(self, x):
        return self.last(BiasRelu.apply(self.first(x), self.bias))
