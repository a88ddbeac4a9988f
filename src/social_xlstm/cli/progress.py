"""What a training shows while it runs: a bar on a terminal, plain lines elsewhere."""

import sys
import time
from collections.abc import Callable
from typing import Any, TextIO

import torch
from tqdm import tqdm

from social_xlstm.train.hooks import Callback
from social_xlstm.train.speed import Speedometer
from social_xlstm.train.state import FitState

_BAR = "{desc} {percentage:3.0f}% |{bar}| {n_fmt}/{total_fmt} batches{postfix}, ETA {remaining}"
_LINE_EVERY_SECONDS = 20.0


def build_progress(kind: str, speed: Speedometer) -> Callback:
    """Choose by the option, or by whether the output is a terminal."""
    if kind == "auto":
        kind = "bar" if sys.stderr.isatty() else "lines"
    return {"bar": Bar, "lines": Lines, "off": Silent}[kind](speed)


class Silent(Callback):
    """Show messages only: what the user must know is never hidden."""

    def __init__(self, speed: Speedometer, out: TextIO | None = None) -> None:
        self._speed, self._out = speed, out or sys.stdout

    def on_message(self, text: str) -> None:
        """Pass a message on."""
        self._write(text)

    def _write(self, text: str) -> None:
        print(text, file=self._out, flush=True)


class Lines(Silent):
    """Write a line per epoch, and one now and then inside a long one."""

    def __init__(
        self, speed: Speedometer, out: TextIO | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        super().__init__(speed, out)
        self._clock = clock

    def on_fit_start(self, state: FitState, batches_per_epoch: int, max_epochs: int) -> None:
        """Remember where the training starts."""
        self._batches_per_epoch, self._max_epochs = batches_per_epoch, max_epochs
        self._start_epoch, self._began = state.epoch, self._clock()  # clock
        self._last_line = self._began

    def on_log(self, state: FitState, loss: float) -> None:
        """Show the loss, but not too often."""
        now = self._clock()  # clock
        if now - self._last_line >= _LINE_EVERY_SECONDS:
            self._last_line = now
            epoch = f"epoch {state.epoch + 1}/{self._max_epochs}, step {state.updates}"
            self._write(f"{epoch}: loss {loss:.4f}, {pace(self._speed)}")

    def on_epoch_end(self, state: FitState, row: dict[str, Any]) -> None:
        """Show the epoch's results."""
        self._last_line = now = self._clock()  # clock
        done = state.epoch - self._start_epoch
        left = (now - self._began) / done * (self._max_epochs - state.epoch)
        self._write(f"{epoch_line(row, self._max_epochs)}, ETA {tqdm.format_interval(left)}")


class Bar(Silent):
    """Draw one bar over the whole training."""

    def __init__(self, speed: Speedometer, out: TextIO | None = None) -> None:
        super().__init__(speed, out or sys.stderr)
        self._loss: float | None = None

    def on_fit_start(self, state: FitState, batches_per_epoch: int, max_epochs: int) -> None:
        """Open the bar at the checkpoint's position."""
        self._max_epochs = max_epochs
        done = state.epoch * batches_per_epoch + state.groups_done * state.accumulate
        self._bar = tqdm(
            total=max_epochs * batches_per_epoch,
            initial=done,
            file=self._out,
            bar_format=_BAR,
            dynamic_ncols=True,
            desc=f"epoch {min(state.epoch + 1, max_epochs)}/{max_epochs}",
            leave=False,
        )

    def on_step(self, state: FitState, loss: torch.Tensor) -> None:  # noqa: ARG002 - reading it would be a sync
        """Move the bar by one batch."""
        self._bar.update()

    def on_log(self, state: FitState, loss: float) -> None:
        """Show the loss that was read anyway, and the pace."""
        self._bar.set_description_str(f"epoch {state.epoch + 1}/{self._max_epochs}", refresh=False)
        self._bar.set_postfix_str(f"loss {loss:.4f}, {pace(self._speed)}")

    def on_epoch_end(self, state: FitState, row: dict[str, Any]) -> None:  # noqa: ARG002 - the hook's signature
        """Leave the epoch's results above the bar."""
        self._write(epoch_line(row, self._max_epochs))

    def on_fit_end(self, state: FitState) -> None:  # noqa: ARG002 - the hook's signature
        """Remove the bar."""
        self._bar.close()

    def _write(self, text: str) -> None:
        tqdm.write(text, file=self._out)


def pace(speed: Speedometer) -> str:
    """Describe the speed and the share of time spent waiting for data."""
    return _pace(speed.samples_per_s, speed.data_wait_share)


def _pace(samples_per_s: float | None, wait: float | None) -> str:
    if samples_per_s is None or wait is None:
        return "no speed yet"
    return f"{samples_per_s:,.0f} samples/s, data wait {wait:.0%}"


def epoch_line(row: dict[str, Any], max_epochs: int) -> str:
    """Format an epoch's row as one line."""
    parts = [f"epoch {row['epoch']}/{max_epochs}: train loss {_loss(row['train_loss'])}"]
    if "val_loss" in row:
        parts.append(f"val loss {_loss(row['val_loss'])}")
    parts += [
        f"{name.removeprefix('val_mae_')} MAE {value:.3f}"
        for name, value in row.items()
        if name.startswith("val_mae_") and value is not None
    ]
    parts.append(_pace(row.get("samples_per_s"), row.get("data_wait_share")))
    return ", ".join(parts)


def _loss(value: float | None) -> str:
    return "—" if value is None else f"{value:.4f}"
