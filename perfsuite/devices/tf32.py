"""Tell whether torch would let a CUDA card multiply float32 in TF32: its own switches, asked at each use."""

from typing import Literal

import torch

from perfsuite.devices.kernels import Family

Unit = Literal["matmul", "conv", "rnn"]  # each has a switch of its own; cuDNN's are on by default

_UNITS: dict[Family, Unit] = {
    Family.LINEAR: "matmul",
    Family.BMM: "matmul",
    Family.ATTENTION: "matmul",
    Family.CONVOLUTION: "conv",
    Family.RECURRENCE: "rnn",
}


def unit_of(family: Family) -> Unit | None:
    """Return which switch decides for a family of kernels; None for those that multiply no matrices."""
    return _UNITS.get(family)


def is_allowed(unit: Unit) -> bool:
    """Tell whether TF32 is switched on, whichever of torch's two ways was used to say so."""
    backend = torch.backends.cuda.matmul if unit == "matmul" else getattr(torch.backends.cudnn, unit, None)
    asked = getattr(backend, "fp32_precision", None)
    if asked is not None:
        return bool(asked == "tf32")
    # Before torch 2.9 there was one switch for cuDNN, and no other way to ask.
    owner = torch.backends.cuda.matmul if unit == "matmul" else torch.backends.cudnn
    return bool(owner.allow_tf32)
