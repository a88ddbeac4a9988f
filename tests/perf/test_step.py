"""Contracts of the step: accumulation (O7), batch and ladder (O14), what the host does in it (O17–O19)."""

import pytest
import torch

from social_xlstm.config import OptimizerConfig, TrainerConfig
from social_xlstm.train.evaluate import Evaluation, evaluate
from social_xlstm.train.hooks import Callback
from social_xlstm.train.loop import Trainer
from social_xlstm.train.plan import Plan
from social_xlstm.train.precision import Precision
from social_xlstm.train.step import backward, train_step
from tests.perf.contract import Broken, contract, figure
from tests.perf.subject import Size, parts, training


@contract("O7", "gpu")
def test_accumulation_has_the_large_batch_s_gradient_in_a_fraction_of_its_memory(case):
    """Four quarters of a batch give the gradient of the whole, with a quarter of its activations."""
    size = case.size("accumulation")
    whole, quarters = training(case.device, size), training(case.device, size)
    pieces = parts(quarters.batch, 4)

    def accumulated() -> torch.Tensor:
        for piece in pieces[:-1]:
            train_step(quarters.recipe, piece, update=False)
        return train_step(quarters.recipe, pieces[-1])

    expected = whole.gradients()
    for piece in pieces:
        backward(quarters.recipe, piece)
    for name, parameter in quarters.model.named_parameters():
        case.agree(f"the accumulated gradient of {name}", expected[name], parameter.grad, 1e-3)
    quarters.recipe.optimizer.zero_grad()
    quarters.recipe.sums.group.zero_()
    case.compare(without=whole.step, with_=accumulated, samples=size.windows)


@contract("O14", "cpu", "gpu")
def test_a_large_batch_trains_more_windows_per_second(case):
    """Sixteen windows at once take far less time than one after the other."""
    size = case.size("batch")
    single, joined = training(case.device, size), training(case.device, size)
    one_by_one = parts(single.batch, size.windows)
    case.compare(
        without=lambda: [single.on(piece) for piece in one_by_one], with_=joined.step, samples=size.windows
    )


class Listening(Callback):
    """Keep what a training says."""

    def __init__(self) -> None:
        self.messages: list[str] = []

    def on_message(self, text):
        self.messages.append(text)


class OneBatch:
    """A loader of one batch of a given size."""

    def __init__(self, size: Size, batch_size: int, device: str) -> None:
        self.batch_size, self._size, self._device = batch_size, size, device

    def __len__(self):
        return self._size.windows // self.batch_size

    def set_epoch(self, epoch, start_batch=0):
        self._start = start_batch

    def __iter__(self):
        whole = training(self._device, self._size).batch
        return iter(parts(whole, len(self))[self._start :])


@contract("O14", "cpu")
def test_the_memory_ladder_halves_the_batch_until_it_fits(case):
    """What does not fit is tried with half the batch and twice the accumulation, and the choice is told."""
    size = Size(windows=16, detectors=4)
    heard = Listening()
    model = training(case.device, size).model
    fits = _refusing(model, more_than=4)
    config = TrainerConfig(
        max_epochs=1,
        device=case.device,
        out_of_memory=case.optimized("ladder", "raise"),
        early_stop_patience=None,
    )
    trainer = Trainer(fits, config, OptimizerConfig(), callbacks=[heard])
    plan = Plan(OneBatch(size, 16, case.device), rebuild=lambda batch: OneBatch(size, batch, case.device))
    try:
        state = trainer.fit(plan)
    except torch.OutOfMemoryError as error:
        raise Broken(f"the training ended where a smaller batch would have fitted: {error}") from None
    assert (4, 4) == (state.batch_size, state.accumulate)
    assert [
        "out of memory with batch_size 16 × accumulate_grad_batches 1: chose batch_size 8 × "
        "accumulate_grad_batches 2 (effective batch still 16)",
        "out of memory with batch_size 8 × accumulate_grad_batches 2: chose batch_size 4 × "
        "accumulate_grad_batches 4 (effective batch still 16)",
    ] == heard.messages
    case.tell("16 × 1 → 4 × 4")
    case.step(lambda: trainer.fit(plan), samples=size.windows)


def _refusing(model, more_than):
    """Let a model run out of memory with more windows than fit."""

    def refuse(_, inputs):
        if len(inputs[0]) > more_than:
            raise torch.OutOfMemoryError(f"CUDA out of memory: {len(inputs[0])} windows do not fit")

    model.register_forward_pre_hook(refuse)
    return model


@contract("O17", "gpu")
def test_dropped_gradients_are_neither_filled_nor_kept(case):
    """Gradients set to None cost no zero-fill, no addition, and no memory in the next forward pass."""
    size = case.size("gradients")

    def step_of(*, set_to_none: bool):
        return training(case.device, size, set_to_none=set_to_none).step  # gone before the other is measured

    before = case.measured(step_of(set_to_none=False), samples=size.windows, name="filled")
    lost = case.if_sabotaged(lambda: step_of(set_to_none=False))
    after = case.measured(step_of(set_to_none=True), lost=lost, samples=size.windows, name="dropped")
    case.ratios(before, after)


@contract("O18", "gpu")
def test_a_training_step_never_waits_for_the_device(case):
    """A whole step, clipping and update included, reads nothing back; a loss read in it is a sync."""
    size = case.size("step")
    reading, quiet = training(case.device, size), training(case.device, size)
    case.compare(without=lambda: reading.step().item(), with_=quiet.step, samples=size.windows)


@contract("O18", "gpu")
def test_an_evaluation_reads_from_the_device_once(case):
    """Errors are added up on the device; four batches make one copy to the host."""
    size = case.size("evaluation")
    trained = training(case.device, size)
    pieces = parts(trained.batch, 4)
    how = Evaluation(Precision.from_name("32-true", case.device), lambda values: values, ("speed",))

    def once():
        return evaluate(trained.model, pieces, how)

    def every_batch():
        return [evaluate(trained.model, [piece], how) for piece in pieces]

    case.step(once, lost=every_batch, samples=size.windows)


class Repeated:
    """A loader that gives the same batch many times."""

    batch_size = 2

    def __init__(self, batch, times: int) -> None:
        self._batches = [batch] * times

    def __len__(self):
        return len(self._batches)

    def set_epoch(self, epoch, start_batch=0):
        pass

    def __iter__(self):
        return iter(self._batches)


@contract("O19", "gpu")
def test_logging_every_n_steps_waits_once_in_n(case):
    """An epoch of ten updates that logs every fifth reads three times: two logs and the epoch's end."""
    size = case.size("log")

    def epoch(every: int):
        trained = training(case.device, size)
        config = TrainerConfig(max_epochs=1, device=case.device, log_every_n_steps=every)
        trainer = Trainer(trained.model, config, OptimizerConfig())
        plan = Plan(Repeated(trained.batch, 10))
        return lambda: trainer.fit(plan)

    reading = case.compare(without=epoch(1), with_=epoch(5), samples=20)
    if not case.sabotage:
        per_step = (figure(reading, "syncs") - 1) / 10  # without the one at the epoch's end
        case.tell(f"{per_step:g} a step")
        assert per_step == pytest.approx(1 / 5)
