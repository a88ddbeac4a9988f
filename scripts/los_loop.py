"""Train on Los-loop under the T-GCN protocol: with pooling, without, and with detectors in random places.

    python scripts/los_loop.py --data ../shared/data              three variants, three seeds each
    python scripts/los_loop.py --data ../shared/data --quick      one short training with pooling, for a test

The protocol: 207 sensors, 2016 steps of five minutes, values divided by their maximum; the first 80 % of time
train, and the last eighth of that chooses the epoch; the last 20 % test; 12 steps in, 3 (15 minutes) out;
RMSE and MAE over all predicted steps together, in mph. The table is Markdown, for docs/accuracy.md.
"""

import argparse
import copy
import multiprocessing
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import numpy as np
import torch
from torch import nn

from social_xlstm import config_file
from social_xlstm.config import Config
from social_xlstm.data.convert import ConvertOptions, read_foreign
from social_xlstm.data.sets import TrafficSet
from social_xlstm.data.windows import Windows
from social_xlstm.errors import InputError
from social_xlstm.train.assemble import CopyLast, assemble
from social_xlstm.train.evaluate import evaluate
from social_xlstm.train.hooks import Callback
from social_xlstm.train.loop import Trainer
from social_xlstm.train.state import FitState

VARIANTS = ("pooled", "unpooled", "random positions")
PUBLISHED = {"T-GCN, published": (5.126, 3.180), "GRU, published": (5.218, 3.060)}
QUICK = ("trainer.max_epochs=2", "trainer.limit_train_batches=30")
CONFIG = """
data:
  path: los_loop
  split: {train: 0.7, val: 0.1, test: 0.2}
  normalize: standard
  loader: {batch_size: 8, num_workers: 0}
model:
  xlstm: {embedding_dim: 32, num_blocks: 2, slstm_at: [1], dropout: 0.0}
  residual: true
social_pooling: {radius: 5000}
optimizer: {lr: 0.004, schedule: cosine, warmup_share: 0.1}
trainer: {max_epochs: 8, limit_train_batches: 50, device: cpu}
"""


@dataclass(frozen=True)
class Job:
    """One training of the table."""

    variant: str
    seed: int
    folder: str
    overrides: tuple[str, ...] = ()


@dataclass(frozen=True)
class Row:
    """What one training reached on the test part, with the weights that validated best."""

    variant: str
    seed: int
    epoch: int
    val_rmse: float
    rmse: float
    mae: float
    seconds: float


class BestWeights(Callback):
    """Keep the weights of the epoch that validated best."""

    def __init__(self, model: nn.Module) -> None:
        self._model, self.weights = model, copy.deepcopy(model.state_dict())

    def on_epoch_end(self, state: FitState, row: dict[str, Any]) -> None:
        """Copy the weights after a best epoch."""
        if state.best_epoch == row["epoch"]:
            self.weights = copy.deepcopy(self._model.state_dict())


def read_los_loop(folder: str | Path) -> TrafficSet:
    """Read speeds and sensor locations as one set."""
    folder = Path(folder)
    options = ConvertOptions(
        locations=str(folder / "sensor_locations/metr_la.csv"), start="2012-03-01 00:00:00"
    )
    return read_foreign(folder / "los_loop/los_speed.csv", options)


def configure(job: Job) -> Config:
    """Make the configuration of one training; variants differ in nothing but pooling."""
    enabled = "false" if job.variant == "unpooled" else "true"
    return config_file.parse(
        CONFIG, [f"social_pooling.enabled={enabled}", f"experiment.seed={job.seed}", *job.overrides]
    )


def train(job: Job) -> Row:
    """Train once and measure the best epoch's weights on the test part."""
    torch.set_num_threads(1)  # trainings run side by side, one on each core
    traffic = read_los_loop(job.folder)
    if job.variant == "random positions":
        shuffled = np.random.default_rng(job.seed).permutation(len(traffic.vdids))
        traffic = replace(traffic, positions=traffic.positions[shuffled])
    config = configure(job)
    began = time.perf_counter()  # clock
    assembly = assemble(config, traffic=traffic)
    keeper = BestWeights(assembly.model)
    trainer = Trainer(assembly.model, config.trainer, config.optimizer, callbacks=[keeper])
    state = trainer.fit(assembly.plan())
    assembly.model.load_state_dict(keeper.weights)
    speed = evaluate(assembly.model, assembly.evaluation_loader("test"), assembly.evaluation).features[0]
    best = state.history[state.best_epoch - 1]
    return Row(
        job.variant, job.seed, state.best_epoch, best["val_rmse_speed"], speed.together.rmse,
        speed.together.mae, time.perf_counter() - began,
    )  # fmt: skip


class Autoregression(nn.Module):
    """Forecast by one linear map of the 12 last values, the same for every detector."""

    def __init__(self, windows: Windows) -> None:
        super().__init__()
        batch = windows.gather(np.arange(len(windows)))
        inputs, targets = (
            x[..., 0].transpose(1, 2).flatten(0, 1).double() for x in (batch.features, batch.targets)
        )
        inputs = torch.cat([inputs, torch.ones(len(inputs), 1, dtype=inputs.dtype)], dim=1)
        self.weights = torch.linalg.lstsq(inputs, targets).solution.float()

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        """Map [B,12,N,1] to [B,3,N,1]."""
        inputs = features[..., 0].transpose(1, 2)
        forecast = inputs @ self.weights[:-1] + self.weights[-1]
        return forecast.transpose(1, 2)[..., None]


def yardsticks(folder: str) -> dict[str, tuple[float, float]]:
    """Measure what needs no network: the protocol is right if these are the published figures."""
    config = config_file.parse(
        CONFIG, ["data.split={train: 0.8, val: 0, test: 0.2}", "social_pooling.enabled=false"]
    )
    assembly = assemble(config, traffic=read_los_loop(folder))
    found = {}
    for name, model in {
        "linear AR(12), measured here": Autoregression(assembly.prepared.train),
        "copying the last value, measured here": CopyLast(config.data.prediction_length),
    }.items():
        speed = evaluate(model, assembly.evaluation_loader("test"), assembly.evaluation).features[0]
        found[name] = (speed.together.rmse, speed.together.mae)
    return found


def markdown(rows: list[Row], others: dict[str, tuple[float, float]], seconds: float, jobs: int) -> str:
    """Lay the results out as two tables: variants beside published figures, and every training."""
    lines = ["| model | RMSE | MAE | seeds |", "|---|---|---|---|"]
    for variant in dict.fromkeys(row.variant for row in rows):
        own = [row for row in rows if row.variant == variant]
        spread = f" ± {stdev([row.rmse for row in own]):.3f}" if len(own) > 1 else ""
        seeds = ", ".join(str(row.seed) for row in own)
        lines.append(
            f"| Social-xLSTM, {variant} | **{mean(row.rmse for row in own):.3f}**{spread} "
            f"| {mean(row.mae for row in own):.3f} | {seeds} |"
        )
    lines += [f"| {name} | {rmse:.3f} | {mae:.3f} | |" for name, (rmse, mae) in others.items()]
    lines += [
        "",
        "| variant | seed | best epoch | validation RMSE | test RMSE | test MAE | seconds |",
        "|---|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {row.variant} | {row.seed} | {row.epoch} | {row.val_rmse:.3f} | {row.rmse:.3f} | {row.mae:.3f} "
        f"| {row.seconds:.0f} |"
        for row in rows
    ]
    return "\n".join([*lines, "", f"{len(rows)} trainings, {jobs} at a time: {seconds / 60:.1f} minutes."])


def main(argv: list[str] | None = None) -> int:
    """Run the trainings side by side and print the tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--data", required=True, metavar="FOLDER", help="holds los_loop/ and sensor_locations/"
    )
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--variants", nargs="+", choices=VARIANTS, default=list(VARIANTS))
    parser.add_argument("--jobs", type=int, default=2, help="trainings at a time, one core each")
    parser.add_argument("--quick", action="store_true", help="one short training with pooling")
    parser.add_argument("--set", action="append", default=[], dest="overrides", metavar="KEY=VALUE")
    arguments = parser.parse_args(argv)
    overrides = tuple(arguments.overrides)
    jobs = [Job(v, seed, arguments.data, overrides) for seed in arguments.seeds for v in arguments.variants]
    if arguments.quick:
        jobs = [replace(jobs[0], overrides=(*QUICK, *overrides))]
    began = time.perf_counter()  # clock
    try:
        others = PUBLISHED | yardsticks(arguments.data)
        with ProcessPoolExecutor(arguments.jobs, multiprocessing.get_context("spawn")) as pool:
            rows = []
            for row in pool.map(train, jobs):
                print(
                    f"{row.variant}, seed {row.seed}: RMSE {row.rmse:.3f} in {row.seconds:.0f} s",
                    file=sys.stderr,
                )
                rows.append(row)
    except InputError as error:
        print(f"los_loop: {error}", file=sys.stderr)
        return 2
    rows.sort(key=lambda row: (VARIANTS.index(row.variant), row.seed))
    print(markdown(rows, others, time.perf_counter() - began, arguments.jobs))  # clock
    return 0


if __name__ == "__main__":
    sys.exit(main())
