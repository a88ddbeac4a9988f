"""A Lightning callback: `Trainer(callbacks=[PerfCallback(perf)]).fit(…)` is measured like perf.loop."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

try:
    from lightning.pytorch import Callback
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        "perfsuite.frameworks.lightning needs Lightning; install it with: pip install 'perfsuite[lightning]'"
    ) from error

if TYPE_CHECKING:
    from perfsuite.plugin.fixture import Perf


class PerfCallback(Callback):  # type: ignore[misc]
    """Tell the recorder of every batch and step, and stop the training once it has seen enough."""

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
        """Look at the loader that the trainer made ready."""
        self._recorder.begin(trainer.train_dataloader)

    def on_train_epoch_start(self, *_: Any) -> None:
        """Expect the first batch of an epoch."""
        self._recorder.begin_epoch()
        self._recorder.ask()

    def on_train_batch_start(self, _trainer: Any, _module: Any, batch: Any, *_: Any) -> None:
        """Note that the batch is there."""
        self._recorder.receive(batch)

    def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
        """Note the end of the step, and end the training where that was enough."""
        self._recorder.step_done()
        if self._recorder.is_done:
            trainer.should_stop = True

    def on_validation_end(self, *_: Any) -> None:
        """Wait for data from here on: a validation is not the loader's."""
        self._recorder.ask()

    def on_train_end(self, *_: Any) -> None:
        """Keep what there is of a training that ended by itself."""
        self._recorder.finish()

    def on_exception(self, *_: Any) -> None:
        """Leave the device alone after a step that raised."""
        self._recorder.close()
