"""Scaling by one offset and one divisor per feature, learnt from the training part alone."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import torch

from social_xlstm.errors import InputError

KINDS = ("standard", "minmax", "max", "none")
Values = TypeVar("Values", np.ndarray, torch.Tensor)


@dataclass(frozen=True, eq=False)
class Scaler:
    """scaled = (value − offset) / divisor, for the last axis being the features."""

    kind: str
    offset: np.ndarray  # float64 [F]
    divisor: np.ndarray  # float64 [F]

    @classmethod
    def from_training(cls, values: np.ndarray, kind: str, feature_names: tuple[str, ...]) -> "Scaler":
        """Learn from training values [T,N,F]; NaN is passed over, a feature without any value is refused."""
        if kind not in KINDS:
            raise InputError(f"data.normalize is {kind!r}; choose one of {', '.join(KINDS)}")
        rows = [cls._learn(values[:, :, index], kind, name) for index, name in enumerate(feature_names)]
        offset, divisor = np.array(rows, dtype=np.float64).T
        return cls(kind, offset, divisor)

    @staticmethod
    def _learn(values: np.ndarray, kind: str, name: str) -> tuple[float, float]:
        seen = values[~np.isnan(values)].astype(np.float64)
        if not len(seen):
            raise InputError(
                f"feature {name!r} has no value in the training part; drop it with data.selected_features"
            )
        offset, divisor = {
            "standard": lambda: (seen.mean(), seen.std()),
            "minmax": lambda: (seen.min(), seen.max() - seen.min()),
            "max": lambda: (0.0, np.abs(seen).max()),
            "none": lambda: (0.0, 1.0),
        }[kind]()
        # A constant feature carries nothing to scale by; dividing by its rounding error would blow it up.
        return offset, divisor if divisor > 1e-7 * max(1.0, abs(offset)) else 1.0

    def transform(self, values: Values) -> Values:
        """Scale values [..., F] into a new array or tensor of the same type."""
        return self._by_feature(values, lambda column, offset, divisor: (column - offset) / divisor)

    def inverse(self, values: Values) -> Values:
        """Return values [..., F] in real units, on the device they are on and without a transfer."""
        return self._by_feature(values, lambda column, offset, divisor: column * divisor + offset)

    def _by_feature(self, values: Values, formula: Callable[[Values, float, float], Values]) -> Values:
        """Apply a formula feature by feature; plain numbers need no copy to a device."""
        if values.shape[-1] != len(self.offset):
            raise InputError(
                f"values have {values.shape[-1]} features, the scaler knows {len(self.offset)}; "
                "give it the features it learnt from"
            )
        columns = [
            formula(values[..., index], float(self.offset[index]), float(self.divisor[index]))
            for index in range(len(self.offset))
        ]
        return (
            torch.stack(columns, dim=-1) if isinstance(values, torch.Tensor) else np.stack(columns, axis=-1)
        )

    def state_dict(self) -> dict[str, Any]:
        """Return plain values for a checkpoint."""
        return {"kind": self.kind, "offset": self.offset.tolist(), "divisor": self.divisor.tolist()}

    @classmethod
    def from_state_dict(cls, state: dict[str, Any]) -> "Scaler":
        """Restore what state_dict returned."""
        try:
            offset = np.asarray(state["offset"], dtype=np.float64)
            divisor = np.asarray(state["divisor"], dtype=np.float64)
            kind = str(state["kind"])
        except (KeyError, TypeError, ValueError) as error:
            raise InputError(f"the scaler's state is damaged ({error!r}); use another checkpoint") from error
        if kind not in KINDS or offset.ndim != 1 or offset.shape != divisor.shape or not (divisor > 0).all():
            raise InputError("the scaler's state is damaged; use another checkpoint")
        return cls(kind, offset, divisor)
