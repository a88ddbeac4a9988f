"""One training step that does nothing but train, and the optimizer and learning rate it updates with."""

import math
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from social_xlstm.config import OptimizerConfig
from social_xlstm.errors import InputError
from social_xlstm.train.precision import Precision
from social_xlstm.train.transfer import move_to_device

# Near the number of targets in a usual batch, so that float16 gradients start in range; a power of two, so
# that dividing by it and multiplying by it later rounds nothing.
DIVISOR = 2.0**16
_OPTIMIZERS = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW, "sgd": torch.optim.SGD}


@dataclass(frozen=True)
class Sums:
    """Squared error and observed targets, counted on the device: of the open group, and of closed ones."""

    group: torch.Tensor
    epoch: torch.Tensor

    @classmethod
    def zero(cls, device: torch.device | str) -> "Sums":
        """Return sums of zero."""
        group, epoch = torch.zeros(2, 2, dtype=torch.float64, device=device).unbind()
        return cls(group, epoch)


@dataclass(frozen=True)
class Recipe:
    """All that a step needs beside its batch."""

    model: Callable[[torch.Tensor], torch.Tensor]
    optimizer: torch.optim.Optimizer
    precision: Precision
    sums: Sums
    clip: float | None = None
    set_to_none: bool = True
    non_blocking: bool = True
    arrange: Callable[[Any], Any] | None = None
    without_sync: Callable[[], AbstractContextManager[Any]] = nullcontext
    sum_over_world: Callable[[torch.Tensor], torch.Tensor] | None = None
    world_size: int = 1
    parameters: tuple[nn.Parameter, ...] = field(init=False)

    def __post_init__(self) -> None:
        trained = tuple(p for group in self.optimizer.param_groups for p in group["params"])
        object.__setattr__(self, "parameters", trained)


def train_step(recipe: Recipe, batch: Any, *, update: bool = True) -> torch.Tensor:
    """Learn from one batch and return its mean loss, still on the device.

    With `update=False` the gradient is only added up; the step that updates closes the group. A group's
    gradient is that of its batches joined into one, whatever their sizes and missing targets.
    """
    with nullcontext() if update else recipe.without_sync():
        loss = backward(recipe, batch)
    if update:
        apply_gradients(recipe)
    return loss


def backward(recipe: Recipe, batch: Any) -> torch.Tensor:
    """Add the gradient of one batch's squared error over DIVISOR; return the batch's mean loss."""
    batch = move_to_device(batch, recipe.precision.device, non_blocking=recipe.non_blocking)
    if recipe.arrange is not None:
        batch = recipe.arrange(batch)
    with recipe.precision.autocast():
        prediction = recipe.model(batch.features)
    squared, observed = masked_squared_error(prediction, batch.targets, batch.mask)
    recipe.precision.scaler.scale(squared / DIVISOR).backward()
    squared = squared.detach()
    recipe.sums.group.add_(torch.stack((squared, observed)))
    return squared / observed.clamp(min=1)


def apply_gradients(recipe: Recipe) -> None:
    """Turn the group's sum into its mean, clip, update the weights and drop the gradients."""
    scaler, optimizer = recipe.precision.scaler, recipe.optimizer
    scaler.unscale_(optimizer)
    observed = recipe.sums.group[1]
    if recipe.sum_over_world is not None:
        observed = recipe.sum_over_world(observed)
    # Processes average their gradients, hence the world's size; nothing observed leaves a zero gradient.
    factor = (DIVISOR * recipe.world_size / observed.clamp(min=1)).float()
    gradients = [p.grad for p in recipe.parameters if p.grad is not None]
    torch._foreach_mul_(gradients, factor)
    if recipe.clip is not None:
        nn.utils.clip_grad_norm_(recipe.parameters, recipe.clip)
    scaler.step(optimizer)
    scaler.update()
    recipe.sums.epoch.add_(recipe.sums.group)
    drop_gradients(recipe)


def drop_gradients(recipe: Recipe) -> None:
    """Forget the open group."""
    recipe.optimizer.zero_grad(set_to_none=recipe.set_to_none)
    recipe.sums.group.zero_()


def masked_squared_error(
    prediction: torch.Tensor, targets: torch.Tensor, mask: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Sum the squared error over observed targets and count them, in float32 whatever the autocast."""
    # Selecting before squaring keeps a NaN in an unobserved place out of the loss and out of its gradient.
    error = torch.where(mask, prediction.float() - targets, 0.0)
    return error.square().sum(), mask.sum(dtype=torch.float32)


def masked_mse(prediction: torch.Tensor, targets: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Average the squared error over observed targets; without any it is 0."""
    squared, observed = masked_squared_error(prediction, targets, mask)
    return squared / observed.clamp(min=1)


def build_optimizer(config: OptimizerConfig, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    """Make the optimizer for the parameters that are trained.

    Fused: one kernel for all parameters, the step counter stays on the device, and the loss scaler passes its
    overflow flag as a tensor, where the unfused form reads it on the host in every step.
    """
    if config.name not in _OPTIMIZERS:
        raise InputError(f"optimizer {config.name!r} is unknown; choose one of {', '.join(_OPTIMIZERS)}")
    trained = [parameter for parameter in parameters if parameter.requires_grad]
    if not trained:
        raise InputError("the model has no parameter to train; unfreeze some before making the optimizer")
    return _OPTIMIZERS[config.name](trained, lr=config.lr, weight_decay=config.weight_decay, fused=True)


def learning_rate(config: OptimizerConfig, update: int, updates: int) -> float:
    """Return the rate of one update (counted from 0) of a training of so many updates.

    A function of the update alone, so that a resumed training needs no scheduler's state. Both schedules rise
    in a straight line over the first `warmup_share` of the training; `cosine` then falls to zero along half a
    cosine, `constant` stays.
    """
    warmup = config.warmup_share * updates
    if update < warmup:
        return config.lr * (update + 1) / (warmup + 1)
    if config.schedule == "constant":
        return config.lr
    progress = min((update - warmup) / max(updates - warmup, 1.0), 1.0)
    return config.lr * 0.5 * (1 + math.cos(math.pi * progress))
