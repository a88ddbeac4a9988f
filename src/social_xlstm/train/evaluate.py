"""Measure a model on a part of the data, and collect forecasts, reading from the device once."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import nn

from social_xlstm.errors import InputError
from social_xlstm.train.distributed import World
from social_xlstm.train.metrics import ErrorSums, Metrics
from social_xlstm.train.precision import Precision
from social_xlstm.train.transfer import move_to_device

Inverse = Callable[[torch.Tensor], torch.Tensor]


@dataclass(frozen=True)
class Evaluation:
    """How batches are brought to the device, predicted, and turned back into real units."""

    precision: Precision
    inverse: Inverse
    feature_names: Sequence[str]
    non_blocking: bool = True
    arrange: Callable[[Any], Any] | None = None
    world: World = field(default_factory=World)

    def batches(self, loader: Iterable[Any]) -> Iterator[Any]:
        """Bring each batch to the device in centralized form."""
        for batch in loader:
            moved = move_to_device(batch, self.precision.device, non_blocking=self.non_blocking)
            yield moved if self.arrange is None else self.arrange(moved)


def evaluate(model: nn.Module, loader: Iterable[Any], evaluation: Evaluation) -> Metrics:
    """Return loss, MAE, RMSE and MAPE over everything the loader gives."""
    sums: ErrorSums | None = None
    with _predicting(model):
        for batch in evaluation.batches(loader):
            with evaluation.precision.autocast():
                prediction = model(batch.features)
            prediction = prediction.float()
            if sums is None:
                sums = ErrorSums(batch.targets.shape[1], batch.targets.shape[3], batch.targets.device)
            sums.add(
                evaluation.inverse(prediction),
                evaluation.inverse(batch.targets),
                batch.mask,
                prediction - batch.targets,
            )
    # A part smaller than the number of processes leaves some of them nothing; they still add their zeros.
    shapes = evaluation.world.gather(None if sums is None else tuple(sums.sums.shape[1:]))
    if sums is None:
        shape = next((shape for shape in shapes if shape is not None), None)
        if shape is None:
            raise InputError("there is no window to evaluate on; enlarge this part of data.split")
        sums = ErrorSums(*shape, evaluation.precision.device)
    sums.sums = evaluation.world.sum(sums.sums)
    return sums.read(evaluation.feature_names)


@dataclass(frozen=True)
class Forecast:
    """Forecast, truth and what was observed, `[windows, steps, detectors, features]`, in real units."""

    predicted: np.ndarray
    actual: np.ndarray
    observed: np.ndarray


def forecast(model: nn.Module, loader: Iterable[Any], evaluation: Evaluation) -> Forecast:
    """Collect the forecasts of every window on the device and copy them to the host at the end."""
    predicted, actual, observed = [], [], []
    with _predicting(model):
        for batch in evaluation.batches(loader):
            with evaluation.precision.autocast():
                prediction = model(batch.features)
            predicted.append(evaluation.inverse(prediction.float()))
            actual.append(evaluation.inverse(batch.targets))
            observed.append(batch.mask)
    if not predicted:
        raise InputError("there is no window to forecast; enlarge this part of data.split")
    # host sync: three copies after the last batch, none before
    return Forecast(*(torch.cat(parts).cpu().numpy() for parts in (predicted, actual, observed)))


@contextmanager
def _predicting(model: nn.Module) -> Iterator[None]:
    """Switch dropout and gradients off for the block, and restore the model's mode."""
    was_training = model.training
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        model.train(was_training)
