"""Build the optimizer a configuration names, in the form that needs no host sync."""

from collections.abc import Iterable

import torch
from torch import nn

from social_xlstm.config import OptimizerConfig
from social_xlstm.errors import InputError

_OPTIMIZERS = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW, "sgd": torch.optim.SGD}


def build_optimizer(config: OptimizerConfig, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    """Make the optimizer for the parameters that are trained.

    Fused: one kernel for all parameters, the step counter stays on the device, and the loss scaler hands its
    overflow flag over as a tensor, where the unfused form reads it on the host in every step.
    """
    if config.name not in _OPTIMIZERS:
        raise InputError(f"optimizer {config.name!r} is unknown; choose one of {', '.join(_OPTIMIZERS)}")
    trained = [parameter for parameter in parameters if parameter.requires_grad]
    if not trained:
        raise InputError("the model has no parameter to train; unfreeze some before making the optimizer")
    return _OPTIMIZERS[config.name](trained, lr=config.lr, weight_decay=config.weight_decay, fused=True)
