"""A Hugging Face callback: `Trainer(…, callbacks=[PerfCallback(perf)]).train()` measures like perf.loop."""

from typing import TYPE_CHECKING, Any

try:
    from transformers import TrainerCallback
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        "perfsuite.frameworks.huggingface needs transformers; install it with: "
        "pip install 'perfsuite[huggingface]'"
    ) from error

if TYPE_CHECKING:
    from perfsuite.plugin.fixture import Perf


class PerfCallback(TrainerCallback):  # type: ignore[misc]
    """Tell the recorder of every step, and stop the training once it has seen enough."""

    def __init__(
        self, perf: "Perf", *, samples_per_step: int | None = None, name: str = "", **limits: object
    ) -> None:
        super().__init__()
        self._is_told = samples_per_step is not None
        self._recorder = perf.recorder(samples_per_step=samples_per_step, name=name, **limits)

    @property
    def reading(self) -> Any:
        """The reading, None before the training has been measured."""
        return self._recorder.reading

    def on_train_begin(self, args: Any, *_: Any, **more: Any) -> None:
        """Look at the loader, and take the batch size from the arguments: callbacks see no batch."""
        if not self._is_told:
            accumulated = args.train_batch_size * args.gradient_accumulation_steps * args.world_size
            self._recorder.count_as(accumulated)
        self._recorder.begin(more.get("train_dataloader"))

    def on_epoch_begin(self, *_: Any, **__: Any) -> None:
        """Expect the first batch of an epoch."""
        self._recorder.begin_epoch()
        self._recorder.ask()

    def on_step_begin(self, *_: Any, **__: Any) -> None:
        """Note that the batches of a step are there."""
        self._recorder.receive(None)

    def on_step_end(self, _args: Any, _state: Any, control: Any, **_: Any) -> Any:
        """Note the end of the step, and end the training where that was enough."""
        self._recorder.step_done()
        control.should_training_stop = control.should_training_stop or self._recorder.is_done
        return control

    def on_evaluate(self, *_: Any, **__: Any) -> None:
        """Wait for data from here on: an evaluation is not the loader's."""
        self._recorder.ask()

    def on_train_end(self, *_: Any, **__: Any) -> None:
        """Keep what there is of a training that ended by itself."""
        self._recorder.finish()
