"""`social-xlstm train`: a run from its configuration, or its continuation, to errors on the test part."""

import argparse
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from types import FrameType
from typing import Any

import torch

from social_xlstm import config_file
from social_xlstm.cli import run_folder as folders
from social_xlstm.cli.arguments import overrides
from social_xlstm.cli.progress import build_progress
from social_xlstm.cli.report import measure, write_report
from social_xlstm.cli.results import EpochTable, environment
from social_xlstm.cli.run_folder import RunFolder
from social_xlstm.config import Config
from social_xlstm.errors import InputError
from social_xlstm.train import checkpoint, snapshot
from social_xlstm.train.assemble import Assembly, assemble
from social_xlstm.train.distributed import World, check_devices, process_group
from social_xlstm.train.loop import Trainer
from social_xlstm.train.memory_ladder import Rung, is_out_of_memory
from social_xlstm.train.plan import Plan
from social_xlstm.train.speed import Speedometer
from social_xlstm.train.state import FitState

_STDERR = 2  # the file descriptor


@dataclass
class Interrupt:
    """The signal that came, if one did."""

    signal_number: int | None = None

    @property
    def exit_code(self) -> int:
        """Return the code a shell expects of a process ended by this signal."""
        return 128 + (self.signal_number or signal.SIGINT)


@contextmanager
def stop_on_signals(request_stop: Callable[[str], None]) -> Iterator[Interrupt]:
    """Within the block, turn the first signal into a request to stop."""
    interrupt, owner = Interrupt(), os.getpid()
    if threading.current_thread() is not threading.main_thread():
        yield interrupt  # only the main thread may handle signals
        return

    def handle(number: int, _: FrameType | None) -> None:
        if os.getpid() != owner:
            # A loader's worker inherits this handler. Ctrl-C reaches it too, and must not end it before the
            # training has taken its last batch; a request to terminate is meant for it.
            if number == signal.SIGTERM:
                signal.signal(number, signal.SIG_DFL)
                os.kill(os.getpid(), number)
            return
        if interrupt.signal_number is not None and number == signal.SIGINT:
            raise KeyboardInterrupt
        interrupt.signal_number = number
        request_stop(signal.Signals(number).name)
        # Written as bytes to the file itself: a signal may come in the middle of another print.
        os.write(_STDERR, b"\nstopping after this update; Ctrl-C again stops at once, unsaved\n")

    before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield interrupt
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def run(arguments: argparse.Namespace) -> int:
    """Configure, train, and measure the best weights on the test part."""
    world = World.from_environment()
    config, resumed = configure(arguments)
    check_devices(config.trainer.devices, world)
    with process_group(world, world.device(config.trainer.device), config.trainer.ddp_timeout):
        resumed = folders.find_restarted(config, world) or resumed
        assembly = assemble(config, world)
        saved = None
        if resumed is not None and _has_checkpoint(arguments, resumed):
            saved = checkpoint.load(resumed.path / folders.LAST)
            folders.check_same_data(saved, assembly.prepared)
        plan = assembly.plan()  # before the folder: a loader that cannot be built must not leave one
        folder = resumed or _create_folder(config, world)
        folders.note_launchers(folder, world)
        plan = replace(plan, folder=folder.path, about=folders.about(config, assembly.prepared))
        return _train(arguments, assembly, plan, folder, saved)


def _has_checkpoint(arguments: argparse.Namespace, resumed: RunFolder) -> bool:
    """Return whether there is a checkpoint to load; with --resume a missing one is an error."""
    return arguments.resume is not None or (resumed.path / folders.LAST).is_file()


def configure(arguments: argparse.Namespace) -> tuple[Config, RunFolder | None]:
    """Read the configuration: of the file, of the run that is resumed, or the shipped one."""
    changes = overrides(arguments)
    if arguments.resume is None:
        return config_file.load(arguments.config, changes), None
    if arguments.config is not None:
        raise InputError(
            "--resume uses the run's own config.yaml; leave --config out, change keys with --set"
        )
    if arguments.resume:
        folder = RunFolder.from_name(arguments.resume)
    else:
        named = [change for change in changes if change.startswith("experiment.")]
        folder = RunFolder.latest(config_file.load(None, named))
    config = config_file.load(folder.path / folders.CONFIG, changes)
    folders.check_unchanged(config_file.load(folder.path / folders.CONFIG), config)
    return config, folder


def _create_folder(config: Config, world: World) -> RunFolder:
    """Make the run's folder once, for all processes."""
    made = RunFolder.create(config) if world.is_first else None
    return next(folder for folder in world.gather(made) if folder is not None)


def _train(
    arguments: argparse.Namespace,
    assembly: Assembly,
    plan: Plan,
    folder: RunFolder,
    saved: checkpoint.Checkpoint | None,
) -> int:
    """Fit, then report; if interrupted, print how to continue."""
    config, world = assembly.config, assembly.world
    speed = Speedometer(world.size)
    callbacks: list[Any] = [speed]
    if world.is_first:
        (folder.path / folders.CONFIG).write_text(config_file.dump(config), encoding="utf-8")
        callbacks += [build_progress(arguments.progress, speed), EpochTable(folder.path / folders.EPOCHS)]
        _introduce(assembly, folder, saved)
    trainer = Trainer(
        assembly.model,
        config.trainer,
        config.optimizer,
        world=world,
        callbacks=callbacks,
        arrange=assembly.arrange,
    )
    began = time.monotonic()  # clock
    with stop_on_signals(trainer.request_stop) as interrupt:
        state = _fit(trainer, plan, saved)
    if not state.finished:
        return _interrupted(folder, trainer, interrupt)
    chosen = folders.LAST if state.best_epoch is None else folders.BEST
    snapshot.load_weights(trainer.model, checkpoint.load(folder.path / chosen))
    found = {
        "best_epoch": state.best_epoch,
        "epochs": state.epoch,
        "updates": state.updates,
        "parameters": sum(p.numel() for p in trainer.model.parameters()),
        "seconds": time.monotonic() - began,  # clock
        "environment": environment(),
        "config": config_file.dump(config),
    }
    part = "test" if config.data.split.test > 0 else "val" if config.data.split.val > 0 else "train"
    measured = measure(assembly, part)
    if world.is_first:
        print(f"best epoch {state.best_epoch} of {state.epoch}, measured on the {part} part:")
        write_report(assembly, measured, found, folder, plot=not arguments.no_plot)
    return 0


def _fit(trainer: Trainer, plan: Plan, saved: checkpoint.Checkpoint | None) -> FitState:
    """Train; explain an out-of-memory error that the ladder may not or cannot avoid."""
    try:
        return trainer.fit(plan, saved)
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        lower = Rung(trainer.state.batch_size, trainer.state.accumulate).lower()
        remedy = "take a smaller model" if lower is None else f"try {lower}, which trains the same"
        raise InputError(f"out of memory ({str(error).splitlines()[0]}); {remedy}") from None


def _introduce(assembly: Assembly, folder: RunFolder, saved: checkpoint.Checkpoint | None) -> None:
    """Print what is about to happen, in two lines."""
    prepared, world = assembly.prepared, assembly.world
    parameters = sum(p.numel() for p in assembly.model.parameters())
    where = f"{assembly.device}" if world.size == 1 else f"{world.size} × {assembly.device.type}"
    print(
        f"{'resuming' if saved else 'training'} {folder.path}: {parameters:,} parameters, "
        f"{len(prepared.vdids)} detectors, {len(prepared.train):,} windows, on {where} "
        f"with {torch.get_num_threads()} threads",
        flush=True,
    )
    if saved is not None:
        epoch, groups = saved.progress["epoch"], saved.progress["groups_done"]
        print(f"continuing after epoch {epoch}, update {groups} of the next", flush=True)


def _interrupted(folder: RunFolder, trainer: Trainer, interrupt: Interrupt) -> int:
    """Print what was saved and how to continue."""
    if trainer.world.is_first:
        print(
            f"stopped by {trainer.stop_reason} after update {trainer.state.updates} "
            f"(epoch {trainer.state.epoch + 1}); saved {folder.path / folders.LAST}\n"
            f"continue with: social-xlstm train --resume {folder.path}"
        )
    return interrupt.exit_code
