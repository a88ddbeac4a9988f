"""Data, model and training together: what none of them shows alone."""

from pathlib import Path
from typing import Any

import pytest
import torch

from social_xlstm import config_file
from social_xlstm.config import Config
from social_xlstm.data.sets import TrafficSet
from social_xlstm.data.synthetic import SyntheticOptions, generate
from social_xlstm.train.assemble import CopyLast, assemble
from social_xlstm.train.evaluate import evaluate
from social_xlstm.train.loop import Trainer
from social_xlstm.train.step import train_step
from tests.model.sync_counter import HostSyncs

SMALL = """
data: {loader: {batch_size: 16, num_workers: 0}}
model: {xlstm: {embedding_dim: 16, num_blocks: 4, slstm_at: [1, 3]}, residual: true}
optimizer: {lr: 0.01}
trainer: {max_epochs: 2, limit_train_batches: 12, log_every_n_steps: 4, device: cpu}
"""


@pytest.fixture(scope="module")
def traffic() -> TrafficSet:
    """Make a small set once."""
    torch.set_num_threads(1)
    return generate(SyntheticOptions(detectors=8, steps=600, missing_share=0.0))


def config(*overrides: str) -> Config:
    return config_file.parse(SMALL, overrides)


@pytest.mark.parametrize(("cell", "expected"), [("fast", 0), ("sync_free", 0), ("package", 24)])
def test_host_syncs_of_a_whole_training_step(cell: str, expected: int, traffic: TrafficSet) -> None:
    """From transfer to update, none with our cell and 24 with the package's (O18, O20)."""
    assembly = assemble(config(f"model.cell={cell}"), traffic=traffic)
    trainer = Trainer(assembly.model, assembly.config.trainer, assembly.config.optimizer)
    batch = next(iter(assembly.training_loader()))
    train_step(trainer.recipe, batch)
    with HostSyncs() as syncs:
        train_step(trainer.recipe, batch)
    assert expected == syncs.count


@pytest.mark.parametrize("n", [1, 4, 12])
def test_host_syncs_of_an_epoch_are_one_in_n(n: int, traffic: TrafficSet) -> None:
    """With real loader and model, an epoch of 12 updates reads the loss 12 / n times (O19)."""
    assembly = assemble(config(f"trainer.log_every_n_steps={n}", "trainer.max_epochs=1"), traffic=traffic)
    trainer = Trainer(assembly.model, assembly.config.trainer, assembly.config.optimizer)
    with HostSyncs() as syncs:
        trainer.fit(assembly.plan())
    assert 12 // n == syncs.count


def test_validation_can_be_limited(traffic: TrafficSet) -> None:
    """`limit_val_batches` measures on the first so many batches, the same ones every time."""
    assembly = assemble(config("trainer.limit_val_batches=2", "data.loader.batch_size=4"), traffic=traffic)
    given = list(assembly.plan().val or ())
    assert 2 == len(given)
    assert torch.equal(given[0].features, next(iter(assembly.evaluation_loader("val"))).features)


def test_every_parameter_receives_a_gradient_and_moves(traffic: TrafficSet) -> None:
    """The optimizer knows all of the model's parameters, and none of them stands still."""
    options = ("model.context_gate=true", "model.attention_readout=true", "trainer.limit_train_batches=3")
    assembly = assemble(config(*options), traffic=traffic)
    before = {name: p.detach().clone() for name, p in assembly.model.named_parameters()}
    trainer = Trainer(assembly.model, assembly.config.trainer, assembly.config.optimizer)
    trainer.fit(assembly.plan())
    still = [name for name, p in assembly.model.named_parameters() if torch.equal(before[name], p.detach())]
    assert [] == still


def test_training_beats_copying_the_last_value(traffic: TrafficSet) -> None:
    """A few updates on synthetic traffic are enough to be better than assuming that nothing changes."""
    settings = config("trainer.max_epochs=5", "model.xlstm={embedding_dim: 16, num_blocks: 1, slstm_at: [0]}")
    assembly = assemble(settings, traffic=traffic)
    Trainer(assembly.model, settings.trainer, settings.optimizer).fit(assembly.plan())
    loader = assembly.evaluation_loader("train")
    copied = evaluate(CopyLast(settings.data.prediction_length), loader, assembly.evaluation)
    assert evaluate(assembly.model, loader, assembly.evaluation).loss < copied.loss


@pytest.mark.parametrize(
    "option",
    [
        "data.loader.resident=true",
        "data.batch_format=distributed",
        "data.storage=memmap",
        "data.storage=file",
    ],
)
def test_the_way_data_comes_does_not_change_what_is_learnt(
    option: str, traffic: TrafficSet, tmp_path: Path
) -> None:
    """Resident, as dicts, mapped or read from the file: the weights are bit for bit the same."""
    found: list[Any] = []
    short = ("trainer.max_epochs=1", "trainer.limit_train_batches=4", "model.xlstm.slstm_at=[0]")
    for overrides in ([], [option, f"data.cache_dir={tmp_path}"]):
        assembly = assemble(config("model.xlstm.num_blocks=1", *short, *overrides), traffic=traffic)
        trainer = Trainer(
            assembly.model, assembly.config.trainer, assembly.config.optimizer, arrange=assembly.arrange
        )
        trainer.fit(assembly.plan())
        found.append(assembly.model.state_dict())
    assert all(torch.equal(found[0][name], found[1][name]) for name in found[0])
