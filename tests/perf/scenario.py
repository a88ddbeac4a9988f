"""Run one side of a document: its configuration on the Social-xLSTM at the document's shape."""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any

import torch

from perfsuite import Perf, Reading
from social_xlstm import config_file
from social_xlstm.config import Config
from social_xlstm.data.loader import build_loader
from social_xlstm.data.synthetic import SyntheticOptions, generate
from social_xlstm.data.workers import most_useful_workers, usable_cores
from social_xlstm.train.assemble import Assembly, assemble
from social_xlstm.train.loop import Trainer
from social_xlstm.train.step import train_step
from social_xlstm.train.transfer import move_to_device
from tests.perf.claims import Document, Figures
from tests.perf.feeding import AsConfigured
from tests.perf.steadiness import period, swing
from tests.perf.subject import plain_products

_FEATURES = ("speed", "flow", "occupancy")


def run(perf: Perf, document: Document, side: str, changes: Sequence[str] = (), name: str = "") -> Figures:
    """Measure or model one side, with further changes, and return its figures."""
    config = config_file.load(document.config(side), changes)
    is_modelled = perf.device_name.startswith("model:")
    traffic = generate(
        SyntheticOptions(document.detectors, document.rows, _FEATURES[: document.features], missing_share=0.0)
    )
    with _arithmetic(config):
        assembly = assemble(_placed(config, perf.device, is_modelled), traffic=traffic)
        trainer = Trainer(assembly.model, assembly.config.trainer, config.optimizer, arrange=assembly.arrange)
        batch_size, windows = config.data.loader.batch_size, len(assembly.prepared.train)
        reading = perf.loop(
            _loader(assembly, config, is_modelled),
            _step(trainer, config),
            samples_per_step=batch_size,
            modelled_batch_time=document.window_ms * batch_size / 1000 if is_modelled else None,
            name=name or side,
        )
        transfer = perf(
            _transfer(assembly, config), samples_per_step=batch_size, name=f"{name or side}, transfer"
        )
    parameters = sum(p.numel() for p in assembly.model.parameters())
    return _figures(reading, windows, parameters, transfer)


def _transfer(assembly: Assembly, config: Config) -> Callable[[], torch.Tensor]:
    """Return a step that brings one batch to the device and reads it there once."""
    switches = replace(assembly.config.data.loader, num_workers=0, prefetch_factor=None)
    loader = build_loader(assembly.prepared.train, switches, shuffle=False, seed=0)
    batch = next(iter(loader))
    if config.data.loader.pin_memory:
        batch = batch.pin_memory()
    how = {"non_blocking": config.trainer.non_blocking}

    def transfer() -> torch.Tensor:
        moved = move_to_device(batch, assembly.device, **how)
        return moved.features.sum() + moved.targets.sum() + moved.mask.sum()

    return transfer


def _placed(config: Config, device: str, is_modelled: bool) -> Config:
    """Put the training on the device; a modelled card plays the workers, so none are started."""
    loader, precision = config.data.loader, config.trainer.precision
    if is_modelled:
        loader = replace(loader, num_workers=0, prefetch_factor=None)
        # cuDNN's half-precision recurrence has no counterpart on a CPU; torch would take it to pieces.
        precision = "32-true" if config.model.cell == "lstm" else precision
    elif isinstance(loader.num_workers, int):
        # A real loader refuses forty workers on few cores; the most that it takes stand in for them.
        loader = replace(loader, num_workers=min(loader.num_workers, most_useful_workers(usable_cores())))
    trainer = replace(config.trainer, device=device, devices=1, compile=False, precision=precision)
    return replace(config, data=replace(config.data, loader=loader), trainer=trainer)


def _loader(assembly: Assembly, config: Config, is_modelled: bool) -> Any:
    loader = assembly.training_loader()
    if not is_modelled:
        return loader
    return AsConfigured(list(islice(iter(loader), 2)), config.data.loader, epoch=len(loader))


def _step(trainer: Trainer, config: Config) -> Callable[[Any], torch.Tensor]:
    """Return the loop's step: groups of batches, and a log now and then, which reads the loss."""
    group, every = config.trainer.accumulate_grad_batches, config.trainer.log_every_n_steps
    count = 0

    def step(batch: Any) -> torch.Tensor:
        nonlocal count
        count += 1
        update = count % group == 0
        loss = train_step(trainer.recipe, batch, update=update)
        if update and count // group % every == 0:
            loss.item()
        return loss

    return step


@contextlib.contextmanager
def _arithmetic(config: Config) -> Iterator[None]:
    """Set TF32 as configured, and keep bfloat16 away from oneDNN."""
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = config.trainer.tf32
    is_half = config.trainer.precision == "bf16-mixed" and config.model.cell != "lstm"
    try:
        with plain_products() if is_half else contextlib.nullcontext():
            yield
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before


def _figures(reading: Reading, windows: int, parameters: int, transfer: Reading) -> Figures:
    speed = reading.samples_per_s
    return {
        "utilization": reading.utilization,
        "samples_per_s": speed,
        "peak_memory": reading.peak_memory_bytes,
        "epoch_seconds": windows / speed if speed else None,
        "step_seconds": reading.step_seconds,
        "transfer_seconds": transfer.step_seconds,
        "data_wait": reading.data_wait,
        "swing": swing(reading),
        "period": period(reading),
        "parameters": float(parameters),
    }
