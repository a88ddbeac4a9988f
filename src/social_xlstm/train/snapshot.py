"""Take a running training's whole state as a checkpoint, and restore it."""

from typing import Any

import torch
from torch import nn

from social_xlstm.config import OptimizerConfig
from social_xlstm.errors import InputError
from social_xlstm.train.checkpoint import Checkpoint
from social_xlstm.train.distributed import World
from social_xlstm.train.seeds import random_state, restore_random_state
from social_xlstm.train.state import FitState
from social_xlstm.train.step import Recipe


def take(
    state: FitState, model: nn.Module, recipe: Recipe, world: World, about: dict[str, Any]
) -> Checkpoint:
    """Collect weights, optimizer, scaler, position and every process's random state."""
    return Checkpoint(
        progress=state.to_plain(),
        model=model.state_dict(),
        optimizer=recipe.optimizer.state_dict(),
        scaler=recipe.precision.scaler.state_dict(),
        sums=recipe.sums.epoch,
        random=world.gather(random_state()),
        about=about,
    )


def restore(
    checkpoint: Checkpoint, model: nn.Module, recipe: Recipe, world: World, optimizer: OptimizerConfig
) -> FitState:
    """Restore a checkpoint's state into model, optimizer and generators; return its position."""
    state = FitState.from_plain(checkpoint.progress)
    load_weights(model, checkpoint)
    if len(checkpoint.random) != world.size:
        raise InputError(
            f"the checkpoint was made by {len(checkpoint.random)} process(es) and {world.size} run now, "
            "which would change the joined batch and the position in the epoch; resume with the same number"
        )
    try:
        recipe.optimizer.load_state_dict(checkpoint.optimizer)
        recipe.precision.scaler.load_state_dict(checkpoint.scaler)
        recipe.sums.epoch.copy_(checkpoint.sums)
        restore_random_state(checkpoint.random[world.rank])
    # What torch, NumPy and Python raise when a state does not have the shape they expect.
    except (ValueError, KeyError, TypeError, RuntimeError, AttributeError, IndexError) as error:
        raise InputError(
            f"the checkpoint's optimizer or random state does not fit this training ({error}); "
            "resume with the configuration it was made with"
        ) from None
    for group in recipe.optimizer.param_groups:  # the configuration has the last word on what may change
        group["weight_decay"] = optimizer.weight_decay
    return state


def load_weights(model: nn.Module, checkpoint: Checkpoint) -> None:
    """Load a checkpoint's weights into the model, or name what does not fit."""
    if not isinstance(checkpoint.model, dict) or not all(
        isinstance(value, torch.Tensor) for value in checkpoint.model.values()
    ):
        raise InputError("the checkpoint's weights are not tensors; the file is damaged")
    try:
        model.load_state_dict(checkpoint.model)
    except RuntimeError as error:
        lines = [line.strip() for line in str(error).splitlines()[1:3]]
        raise InputError(
            f"the checkpoint's weights do not fit this model ({' '.join(lines)}); "
            "use the model, features and detectors it was trained with"
        ) from None
