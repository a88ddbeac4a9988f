"""Forms of social pooling and small towns to try them on."""

import pytest
import torch
from torch import Tensor

from social_xlstm.config import PoolingConfig
from social_xlstm.model.pooling import SocialPooling

KERNELS = ("uniform", "gaussian", "exponential", "linear", "inverse")
MEANS = [{"kernel": kernel, "sparse": sparse} for kernel in KERNELS for sparse in (False, True)]
MAXIMA = [{"pool_type": "max", "sparse": sparse} for sparse in (False, True)]
LEARNT = [{**form, "learnable": True} for form in MEANS if form["kernel"] != "uniform"]


def every(forms):
    return pytest.mark.parametrize("form", forms, ids=lambda form: "-".join(map(str, form.values())))


def town(n: int = 12, seed: int = 0, size: float = 3000.0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(n, 2, generator=generator, dtype=torch.float64) * size


def states(n: int = 12, seed: int = 1, windows: int = 2, width: int = 3) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(windows, n, width, generator=generator, dtype=torch.float64)


def pooling(positions: Tensor, radius: float = 1000.0, directions=None, **form) -> SocialPooling:
    config = PoolingConfig(radius=radius, **form)
    return SocialPooling(config, torch.as_tensor(positions), directions, dtype=torch.float64)


def same(expected: Tensor, actual: Tensor, tolerance: float = 1e-12) -> bool:
    return expected.shape == actual.shape and (expected - actual).abs().max().item() <= tolerance
