"""Callbacks: observe a training from outside, or wrap its loader and its step."""

from collections.abc import Callable, Iterable
from typing import Any

import torch

from social_xlstm.train.state import FitState

Step = Callable[..., torch.Tensor]


class Callback:
    """Override what is of interest; every method here does nothing.

    `wrap_loader` is called once per epoch, `wrap_step` once per fit. Their result is used in place of their
    argument, so a profiler or a timer gets every batch and every step without a change to the loop.
    """

    def wrap_loader(self, batches: Iterable[Any]) -> Iterable[Any]:
        """Return what the loop iterates over instead of these batches."""
        return batches

    def wrap_step(self, step: Step) -> Step:
        """Return what the loop calls instead of `train_step(recipe, batch, update=…)`."""
        return step

    def on_fit_start(self, state: FitState, batches_per_epoch: int, max_epochs: int) -> None:
        """Called when training begins, perhaps in the middle of an epoch."""

    def on_step(self, state: FitState, loss: torch.Tensor) -> None:
        """Called after each batch; do not read the loss, which would be a host sync."""

    def on_log(self, state: FitState, loss: float) -> None:
        """Called at a logging step, with the loss that the loop has read anyway."""

    def on_train_end(self, state: FitState) -> None:
        """Called after the epoch's last batch, before validation."""

    def epoch_columns(self, state: FitState) -> dict[str, float | None]:  # noqa: ARG002 - for overriders
        """Add columns to the epoch's row of results."""
        return {}

    def on_epoch_end(self, state: FitState, row: dict[str, Any]) -> None:
        """Called with the epoch's row of results."""

    def on_message(self, text: str) -> None:
        """Called with a message for the user."""

    def on_fit_end(self, state: FitState) -> None:
        """Called when training ended: finished, stopped early, or interrupted."""
