"""Assemble data, model, loaders and evaluation from a configuration."""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from social_xlstm.config import Config
from social_xlstm.data.loader import build_loader
from social_xlstm.data.prepare import Prepared, prepare
from social_xlstm.data.scaler import Scaler
from social_xlstm.data.sets import TrafficSet
from social_xlstm.data.windows import Batch, DetectorBatch
from social_xlstm.errors import InputError
from social_xlstm.model.social_xlstm import SocialXLSTM
from social_xlstm.train.distributed import World
from social_xlstm.train.evaluate import Evaluation
from social_xlstm.train.plan import FirstBatches, Plan
from social_xlstm.train.precision import Precision, check_bfloat16
from social_xlstm.train.seeds import seed_everything


@dataclass(frozen=True)
class Assembly:
    """A training that is ready to begin.

    The scaler is the data's own, or that of the run whose weights are evaluated on other data.
    """

    config: Config
    prepared: Prepared
    model: nn.Module
    device: torch.device
    world: World
    scaler: Scaler

    @property
    def arrange(self) -> Callable[[Any], Any] | None:
        """Return what turns a batch into what the model was trained on; None if it is that already."""
        rescales = self.scaler is not self.prepared.scaler
        if self.config.data.batch_format == "centralized" and not rescales:
            return None

        def arrange(batch: Batch | DetectorBatch) -> Batch:
            if isinstance(batch, DetectorBatch):
                batch = batch.centralized(self.prepared.vdids)
            if not rescales:
                return batch
            features, targets = (
                self.scaler.transform(self.prepared.scaler.inverse(values))
                for values in (batch.features, batch.targets)
            )
            return dataclasses.replace(batch, features=features, targets=targets)

        return arrange

    @property
    def evaluation(self) -> Evaluation:
        """Return how this training's model is evaluated, in the data's real units."""
        return Evaluation(
            precision=Precision.from_name(self.config.trainer.precision, self.device),
            inverse=self.scaler.inverse,
            feature_names=self.prepared.feature_names,
            non_blocking=self.config.trainer.non_blocking,
            arrange=self.arrange,
            world=self.world,
        )

    def training_loader(self, batch_size: int | None = None) -> Any:
        """Make the shuffled loader, with another batch size on a lower rung of the memory ladder."""
        return self._loader("train", shuffle=True, batch_size=batch_size)

    def evaluation_loader(self, part: str) -> Any:
        """Make a loader that yields every window of a part once, in order, in one of the processes."""
        return self._loader(part, shuffle=False, even=False, drop_last=False)

    def _loader(
        self, part: str, *, shuffle: bool, batch_size: int | None = None, even: bool = True, **changes: Any
    ) -> Any:
        config = self.config.data.loader
        config = dataclasses.replace(config, batch_size=batch_size or config.batch_size, **changes)
        return build_loader(
            getattr(self.prepared, part),
            config,
            device=self.device,
            shuffle=shuffle,
            seed=self.config.experiment.seed,
            batch_format=self.config.data.batch_format,
            rank=self.world.rank,
            world_size=self.world.size,
            even=even,
        )

    def plan(self) -> Plan:
        """Make the plan of a fit, with validation where the split has a part for it."""
        val = None
        if self.config.data.split.val > 0:
            val = FirstBatches(self.evaluation_loader("val"), self.config.trainer.limit_val_batches)
        return Plan(self.training_loader(), val, self.evaluation, self.training_loader)


def assemble(
    config: Config,
    world: World | None = None,
    traffic: TrafficSet | None = None,
    scaler: Scaler | None = None,
) -> Assembly:
    """Read and prepare the data, seed every generator, and build the model for it."""
    world = world or World()
    if traffic is None and not Path(config.data.path).exists():
        raise InputError(
            f"{config.data.path}: there is no such data; make some with `social-xlstm synth`, convert a file "
            "with `social-xlstm convert`, or name yours with --data"
        )
    device = world.device(config.trainer.device)
    check_bfloat16(config.trainer.precision, device)
    prepared = prepare(config.data, traffic, use_positions=config.social_pooling.enabled)
    seed_everything(config.experiment.seed, world.rank)
    model = SocialXLSTM(
        config.model,
        config.social_pooling,
        n_detectors=len(prepared.vdids),
        n_features=len(prepared.feature_names),
        prediction_length=config.data.prediction_length,
        positions_xy=prepared.positions_xy,
        directions=prepared.directions,
    )
    if scaler is None or scaler.state_dict() == prepared.scaler.state_dict():
        scaler = prepared.scaler  # scaling there and back would only round
    return Assembly(config, prepared, model, device, world, scaler)


class CopyLast(nn.Module):
    """Forecast that nothing changes: the yardstick every model has to beat."""

    def __init__(self, prediction_length: int) -> None:
        super().__init__()
        self.prediction_length = prediction_length

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        """Repeat the last input step [B,T,N,F] → [B,P,N,F]."""
        return features[:, -1:].expand(-1, self.prediction_length, -1, -1)
