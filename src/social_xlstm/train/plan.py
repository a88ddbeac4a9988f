"""What a fit works on: loaders, validation, where checkpoints go, and batches from a given position."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from social_xlstm.train.evaluate import Evaluation
from social_xlstm.train.memory_ladder import Rung


@dataclass(frozen=True)
class Plan:
    """The data of a fit and the places its results go to.

    The training loader has a batch_size, a length, and `set_epoch(epoch, start_batch)`, which fixes the order
    of the next iteration and where it starts; torch's own generator is left to the model.
    `rebuild` makes the training loader anew with another batch size; without it the out-of-memory ladder
    cannot step down. `about` is stored in every checkpoint and describes what it belongs to.
    """

    train: Any
    val: Iterable[Any] | None = None
    evaluation: Evaluation | None = None
    rebuild: Callable[[int], Any] | None = None
    folder: Path | None = None
    about: dict[str, Any] = field(default_factory=dict)

    def loader_for(self, rung: Rung, configured: Rung) -> Any:
        """Return the training loader of this rung's batch size."""
        if self.rebuild is None or rung.batch_size == configured.batch_size:
            return self.train
        return self.rebuild(rung.batch_size)


@dataclass(frozen=True)
class FirstBatches:
    """At most `limit` batches of a loader, always the first ones."""

    loader: Iterable[Any]
    limit: int | None

    def __iter__(self) -> Iterator[Any]:
        return islice(iter(self.loader), self.limit)


@dataclass(frozen=True)
class Stretch:
    """The batches of one epoch from a position on, in the epoch's own repeatable order."""

    loader: Any
    epoch: int
    skip: int
    total: int

    def __len__(self) -> int:
        return max(self.total - self.skip, 0)

    def __iter__(self) -> Iterator[Any]:
        self.loader.set_epoch(self.epoch, self.skip)
        return islice(iter(self.loader), len(self))


def batches_in_epoch(loader: Any, rung: Rung, configured: Rung, limit: int | None) -> int:
    """Count an epoch's batches; the limit is meant in batches of the configured size."""
    if limit is None:
        return len(loader)
    return min(len(loader), limit * configured.batch_size // rung.batch_size)
