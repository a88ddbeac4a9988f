"""A training step trains, exactly and silently."""

import builtins
import time
from collections import Counter
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from social_xlstm.config import OptimizerConfig
from social_xlstm.train.precision import Precision
from social_xlstm.train.step import (
    Recipe,
    Sums,
    apply_gradients,
    backward,
    build_optimizer,
    drop_gradients,
    masked_mse,
    train_step,
)
from tests.model.sync_counter import HostSyncs

CPU = torch.device("cpu")


@dataclass(frozen=True)
class Windows:
    features: torch.Tensor
    targets: torch.Tensor
    mask: torch.Tensor

    def part(self, start: int, stop: int) -> "Windows":
        return Windows(self.features[start:stop], self.targets[start:stop], self.mask[start:stop])


class Tiny(nn.Module):
    """Predict 2 steps from 4 with one hidden layer, per detector."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Dropout(dropout), nn.Linear(8, 2))

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        return self.body(features.movedim(1, -1)).movedim(-1, 1)


def windows(count: int, seed: int = 0, observed: float = 0.7) -> Windows:
    generator = torch.Generator().manual_seed(seed)
    draw = lambda steps: torch.randn(count, steps, 3, 1, generator=generator)  # noqa: E731
    return Windows(draw(4), draw(2), torch.rand(count, 2, 3, 1, generator=generator) < observed)


def recipe(model: nn.Module | None = None, precision: str = "32-true", **options: Any) -> Recipe:
    torch.manual_seed(0)
    model = model or Tiny()
    name = options.pop("optimizer", "adam")
    optimizer = build_optimizer(OptimizerConfig(name=name, lr=0.01), model.parameters())
    return Recipe(model, optimizer, Precision.from_name(precision, CPU), Sums.zero(CPU), **options)


def group_gradient(parts: list[Windows]) -> list[torch.Tensor]:
    """Return the gradient of a group as it reaches the optimizer."""
    made = recipe(optimizer="sgd")
    taken: list[torch.Tensor] = []
    made.optimizer.step = lambda: taken.extend(p.grad.clone() for p in made.parameters)  # type: ignore
    for part in parts[:-1]:
        train_step(made, part, update=False)
    train_step(made, parts[-1])
    return taken


@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed", "16-mixed"])
@pytest.mark.parametrize("optimizer", ["adam", "adamw", "sgd"])
@pytest.mark.parametrize("clip", [None, 1.0])
def test_a_step_never_makes_the_host_wait(precision: str, optimizer: str, clip: float | None) -> None:
    """Forward, backward, scaling, clipping and update read nothing back (O18)."""
    made, batch = recipe(precision=precision, optimizer=optimizer, clip=clip), windows(4)
    train_step(made, batch)
    with HostSyncs() as syncs:
        for index in range(4):
            train_step(made, batch, update=index % 2 == 1)
    assert Counter() == syncs.by_name


def test_a_step_has_no_clock_and_prints_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever measures a step finds only training in it."""
    made, batch = recipe(), windows(4)

    def forbidden(*args: Any, **kwargs: Any) -> None:
        raise AssertionError("a step must not do this")

    for name in ("time", "perf_counter", "monotonic"):
        monkeypatch.setattr(time, name, forbidden)
    monkeypatch.setattr(builtins, "print", forbidden)
    loss = train_step(made, batch)
    assert (False, ()) == (loss.requires_grad, tuple(loss.shape))


def test_loss_falls_and_every_parameter_moves() -> None:
    """A step is a step of learning."""
    made, batch = recipe(clip=1.0), windows(16)
    before = [p.detach().clone() for p in made.parameters]
    losses = torch.stack([train_step(made, batch) for _ in range(60)])
    assert losses[-1] < 0.8 * losses[0]
    assert all(not torch.equal(old, new) for old, new in zip(before, made.parameters, strict=True))


def test_the_loss_is_the_mean_over_observed_targets() -> None:
    """Missing targets count neither above nor below the fraction line."""
    prediction, targets = torch.tensor([1.0, 2.0, 9.0]), torch.tensor([0.0, 0.0, float("nan")])
    assert 2.5 == masked_mse(prediction, targets, torch.tensor([True, True, False])).item()
    assert 0.0 == masked_mse(prediction, targets, torch.zeros(3, dtype=torch.bool)).item()


def test_missing_targets_leave_no_trace_in_the_gradient() -> None:
    """A NaN where nothing was observed does not spoil the gradient."""
    batch = windows(4)
    holes = Windows(batch.features, torch.where(batch.mask, batch.targets, torch.nan), batch.mask)
    torch.testing.assert_close(group_gradient([batch]), group_gradient([holes]), rtol=0, atol=0)


def test_a_group_without_any_observation_changes_nothing() -> None:
    """No observation, no gradient: not a division by zero."""
    made, batch = recipe(optimizer="sgd"), windows(4, observed=0.0)
    before = [p.detach().clone() for p in made.parameters]
    assert 0.0 == train_step(made, batch).item()
    torch.testing.assert_close(before, [p.detach() for p in made.parameters], rtol=0, atol=0)


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 9), st.lists(st.integers(1, 8), max_size=4), st.integers(0, 100))
def test_a_group_has_the_gradient_of_the_joined_batch(count: int, cuts: list[int], seed: int) -> None:
    """Cut into any parts, of any size and with any targets missing, the gradient is the same (O7)."""
    whole = windows(count, seed, observed=0.5)
    edges = sorted({0, count, *(cut for cut in cuts if cut < count)})
    parts = [whole.part(start, stop) for start, stop in pairwise(edges)]
    torch.testing.assert_close(group_gradient([whole]), group_gradient(parts), rtol=1e-4, atol=1e-6)


def test_the_gradient_is_that_of_the_masked_mean() -> None:
    """What reaches the optimizer is the derivative of the loss that is reported."""
    made, batch = recipe(), windows(6)
    masked_mse(made.model(batch.features), batch.targets, batch.mask).backward()
    expected = [p.grad.clone() for p in made.parameters]
    torch.testing.assert_close(expected, group_gradient([batch]), rtol=1e-5, atol=1e-7)


def test_sixteen_bit_gradients_are_scaled_and_unscaled() -> None:
    """Loss scaling cancels: float16 gradients agree with float32 within float16's precision."""
    batch = windows(8)
    made = recipe(precision="16-mixed", optimizer="sgd")
    seen: list[torch.Tensor] = []
    original = made.optimizer.step
    made.optimizer.step = lambda: (seen.extend(p.grad.clone() for p in made.parameters), original())[1]  # type: ignore
    train_step(made, batch)
    assert made.precision.scaler.get_scale() > 1
    torch.testing.assert_close(group_gradient([batch]), seen, rtol=2e-2, atol=2e-3)


def test_an_overflow_skips_the_update_and_lowers_the_scale() -> None:
    """A float16 overflow costs one update, not the weights."""
    made = recipe(precision="16-mixed")
    before = [p.detach().clone() for p in made.parameters]
    scale = made.precision.scaler.get_scale()
    huge = windows(4)
    train_step(made, Windows(huge.features * 1e4, huge.targets * 1e30, huge.mask))
    torch.testing.assert_close(before, [p.detach() for p in made.parameters], rtol=0, atol=0)
    assert made.precision.scaler.get_scale() < scale


def test_clipping_bounds_the_norm_of_the_groups_gradient() -> None:
    """The norm that is clipped is that of the mean gradient, after accumulation."""
    made, batch = recipe(clip=0.01, optimizer="sgd"), windows(6)
    before = torch.cat([p.detach().flatten().clone() for p in made.parameters])
    train_step(made, batch.part(0, 3), update=False)
    train_step(made, batch.part(3, 6))
    moved = torch.cat([p.detach().flatten() for p in made.parameters]) - before
    torch.testing.assert_close(torch.tensor(0.01 * 0.01), moved.norm(), rtol=1e-3, atol=0)


@pytest.mark.parametrize("set_to_none", [True, False])
def test_gradients_are_dropped_or_zeroed_after_the_update(set_to_none: bool) -> None:
    """`set_to_none` frees them; without it they stay as zeros (O17)."""
    made = recipe(set_to_none=set_to_none)
    train_step(made, windows(4))
    kinds = {None if p.grad is None else float(p.grad.abs().sum()) for p in made.parameters}
    assert {None if set_to_none else 0.0} == kinds


def test_set_to_none_runs_no_zero_fill() -> None:
    """Dropping a gradient launches nothing, zeroing launches a fill (O17)."""

    class Fills(TorchDispatchMode):
        count = 0

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            self.count += func.overloadpacket.__name__ in ("zero_", "_foreach_zero_")
            return func(*args, **(kwargs or {}))

    counts = []
    for set_to_none in (True, False):
        made = recipe(set_to_none=set_to_none)
        backward(made, windows(2))
        with Fills() as fills:
            made.optimizer.zero_grad(set_to_none=set_to_none)
        counts.append(fills.count)
    assert [0, True] == [counts[0], counts[1] > 0]


def test_dropping_a_group_forgets_it() -> None:
    """After a failed attempt the next group starts at nothing."""
    whole = windows(6)
    made = recipe(optimizer="sgd")
    backward(made, windows(6, seed=9))
    drop_gradients(made)
    backward(made, whole)
    taken: list[torch.Tensor] = []
    made.optimizer.step = lambda: taken.extend(p.grad.clone() for p in made.parameters)  # type: ignore
    apply_gradients(made)
    torch.testing.assert_close(group_gradient([whole]), taken, rtol=0, atol=0)


def test_epoch_sums_stay_on_the_device_and_add_up() -> None:
    """The epoch's loss is the mean over everything observed, not a mean of means."""
    made = recipe(optimizer="sgd")
    made.optimizer.step = lambda: None  # type: ignore
    parts = [windows(3, 1), windows(5, 2, observed=0.2)]
    for part in parts:
        train_step(made, part)
    joined = Windows(*(torch.cat([getattr(p, n) for p in parts]) for n in ("features", "targets", "mask")))
    squared, observed = made.sums.epoch.tolist()
    expected = masked_mse(made.model(joined.features), joined.targets, joined.mask).item()
    assert pytest.approx(expected, rel=1e-5) == squared / observed
