"""How far a training has come: what a checkpoint must hold beside weights and random states."""

import math
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from social_xlstm.errors import InputError


@dataclass
class FitState:
    """The loop's own memory; position is counted in updates of the weights, where a restart is exact."""

    epoch: int = 0
    groups_done: int = 0
    updates: int = 0
    batches: int = 0
    batch_size: int = 1
    accumulate: int = 1
    best_loss: float | None = None
    best_epoch: int | None = None
    epochs_without_gain: int = 0
    finished: bool = False
    history: list[dict[str, Any]] = field(default_factory=list)

    def to_plain(self) -> dict[str, Any]:
        """Return the state as numbers, text and lists only."""
        return asdict(self)

    @classmethod
    def from_plain(cls, plain: Any) -> "FitState":
        """Restore what `to_plain` returned, or refuse it."""
        names = {item.name for item in fields(cls)}
        if not isinstance(plain, dict) or set(plain) != names:
            raise InputError("the checkpoint's progress has other fields than this version writes")
        counts = ("epoch", "groups_done", "updates", "batches", "batch_size", "accumulate")
        if not all(type(plain[name]) is int and plain[name] >= 0 for name in counts):
            raise InputError("the checkpoint's progress holds something else than counts")
        return cls(**plain)

    def judge(self, loss: float | None, epoch: int) -> bool:
        """Record an epoch's loss and return whether it is the best so far; NaN never is."""
        better = (
            loss is not None and not math.isnan(loss) and (self.best_loss is None or loss < self.best_loss)
        )
        if better:
            self.best_loss, self.best_epoch, self.epochs_without_gain = loss, epoch, 0
        else:
            self.epochs_without_gain += 1
        return better
