"""The Social-xLSTM in the sizes the contracts use: a model, its step and a batch, all on one device."""

import contextlib
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from social_xlstm.config import ModelConfig, OptimizerConfig, PoolingConfig, XLSTMConfig
from social_xlstm.data.windows import Batch
from social_xlstm.model.social_xlstm import SocialXLSTM
from social_xlstm.train.precision import Precision
from social_xlstm.train.step import Recipe, Sums, backward, build_optimizer, drop_gradients, train_step


@dataclass(frozen=True)
class Size:
    """How large a training is; the default suits a CPU and still shows every effect."""

    windows: int = 4
    detectors: int = 24
    width: int = 32
    slstm_at: tuple[int, ...] = (1,)
    blocks: int = 2
    steps: int = 12
    features: int = 1
    predicted: int = 3

    @property
    def xlstm(self) -> XLSTMConfig:
        """Return the block stack of this size, without dropout: arms must compute the same."""
        return XLSTMConfig(
            self.width, self.blocks, self.slstm_at, dropout=0.0, context_length=max(self.steps, 1)
        )


@dataclass(frozen=True)
class Training:
    """A model with its recipe and one batch."""

    model: SocialXLSTM
    recipe: Recipe
    batch: Batch

    def step(self) -> torch.Tensor:
        """Train once on the batch and return the loss, still on the device."""
        return train_step(self.recipe, self.batch)

    def on(self, batch: Any) -> torch.Tensor:
        """Train once on another batch."""
        return train_step(self.recipe, batch)

    def step_seconds(self) -> float:
        """Return what a step takes here and now, on the CPU: the measure of what a loader may take."""
        return statistics.median(_seconds_of(self.step) for _ in range(25))

    def calling(self, call: Any) -> "Training":
        """Give the same training with something else called in the model's place."""
        return replace(self, recipe=replace(self.recipe, model=call))

    def gradients(self) -> dict[str, torch.Tensor]:
        """Return the gradient of the batch by parameter, leaving the weights alone."""
        backward(self.recipe, self.batch)
        found = {name: p.grad.clone() for name, p in self.model.named_parameters() if p.grad is not None}
        drop_gradients(replace(self.recipe, set_to_none=True))
        return found


def _seconds_of(step: Callable[[], Any]) -> float:
    before = time.perf_counter()
    step()
    return time.perf_counter() - before


@contextlib.contextmanager
def plain_products() -> Iterator[None]:
    """Keep oneDNN out: some virtual machines advertise bfloat16 units and die of using them."""
    before = torch._C._get_mkldnn_enabled()
    torch._C._set_mkldnn_enabled(False)  # torch.backends.mkldnn.flags warns on a build without Intel's GPUs
    try:
        yield
    finally:
        torch._C._set_mkldnn_enabled(before)


def positions(detectors: int) -> torch.Tensor:
    """Place detectors on a road, 300 metres apart, slightly off the line."""
    generator = torch.Generator().manual_seed(1)
    offsets = torch.rand(detectors, generator=generator, dtype=torch.float64) * 20
    return torch.stack([torch.arange(detectors, dtype=torch.float64) * 300, offsets], dim=1)


def a_batch(size: Size, device: str | torch.device = "cpu", seed: int = 2) -> Batch:
    """Make windows whose future follows from their past: the mean of the last steps, and noise."""
    generator = torch.Generator().manual_seed(seed)
    shape = (size.windows, size.steps + size.predicted, size.detectors, size.features)
    values = torch.randn(shape, generator=generator).cumsum(dim=1) * 0.3
    features, targets = values.split([size.steps, size.predicted], dim=1)
    batch = Batch(features.contiguous(), targets.contiguous(), torch.ones_like(targets, dtype=torch.bool))
    return replace(
        batch,
        features=batch.features.to(device),
        targets=batch.targets.to(device),
        mask=batch.mask.to(device),
    )


def parts(batch: Batch, count: int) -> list[Batch]:
    """Cut a batch into equal ones."""
    pieces = [values.chunk(count) for values in (batch.features, batch.targets, batch.mask)]
    return [Batch(*piece) for piece in zip(*pieces, strict=True)]


def training(
    device: str,
    size: Size = Size(),  # noqa: B008  frozen
    *,
    encoder: Any = "shared",
    cell: Any = "sync_free",
    precision: Any = "32-true",
    group_size: int = 8,
    pooling: PoolingConfig = PoolingConfig(),  # noqa: B008  frozen
    batch: Batch | None = None,
    lr: float = 1e-3,
    **recipe: Any,
) -> Training:
    """Build a training on a device, always from the same seed."""
    torch.manual_seed(0)
    model = SocialXLSTM(
        ModelConfig(size.xlstm, encoder, cell, group_size=group_size),
        pooling,
        n_detectors=size.detectors,
        n_features=size.features,
        prediction_length=size.predicted,
        positions_xy=positions(size.detectors),
    ).to(device)
    made = Recipe(
        model=model,
        optimizer=build_optimizer(OptimizerConfig(lr=lr), model.parameters()),
        precision=Precision.from_name(precision, device),
        sums=Sums.zero(device),
        clip=1.0,
        **recipe,
    )
    return Training(model, made, a_batch(size, device) if batch is None else batch)


def load(target: SocialXLSTM, source: SocialXLSTM) -> None:
    """Give a model another one's weights, encoders tied or renamed as the kinds of encoder ask."""
    own = source.state_dict()
    given = {name: _found(name, own) for name in target.state_dict()}
    target.load_state_dict(given)


def _found(name: str, own: dict[str, torch.Tensor]) -> torch.Tensor:
    if name in own:
        return own[name]
    # encoder.encoders.7.embed.weight of the loop is encoder.encoder.embed.weight of the shared one.
    parts = name.split(".")
    return own[".".join(["encoder", "encoder", *parts[3:]])]


def total_gradient(gradients: dict[str, torch.Tensor], part: str, detectors: Sequence[int]) -> torch.Tensor:
    """Add up a parameter's gradients over the encoders of the loop."""
    return torch.stack([gradients[f"encoder.encoders.{index}.{part}"] for index in detectors]).sum(dim=0)
