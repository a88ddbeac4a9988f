"""Hand out a loader's batches for ever, and count what is waited for them."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from perfsuite.errors import UnusableStep
from perfsuite.measure.loop import count_samples


class Feed:
    """Hand out batches for ever, counting samples and the seconds spent waiting for them."""

    def __init__(
        self,
        loader: Iterable[Any],
        now: Callable[[], float],
        samples: int | Callable[[Any], int] | None,
    ) -> None:
        self._loader = loader
        self._now = now
        self._count = samples
        self._iterator: Iterator[Any] = iter(())
        self._is_used = False
        self.reset()

    def reset(self) -> None:
        """Forget what was counted so far."""
        self.samples = 0
        self.batches = 0
        self.waited_seconds = 0.0
        self.epochs = 0
        self.epoch_waited_seconds = 0.0  # for the first batches of epochs

    def next(self) -> Any:
        """Return the next batch, beginning a new epoch where one ends."""
        asked, epochs = self._now(), self.epochs
        batch = self._take()
        self._is_used = True
        waited = self._now() - asked
        self.waited_seconds += waited
        if self.epochs > epochs:
            self.epoch_waited_seconds += waited
        self.samples += count_samples(batch, self._count)
        self.batches += 1
        return batch

    def _take(self) -> Any:
        for batch in self._iterator:
            return batch
        self.epochs += 1
        self._iterator = iter(self._loader)
        for batch in self._iterator:
            return batch
        if self._is_used:
            raise UnusableStep(
                "the loader ended and cannot be iterated again: hand over the loader itself, not an iterator"
            )
        raise UnusableStep("the loader gave no batch: an empty loader cannot be measured")
