"""Where an outside tool can look into a training or wrap its loader and its step."""

from collections.abc import Callable, Iterable
from typing import Any

import torch

from social_xlstm.train.state import FitState

Step = Callable[..., torch.Tensor]


class Callback:
    """Override what is of interest; everything here does nothing.

    `wrap_loader` and `wrap_step` are asked once per epoch and once per fit. What they return is used in place
    of what they got, so a profiler or a timer sees every batch and every step without a change to the loop.
    """

    def wrap_loader(self, batches: Iterable[Any]) -> Iterable[Any]:
        """Return what the loop iterates over instead of these batches."""
        return batches

    def wrap_step(self, step: Step) -> Step:
        """Return what the loop calls instead of `train_step(recipe, batch, update=…)`."""
        return step

    def on_fit_start(self, state: FitState, batches_per_epoch: int, max_epochs: int) -> None:
        """Learn that training begins, perhaps in the middle of an epoch."""

    def on_step(self, state: FitState, loss: torch.Tensor) -> None:
        """Learn that a batch was trained on; reading the loss would be a host sync, so do not."""

    def on_log(self, state: FitState, loss: float) -> None:
        """Learn the loss at a logging step, where the loop has read it anyway."""

    def on_train_end(self, state: FitState) -> None:
        """Learn that the epoch's last batch was trained on, before validation."""

    def epoch_columns(self, state: FitState) -> dict[str, float | None]:  # noqa: ARG002 - for overriders
        """Add columns to the epoch's row of results."""
        return {}

    def on_epoch_end(self, state: FitState, row: dict[str, Any]) -> None:
        """Learn the epoch's row of results."""

    def on_message(self, text: str) -> None:
        """Learn something the user should see."""

    def on_fit_end(self, state: FitState) -> None:
        """Learn that training ended: finished, stopped early, or interrupted."""
