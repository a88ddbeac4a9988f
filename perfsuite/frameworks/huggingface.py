"""A Hugging Face callback: `Trainer(…, callbacks=[PerfCallback(perf)])` is measured like perf.loop."""

from typing import TYPE_CHECKING, Any

try:
    from transformers import TrainerCallback
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        "perfsuite.frameworks.huggingface needs transformers; install it with: "
        "pip install 'pytest-perfsuite[huggingface]'"
    ) from error

if TYPE_CHECKING:
    from perfsuite.plugin.fixture import Perf


class PerfCallback(TrainerCallback):  # type: ignore[misc]
    """Pass every step to the recorder, and stop the training once enough was measured."""

    def __init__(
        self, perf: "Perf", *, samples_per_step: int | None = None, name: str = "", **limits: object
    ) -> None:
        super().__init__()
        self._has_samples = samples_per_step is not None
        self._recorder = perf.recorder(samples_per_step=samples_per_step, name=name, **limits)

    @property
    def reading(self) -> Any:
        """The reading, None before the training has been measured."""
        return self._recorder.reading

    def on_train_begin(self, args: Any, *_: Any, **more: Any) -> None:
        """Start recording; the batch size comes from the arguments, as callbacks get no batch."""
        if not self._has_samples:
            accumulated = args.train_batch_size * args.gradient_accumulation_steps * args.world_size
            self._recorder.count_as(accumulated)
        self._recorder.begin(more.get("train_dataloader"))

    def on_epoch_begin(self, *_: Any, **__: Any) -> None:
        """Start waiting for the first batch of an epoch."""
        self._recorder.begin_epoch()
        self._recorder.request_batch()

    def on_step_begin(self, *_: Any, **__: Any) -> None:
        """Record that the batches of a step have arrived."""
        self._recorder.receive_batch(None)

    def on_step_end(self, _args: Any, _state: Any, control: Any, **_: Any) -> Any:
        """Record the end of the step, and stop the training once enough was measured."""
        self._recorder.step_done()
        control.should_training_stop = control.should_training_stop or self._recorder.is_done
        return control

    def on_evaluate(self, *_: Any, **__: Any) -> None:
        """Start waiting for data only now: time spent in an evaluation is not the loader's."""
        self._recorder.request_batch()

    def on_train_end(self, *_: Any, **__: Any) -> None:
        """Keep the reading of a training that ended by itself."""
        self._recorder.finish()
