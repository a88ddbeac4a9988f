"""MAE, RMSE and MAPE in real units over observed targets, added up on the device and read once."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

# Rows of the sums; each is kept per predicted step and per feature, since features have different units.
_COUNT, _ABSOLUTE, _SQUARED, _PERCENT, _PERCENT_COUNT, _NORMALIZED = range(6)


@dataclass(frozen=True)
class Errors:
    """The three errors over some targets; None where nothing was observed to measure them on."""

    mae: float | None
    rmse: float | None
    mape: float | None
    observed: int

    @classmethod
    def from_sums(cls, sums: np.ndarray) -> "Errors":
        """Divide the six sums by what they count."""
        count, absolute, squared, percent, percent_count, _ = sums.tolist()
        return cls(
            absolute / count if count else None,
            math.sqrt(squared / count) if count else None,
            percent / percent_count if percent_count else None,
            int(count),
        )


@dataclass(frozen=True)
class FeatureErrors:
    """One feature's errors over all predicted steps together, and for each step."""

    name: str
    together: Errors
    by_step: tuple[Errors, ...]


@dataclass(frozen=True)
class Metrics:
    """What an evaluation found: the loss on normalized values and the errors in real units."""

    loss: float | None
    features: tuple[FeatureErrors, ...]

    def flat(self, prefix: str = "") -> dict[str, float | None]:
        """Return one column per figure, for a table with a row per epoch."""
        row: dict[str, float | None] = {f"{prefix}loss": self.loss}
        for feature in self.features:
            for kind in ("mae", "rmse", "mape"):
                row[f"{prefix}{kind}_{feature.name}"] = getattr(feature.together, kind)
        return row

    def nested(self) -> dict[str, Any]:
        """Return the whole result in a shape for JSON."""
        return {
            "loss": self.loss,
            "features": {
                feature.name: {**vars(feature.together), "by_step": [vars(step) for step in feature.by_step]}
                for feature in self.features
            },
        }


class ErrorSums:
    """Add up errors batch by batch without leaving the device."""

    def __init__(
        self, steps: int, features: int, device: torch.device | str, *, smallest_for_percent: float = 1e-3
    ) -> None:
        self.sums = torch.zeros(6, steps, features, dtype=torch.float64, device=device)
        self.smallest_for_percent = smallest_for_percent

    def add(
        self,
        prediction: torch.Tensor,
        target: torch.Tensor,
        mask: torch.Tensor,
        normalized_error: torch.Tensor | None = None,
    ) -> None:
        """Count one batch `[B,P,N,F]` in real units; the normalized error feeds the loss."""
        target = torch.where(mask, target, 1.0)  # an unobserved target may be NaN
        error = torch.where(mask, prediction - target, 0.0).double()
        # A percentage of (nearly) nothing is meaningless: such targets are left out of MAPE, and only of it.
        sized = mask & (target.abs() > self.smallest_for_percent)
        percent = torch.where(sized, error.abs() / target.abs().clamp(min=self.smallest_for_percent), 0.0)
        rows = [mask.double(), error.abs(), error.square(), percent, sized.double()]
        if normalized_error is None:
            rows.append(torch.zeros_like(error))
        else:
            rows.append(torch.where(mask, normalized_error, 0.0).double().square())
        self.sums += torch.stack([row.sum(dim=(0, 2)) for row in rows])

    def read(self, feature_names: Sequence[str]) -> Metrics:
        """Copy the sums to the host once and divide there."""
        sums = self.sums.cpu().numpy()  # host sync: the only one of an evaluation
        count = float(sums[_COUNT].sum())
        return Metrics(
            float(sums[_NORMALIZED].sum()) / count if count else None,
            tuple(
                FeatureErrors(
                    name,
                    Errors.from_sums(sums[:, :, index].sum(axis=1)),
                    tuple(Errors.from_sums(step) for step in sums[:, :, index].T),
                )
                for index, name in enumerate(feature_names)
            ),
        )
