"""Errors in real units over observed targets, read from the device once."""

from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from social_xlstm.errors import InputError
from social_xlstm.train.evaluate import Evaluation, evaluate, forecast
from social_xlstm.train.metrics import ErrorSums
from social_xlstm.train.precision import Precision
from tests.model.sync_counter import HostSyncs


@dataclass(frozen=True)
class Windows:
    features: torch.Tensor
    targets: torch.Tensor
    mask: torch.Tensor


class LastValue(nn.Module):
    """Predict the last value for two steps."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(()))

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        return self.weight * features[:, -1:].expand(-1, 2, -1, -1)


def batch(count: int, seed: int) -> Windows:
    generator = torch.Generator().manual_seed(seed)
    draw = lambda steps: torch.rand(count, steps, 4, 2, generator=generator) + 0.5  # noqa: E731
    return Windows(draw(3), draw(2), torch.rand(count, 2, 4, 2, generator=generator) < 0.6)


def inverse(values: torch.Tensor) -> torch.Tensor:
    return values * torch.tensor([10.0, 200.0]) + torch.tensor([50.0, -3.0])


EVALUATION = Evaluation(Precision.from_name("32-true", "cpu"), inverse, ("speed", "flow"))


def by_hand(batches: list[Windows], feature: int) -> tuple[float, float, float]:
    """Compute MAE, RMSE and MAPE with NumPy, all windows at once."""
    predicted = np.concatenate([inverse(LastValue()(b.features)).detach().numpy() for b in batches])
    actual = np.concatenate([inverse(b.targets).numpy() for b in batches])
    mask = np.concatenate([b.mask.numpy() for b in batches])[..., feature]
    error = (predicted - actual)[..., feature][mask].astype(np.float64)
    truth = actual[..., feature][mask]
    return (
        float(np.abs(error).mean()),
        float(np.sqrt((error**2).mean())),
        float((np.abs(error) / np.abs(truth)).mean()),
    )


@settings(max_examples=20, deadline=None)
@given(st.lists(st.integers(1, 5), min_size=1, max_size=4), st.integers(0, 99))
def test_errors_equal_numpy_over_all_windows(sizes: list[int], seed: int) -> None:
    """Batches of any size add up to the errors over everything, per feature, in real units."""
    batches = [batch(size, seed + index) for index, size in enumerate(sizes)]
    metrics = evaluate(LastValue(), batches, EVALUATION)
    for index, feature in enumerate(metrics.features):
        found = (feature.together.mae, feature.together.rmse, feature.together.mape)
        assert pytest.approx(by_hand(batches, index), rel=1e-4) == found


def test_each_predicted_step_is_measured_too() -> None:
    """Step errors and their counts combine to the error over all steps."""
    speed = evaluate(LastValue(), [batch(6, 3)], EVALUATION).features[0]
    counts = [step.observed for step in speed.by_step]
    assert (2, speed.together.observed) == (len(counts), sum(counts))
    mean = sum(step.mae * step.observed for step in speed.by_step) / sum(counts)
    assert pytest.approx(speed.together.mae) == mean


def test_missing_targets_may_be_nan() -> None:
    """What was not observed has no influence, whatever value stands there."""
    whole = batch(5, 1)
    holes = Windows(whole.features, torch.where(whole.mask, whole.targets, torch.nan), whole.mask)
    assert evaluate(LastValue(), [whole], EVALUATION) == evaluate(LastValue(), [holes], EVALUATION)


def test_targets_of_zero_are_left_out_of_the_percentage_only() -> None:
    """A percentage of zero is undefined; MAE and RMSE still count it."""
    sums = ErrorSums(1, 1, "cpu")
    target = torch.tensor([0.0, 10.0]).reshape(1, 1, 2, 1)
    sums.add(target + 1, target, torch.ones_like(target, dtype=torch.bool))
    errors = sums.read(["speed"]).features[0].together
    assert (1.0, 1.0, 0.1, 2) == (errors.mae, errors.rmse, pytest.approx(errors.mape), errors.observed)


def test_nothing_observed_is_none_not_zero() -> None:
    """Not measured is None."""
    whole = batch(2, 0)
    empty = Windows(whole.features, whole.targets, torch.zeros_like(whole.mask))
    metrics = evaluate(LastValue(), [empty], EVALUATION)
    assert (None, None, None) == (
        metrics.loss,
        metrics.features[0].together.mae,
        metrics.features[1].together.mape,
    )
    assert {None} == set(metrics.flat("val_").values())


def test_the_loss_is_the_normalized_one() -> None:
    """Beside real units, the loss training minimizes is reported."""
    whole = batch(5, 2)
    error = (LastValue()(whole.features) - whole.targets)[whole.mask]
    loss = evaluate(LastValue(), [whole], EVALUATION).loss
    assert pytest.approx(error.square().mean().item(), rel=1e-5) == loss


def test_an_evaluation_reads_nothing_until_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many batches, nothing is read between them and the sums are copied once (O18)."""
    copies: list[tuple[int, ...]] = []
    original = torch.Tensor.cpu
    monkeypatch.setattr(
        torch.Tensor, "cpu", lambda self: (copies.append(tuple(self.shape)), original(self))[1]
    )
    batches = [batch(3, seed) for seed in range(6)]
    inside = Counter()

    def watched():
        for item in batches:
            yield item
            inside.update({"reads": syncs.count, "copies": len(copies)})

    with HostSyncs() as syncs:
        evaluate(LastValue(), watched(), EVALUATION)
    assert {"reads": 0, "copies": 0} == dict(inside)
    assert [(6, 2, 2)] == copies


def test_evaluation_switches_dropout_off_and_back_on() -> None:
    """The model's mode is as before, and no gradient is kept."""
    model = LastValue().train()
    modes = []
    model.register_forward_hook(lambda module, args, out: modes.append((module.training, out.requires_grad)))
    evaluate(model, [batch(2, 0)], EVALUATION)
    assert ([(False, False)], True) == (modes, model.training)


def test_forecasts_are_collected_in_real_units() -> None:
    """All windows, in order, with what was observed."""
    batches = [batch(3, 0), batch(2, 1)]
    collected = forecast(LastValue(), batches, EVALUATION)
    assert (5, 2, 4, 2) == collected.predicted.shape == collected.actual.shape == collected.observed.shape
    np.testing.assert_allclose(inverse(batches[1].targets).numpy(), collected.actual[3:])


@pytest.mark.parametrize("work", [evaluate, forecast])
def test_no_window_is_a_clear_error(work: Any) -> None:
    """An empty part is named, not divided by."""
    with pytest.raises(InputError, match="no window"):
        work(LastValue(), [], EVALUATION)
