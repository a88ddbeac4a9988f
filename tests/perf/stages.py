"""Where a training's time goes, from the loader to the log; timed from outside."""

import contextlib
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any
from unittest import mock

import torch

from social_xlstm.train import step as steps
from social_xlstm.train.hooks import Callback
from social_xlstm.train.loop import Trainer

STAGES = ("loader", "transfer", "forward", "backward", "optimizer", "logging", "other")
_OUTSIDE = "logging"  # between a step and the next request for a batch the loop logs and keeps its books


class Stages(Callback):
    """Credit every moment to the stage it was spent in; they add up to the whole."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self.seconds: Counter[str] = Counter()
        self._stack = [_OUTSIDE]
        self._since: float | None = None  # nothing is credited before the first batch is asked for

    def _credit(self) -> None:
        now = self._clock()  # the clock is read at every border between stages
        if self._since is not None:
            self.seconds[self._stack[-1]] += now - self._since
        self._since = now

    @contextlib.contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Credit what happens inside to a stage, but for stages inside of it."""
        self._credit()
        self._stack.append(name)
        try:
            yield
        finally:
            self._credit()
            self._stack.pop()

    def timed(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return the function, credited to a stage."""

        def call(*args: Any, **kwargs: Any) -> Any:
            with self.stage(name):
                return function(*args, **kwargs)

        return call

    def wrap_loader(self, batches: Iterable[Any]) -> Iterator[Any]:
        """Credit the wait for each batch to the loader."""
        given = iter(batches)
        while True:
            with self.stage("loader"):
                batch = next(given, None)
            if batch is None:
                return
            yield batch

    def wrap_step(self, step: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
        """Credit what no other stage of the step takes to «other»: the loss, sums, bookkeeping."""
        return self.timed("other", step)

    @property
    def shares(self) -> dict[str, float]:
        """Return each stage's share of the whole, in the order of a step."""
        whole = sum(self.seconds.values())
        return {name: self.seconds[name] / whole for name in STAGES} if whole else {}


@contextlib.contextmanager
def watched(trainer: Trainer, stages: Stages) -> Iterator[None]:
    """Time a trainer's stages while the block lasts; the step's own code stays as it is."""
    recipe = trainer.recipe
    trainer.recipe = replace(recipe, model=stages.timed("forward", recipe.model))
    with (
        mock.patch.object(steps, "move_to_device", stages.timed("transfer", steps.move_to_device)),
        mock.patch.object(steps, "apply_gradients", stages.timed("optimizer", steps.apply_gradients)),
        mock.patch.object(torch.Tensor, "backward", _method(stages, torch.Tensor.backward)),
    ):
        yield
    trainer.recipe = recipe


def _method(stages: Stages, backward: Callable[..., Any]) -> Callable[..., Any]:
    """Return a method that is credited to the backward pass."""

    def timed(self: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        with stages.stage("backward"):
            return backward(self, *args, **kwargs)

    return timed


def device_clock(device: str) -> Callable[[], float]:
    """Return a clock that waits for the device: shares of stages that overlap would mean nothing."""
    if not device.startswith("cuda"):
        return time.perf_counter

    def now() -> float:
        torch.cuda.synchronize(device)  # the CPU waits here, at every border: for shares, not for speed
        return time.perf_counter()

    return now
