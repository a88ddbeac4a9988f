"""Many processes train as one on the joined batch."""

import subprocess
import sys
import textwrap

import pytest
import torch

from social_xlstm.errors import InputError
from social_xlstm.train.distributed import World, check_devices, process_group, wrap

# What every process runs; alone (no torchrun) it is the reference on the joined batch.
SCRIPT = '''
import os
import sys
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook

from social_xlstm.config import OptimizerConfig, TrainerConfig
from social_xlstm.train import checkpoint
from social_xlstm.train.distributed import World, process_group
from social_xlstm.train.evaluate import Evaluation
from social_xlstm.train.hooks import Callback
from social_xlstm.train.loop import Trainer
from social_xlstm.train.plan import Plan
from social_xlstm.train.precision import Precision
from social_xlstm.train.seeds import seed_everything
from social_xlstm.train.step import train_step

torch.set_num_threads(1)
folder = Path(sys.argv[1])
world = World.from_environment()


@dataclass(frozen=True)
class Windows:
    features: torch.Tensor
    targets: torch.Tensor
    mask: torch.Tensor


class Loader:
    """Forty windows in groups of eight; each process takes its share of every group."""

    def __init__(self, batch_size):
        generator = torch.Generator().manual_seed(1)
        self.features = torch.randn(40, 4, 3, 1, generator=generator)
        self.targets = torch.randn(40, 2, 3, 1, generator=generator)
        # Unevenly observed: a mean of the processes' means would be wrong.
        share = torch.linspace(0.1, 0.9, 40).view(-1, 1, 1, 1)
        self.mask = torch.rand(40, 2, 3, 1, generator=generator) < share
        self.batch_size, self.start = batch_size, 0

    def set_epoch(self, epoch, start_batch=0):
        self.start = start_batch

    def __len__(self):
        return 40 // (self.batch_size * world.size)

    def __iter__(self):
        share = 8 // world.size
        firsts = [
            first
            for start in range(0, 40, 8)
            for first in range(start + world.rank * share, start + (world.rank + 1) * share, self.batch_size)
        ]
        for first in firsts[self.start :]:
            rows = slice(first, first + self.batch_size)
            yield Windows(self.features[rows], self.targets[rows], self.mask[rows])


def build(dropout=0.0, epochs=2, callbacks=(), log_every=1):
    seed_everything(world.rank)
    model = nn.Sequential(nn.Flatten(2), nn.Linear(3, 6), nn.Tanh(), nn.Dropout(dropout), nn.Linear(6, 3))
    picked = nn.Sequential(model, nn.Unflatten(2, (3, 1)), Last())
    config = TrainerConfig(max_epochs=epochs, device="cpu", accumulate_grad_batches=2,
                           log_every_n_steps=log_every)
    return Trainer(picked, config, OptimizerConfig(lr=0.01), world=world, callbacks=callbacks)


class Last(nn.Module):
    def forward(self, values):
        return values[:, -2:]


def weights(trainer):
    return [p.detach().clone() for p in trainer.model.parameters()]


with process_group(world, torch.device("cpu")):
    # One group of two batches: what reaches the optimizer, and how often gradients were sent.
    trainer = build()
    reductions = []
    if world.size > 1:
        def count(state, bucket):
            reductions.append(bucket.index())
            return allreduce_hook(None, bucket)

        trainer.recipe.model.register_comm_hook(None, count)
    gradients = []
    parameters = trainer.recipe.parameters
    trainer.recipe.optimizer.step = lambda: gradients.extend(p.grad.clone() for p in parameters)
    share = 8 // world.size // 2
    batches = iter(Loader(share))
    train_step(trainer.recipe, next(batches), update=False)
    train_step(trainer.recipe, next(batches))

    # A whole training with validation.
    val = [Windows(b.features, b.targets, b.mask) for b in Loader(share)]
    evaluation = Evaluation(Precision.from_name("32-true", "cpu"), lambda v: v, ("speed",), world=world)
    whole = build()
    state = whole.fit(Plan(Loader(share), val, evaluation))

    # With dropout: stopped by one process only, then resumed.
    class Stopper(Callback):
        def on_step(self, state, loss):
            if world.rank == world.size - 1 and state.batches == 3:
                broken.request_stop("test")

    broken = build(callbacks=[Stopper()], log_every=1000)  # asked at the epoch's end only
    stopped_late = broken.fit(Plan(Loader(share)))

    unbroken = build(dropout=0.5)
    unbroken.fit(Plan(Loader(share)))
    broken = build(dropout=0.5, callbacks=[Stopper()])
    stopped = broken.fit(Plan(Loader(share), folder=folder / str(world.size)))
    resumed = build(dropout=0.5)
    resumed.fit(Plan(Loader(share)), checkpoint.load(folder / str(world.size) / "last.pt"))

    torch.save(
        {
            "gradients": gradients, "reductions": len(reductions), "weights": weights(whole),
            "rows": state.history, "unbroken": weights(unbroken), "resumed": weights(resumed),
            "stopped_at": stopped.updates, "stopped_late_at": stopped_late.updates,
        },
        folder / f"result-{world.size}-{world.rank}.pt",
    )
# As the package's own __main__ does: torch may abort while Python takes its communication threads down.
os._exit(0)
'''


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict]:
    """Run the script alone and with two processes under torchrun."""
    folder = tmp_path_factory.mktemp("world")
    script = folder / "script.py"
    script.write_text(textwrap.dedent(SCRIPT))
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    for launcher in ([], torchrun):
        done = subprocess.run(
            [sys.executable, *launcher, str(script), str(folder)],
            capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip
        assert 0 == done.returncode, done.stderr[-3000:]
    return {path.stem: torch.load(path, weights_only=True) for path in folder.glob("result-*.pt")}


@pytest.mark.slow
def test_two_processes_have_the_gradient_of_the_joined_batch(results: dict[str, dict]) -> None:
    """Averaged over processes, accumulated over two batches and with uneven gaps, it is the same (O25)."""
    alone = results["result-1-0"]["gradients"]
    for rank in (0, 1):
        torch.testing.assert_close(alone, results[f"result-2-{rank}"]["gradients"], rtol=1e-5, atol=1e-7)


@pytest.mark.slow
def test_accumulating_sends_nothing(results: dict[str, dict]) -> None:
    """Of a group's two batches only the last sends its gradients: one bucket, once."""
    assert [1, 1] == [results[f"result-2-{rank}"]["reductions"] for rank in (0, 1)]


@pytest.mark.slow
def test_two_processes_train_to_the_same_weights(results: dict[str, dict]) -> None:
    """After two epochs, weights, loss and errors are those of one process."""
    alone, first, second = (results[name] for name in ("result-1-0", "result-2-0", "result-2-1"))
    torch.testing.assert_close(alone["weights"], first["weights"], rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(first["weights"], second["weights"], rtol=0, atol=0)
    for expected, actual in zip(alone["rows"], first["rows"], strict=True):
        assert pytest.approx(expected, rel=1e-4) == actual


@pytest.mark.slow
def test_two_processes_stop_together_and_resume_exactly(results: dict[str, dict]) -> None:
    """A stop asked of one process stops both at the same update; resumed, they end bit for bit the same."""
    assert 1 == len({results[f"result-2-{rank}"]["stopped_at"] for rank in (0, 1)})
    assert [5, 5] == [results[f"result-2-{rank}"]["stopped_late_at"] for rank in (0, 1)]
    for name in ("result-1-0", "result-2-0", "result-2-1"):
        assert results[name]["stopped_at"] < 10
        torch.testing.assert_close(results[name]["unbroken"], results[name]["resumed"], rtol=0, atol=0)


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, World()),
        ({"RANK": "1", "WORLD_SIZE": "4", "LOCAL_RANK": "0"}, World(1, 4, 0)),
        ({"RANK": "3", "WORLD_SIZE": "4"}, World(3, 4, 3)),
        ({"RANK": "3"}, World()),
    ],
)
def test_the_world_is_read_from_the_environment(environment: dict, expected: World) -> None:
    """What torchrun sets is used; without it there is one process."""
    assert expected == World.from_environment(environment)


@pytest.mark.parametrize("environment", [{"RANK": "x", "WORLD_SIZE": "2"}, {"RANK": "2", "WORLD_SIZE": "2"}])
def test_an_impossible_world_is_refused(environment: dict) -> None:
    """Half-set or contradicting variables end in a clear error."""
    with pytest.raises(InputError, match="torchrun"):
        World.from_environment(environment)


def test_several_devices_need_torchrun() -> None:
    """`trainer.devices: 4` in one process gives the command that was meant."""
    with pytest.raises(InputError, match="torchrun --nproc-per-node 4"):
        check_devices(4, World())
    check_devices(1, World())
    check_devices(1, World(0, 2))
    check_devices(2, World(0, 2))


def test_a_missing_gpu_is_said() -> None:
    """Asking for a GPU that is not there is not a traceback from the driver."""
    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    with pytest.raises(InputError, match="torch sees no GPU"):
        World().device("cuda")
    assert "cpu" == World().device("auto").type


def test_one_process_is_left_alone() -> None:
    """Without other processes nothing is wrapped, summed or waited for."""
    model, ones = torch.nn.Linear(1, 1), torch.ones(2)
    with process_group(World(), torch.device("cpu")) as world:
        assert model is wrap(model, world, torch.device("cpu")).call
        assert ones is world.sum(ones)
        assert ["x"] == world.gather("x")
        assert (True, False) == (world.any(True, ones.device), world.any(False, ones.device))
        world.wait()
    assert not torch.distributed.is_initialized()
