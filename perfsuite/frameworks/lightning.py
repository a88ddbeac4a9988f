"""A Lightning callback: `Trainer(callbacks=[PerfCallback(perf)]).fit(…)` is measured like perf.loop."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

try:
    from lightning.pytorch import Callback
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        "perfsuite.frameworks.lightning needs Lightning; install it with: "
        "pip install 'pytest-perfsuite[lightning]'"
    ) from error

if TYPE_CHECKING:
    from perfsuite.plugin.fixture import Perf


class PerfCallback(Callback):  # type: ignore[misc]
    """Pass every batch and step to the recorder, and stop the training once enough was measured."""

    def __init__(
        self,
        perf: "Perf",
        *,
        samples_per_step: int | Callable[[Any], int] | None = None,
        name: str = "",
        **limits: object,
    ) -> None:
        super().__init__()
        self._recorder = perf.recorder(samples_per_step=samples_per_step, name=name, **limits)

    @property
    def reading(self) -> Any:
        """The reading, None before the training has been measured."""
        return self._recorder.reading

    def on_train_start(self, trainer: Any, *_: Any) -> None:
        """Start recording, with the loader that the trainer prepared."""
        self._recorder.begin(trainer.train_dataloader)

    def on_train_epoch_start(self, *_: Any) -> None:
        """Start waiting for the first batch of an epoch."""
        self._recorder.begin_epoch()
        self._recorder.request_batch()

    def on_train_batch_start(self, _trainer: Any, _module: Any, batch: Any, *_: Any) -> None:
        """Record that the batch has arrived."""
        self._recorder.receive_batch(batch)

    def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
        """Record the end of the step, and stop the training once enough was measured."""
        self._recorder.step_done()
        if self._recorder.is_done:
            trainer.should_stop = True

    def on_validation_end(self, *_: Any) -> None:
        """Start waiting for data only now: time spent in a validation is not the loader's."""
        self._recorder.request_batch()

    def on_train_end(self, *_: Any) -> None:
        """Keep the reading of a training that ended by itself."""
        self._recorder.finish()

    def on_exception(self, *_: Any) -> None:
        """Stop watching the device after a step that raised."""
        self._recorder.close()
