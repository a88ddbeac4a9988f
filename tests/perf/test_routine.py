"""The routine check: where the first steps of the configured training go, and its checklist."""

import math
from dataclasses import replace
from pathlib import Path

import pytest

from social_xlstm import config_file
from social_xlstm.data.synthetic import SyntheticOptions, generate
from social_xlstm.train.assemble import assemble
from social_xlstm.train.hooks import Callback
from social_xlstm.train.loop import Trainer
from tests.perf.closing import TOLD
from tests.perf.stages import Stages, device_clock, watched


def configured(request, device):
    """Read the training's configuration; where its data is not there, synthetic traffic stands in."""
    config = config_file.load(request.config.getoption("--perf-config"))
    config = replace(config, trainer=replace(config.trainer, device=device))
    traffic = None
    if not Path(config.data.path).exists():
        traffic = generate(SyntheticOptions(detectors=20, steps=4000))
    return assemble(config, traffic=traffic), traffic is not None


class StopAfter(Callback):
    """End a training after so many batches."""

    def __init__(self, batches: int) -> None:
        self._batches = batches
        self.trainer: Trainer | None = None

    def on_step(self, state, loss):
        if state.batches >= self._batches:
            self.trainer.request_stop("the routine check")


@pytest.mark.routine
@pytest.mark.perf(max_time="5 s", tolerance="100 %", memory_tolerance="100 %")
def test_where_the_first_steps_go(perf, request, training_checklist):
    """Loader, transfer, forward, backward, optimizer and logging add up to the training's time."""
    if perf.device_name.startswith("model:"):
        pytest.skip("shares are timed, and a modelled card has no clock")
    steps = request.config.getoption("--perf-steps")
    assembly, is_synthetic = configured(request, perf.device)
    config = assembly.config.trainer
    loader = assembly.training_loader()
    epochs = math.ceil(steps / len(loader))
    trainer_config = replace(config, max_epochs=epochs, limit_train_batches=min(steps, len(loader)))
    stages, limit = Stages(device_clock(perf.device)), StopAfter(steps)
    trainer = Trainer(
        assembly.model,
        trainer_config,
        assembly.config.optimizer,
        callbacks=[stages, limit],
        arrange=assembly.arrange,
    )
    limit.trainer = trainer
    with watched(trainer, stages):
        state = trainer.fit(replace(assembly.plan(), train=loader, val=None))
    shares = stages.shares
    reading = perf.loop(loader, lambda batch: trainer._step(trainer.recipe, batch))
    tell = request.config.stash[TOLD].append
    data = "synthetic data" if is_synthetic else assembly.config.data.path
    tell(f"{state.batches} steps on {perf.device_name}, {data}: " + ", ".join(
        f"{name} {100 * share:.1f} %" for name, share in shares.items()
    ))  # fmt: skip
    checklist = training_checklist(assembly.config, perf.device_name)
    for item in (*checklist.before(), *checklist.during(reading, len(assembly.prepared.train))):
        tell(f"  {item.line()}")
    assert sum(shares.values()) == pytest.approx(1)
    assert min(shares[name] for name in ("forward", "backward", "optimizer", "loader")) > 0
    assert steps == state.batches
