"""Look at loaders and batches without knowing torch: how many samples, how many batches ahead."""

import operator
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

from perfsuite.errors import UnusableStep


@dataclass(frozen=True)
class LoaderFacts:
    """How far a loader works ahead."""

    num_workers: int = 0
    prefetch_factor: int = 0

    @classmethod
    def from_loader(cls, loader: object) -> "LoaderFacts":
        """Read the settings of a DataLoader, or of anything that names them alike."""
        workers = getattr(loader, "num_workers", 0) or 0
        ahead = getattr(loader, "prefetch_factor", 0) or 0
        return cls(
            workers if isinstance(workers, int) else 0,
            ahead if isinstance(ahead, int) else 0,
        )

    @property
    def prefetched(self) -> int:
        """Return how many batches lie ready after any pause."""
        return self.num_workers * self.prefetch_factor


def count_samples(batch: Any, samples: int | Callable[[Any], int] | None) -> int:
    """Return the samples of a batch: as given, as counted by the caller, or its first tensor's length."""
    if callable(samples):
        return _whole(samples(batch))
    if samples is not None:
        return samples
    length = _first_length(batch)
    if length is None:
        raise UnusableStep(
            f"cannot tell how many samples a batch of type {type(batch).__name__} holds; "
            "give samples_per_step=64, or samples_per_step=lambda batch: ..."
        )
    return length


def _whole(count: Any) -> int:
    """Return what a caller counted as a plain number: arrays and tensors count in their own."""
    try:
        whole = operator.index(count) if hasattr(count, "__index__") else int(count)
        is_whole = whole == count
    except (TypeError, ValueError, RuntimeError, OverflowError):  # RuntimeError: a tensor of many elements
        is_whole = False
    if not is_whole or whole < 0:
        raise UnusableStep(f"samples_per_step must return a whole number of samples, got {count!r:.60}")
    return whole


def _first_length(value: Any) -> int | None:
    shape = getattr(value, "shape", None)
    if shape is not None:
        return int(shape[0]) if len(shape) else None
    inner: Iterable[Any] = ()
    if isinstance(value, Mapping):
        inner = value.values()
    elif isinstance(value, list | tuple):
        inner = value
    elif is_dataclass(value) and not isinstance(value, type):
        inner = (getattr(value, item.name) for item in fields(value))
    return next((length for part in inner if (length := _first_length(part)) is not None), None)
