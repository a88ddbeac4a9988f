"""Two processes with the real loader and model train as one does, also with compressed gradients."""

import os
import subprocess
import sys

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from social_xlstm import config_file
from social_xlstm.data.loader import EpochOrder
from social_xlstm.errors import InputError

SCRIPT = '''
import os
import sys
from pathlib import Path

import torch

from social_xlstm import config_file
from social_xlstm.data.synthetic import SyntheticOptions, generate
from social_xlstm.train.assemble import assemble
from social_xlstm.train.distributed import World, process_group
from social_xlstm.train.evaluate import evaluate
from social_xlstm.train.loop import Trainer

CONFIG = """
data: {loader: {num_workers: 0}, split: {train: 0.7, val: 0.06, test: 0.2}}
model: {xlstm: {embedding_dim: 8, num_blocks: 2, slstm_at: [1], num_heads: 2, dropout: 0.0}}
trainer: {max_epochs: 2, limit_train_batches: 6, device: cpu}
optimizer: {name: sgd, lr: 0.05}
"""  # not Adam: it divides by the gradient's own size, and blows rounding up where that is nearly 0

torch.set_num_threads(1)
folder, world = Path(sys.argv[1]), World.from_environment()
traffic = generate(SyntheticOptions(detectors=4, steps=300, missing_share=0.1))


def trained(*changes):
    size = f"data.loader.batch_size={8 // world.size}"
    assembly = assemble(config_file.parse(CONFIG, (size, *changes)), world, traffic)
    trainer = Trainer(assembly.model, assembly.config.trainer, assembly.config.optimizer, world=world)
    start = [p.detach().clone() for p in assembly.model.parameters()]
    trainer.fit(assembly.plan())
    val = evaluate(trainer.model, assembly.evaluation_loader("val"), assembly.evaluation)
    observed = int(assembly.prepared.val.gather(range(len(assembly.prepared.val))).mask.sum())
    return {
        "start": start,
        "weights": [p.detach().clone() for p in assembly.model.parameters()],
        "observed": val.features[0].together.observed,
        "should_observe": observed,
        "loss": val.loss,
    }


with process_group(world, torch.device("cpu")):
    found = {
        "plain": trained(),
        "accumulated": trained("trainer.accumulate_grad_batches=2"),
        "bf16": trained("trainer.gradient_compression=bf16"),
        "bf16 accumulated": trained("trainer.gradient_compression=bf16", "trainer.accumulate_grad_batches=2"),
        "small buckets": trained("trainer.ddp_bucket_mb=1"),
    }
    torch.save(found, folder / f"found-{world.size}-{world.rank}.pt")
os._exit(0)
'''


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict]:
    """Train alone and with two processes on the same joined batches."""
    folder = tmp_path_factory.mktemp("ranks")
    (folder / "script.py").write_text(SCRIPT)
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    for launcher in ([], torchrun):
        done = subprocess.run(
            [sys.executable, *launcher, str(folder / "script.py"), str(folder)],
            capture_output=True, text=True, timeout=100, check=False,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )  # fmt: skip
        assert 0 == done.returncode, done.stderr[-3000:]
    return {path.stem: torch.load(path, weights_only=True) for path in folder.glob("found-*.pt")}


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["plain", "accumulated", "small buckets"])
def test_two_processes_train_as_one(kind: str, found: dict[str, dict]) -> None:
    """With the real loader and model, weights and errors are those of one process on the joined batch."""
    alone, first, second = (found[name][kind] for name in ("found-1-0", "found-2-0", "found-2-1"))
    assert not torch.equal(alone["start"][0], alone["weights"][0])
    torch.testing.assert_close(alone["weights"], first["weights"], rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(first["weights"], second["weights"], rtol=0, atol=0)
    assert pytest.approx(alone["loss"], rel=1e-3) == first["loss"]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["bf16", "bf16 accumulated"])
def test_compressed_gradients_differ_by_rounding_only(kind: str, found: dict[str, dict]) -> None:
    """Sent in bfloat16, gradients move the weights as before to within its eight bits; ranks stay equal."""
    plain = found["found-2-0"]["accumulated" if "accumulated" in kind else "plain"]
    first, second = (found[name][kind] for name in ("found-2-0", "found-2-1"))
    torch.testing.assert_close(first["weights"], second["weights"], rtol=0, atol=0)
    moved = torch.cat([(a - b).flatten() for a, b in zip(plain["weights"], plain["start"], strict=True)])
    apart = torch.cat([(a - b).flatten() for a, b in zip(first["weights"], plain["weights"], strict=True)])
    assert 0 < apart.norm() < 0.01 * moved.norm()


@pytest.mark.slow
def test_an_evaluation_counts_every_target_once(found: dict[str, dict]) -> None:
    """However windows fall on processes, as many targets are measured as are observed."""
    for result in found.values():
        assert result["plain"]["should_observe"] == result["plain"]["observed"]


@settings(max_examples=150, deadline=None)
@given(
    st.integers(1, 200), st.integers(1, 12), st.integers(1, 6), st.integers(0, 5), st.booleans(), st.data()
)
def test_a_resumed_epoch_is_shared_without_overlap_or_loss(
    windows: int, batch_size: int, ranks: int, epoch: int, drop_last: bool, data: st.DataObject
) -> None:
    """What was seen before a stop and what comes after it are, over all processes, every window once."""
    try:
        orders = [EpochOrder(windows, batch_size, True, 1, drop_last, r, ranks) for r in range(ranks)]
    except InputError:
        return
    stop = data.draw(st.integers(0, len(orders[0])))
    before = [batch for order in orders for batch in list(order.batches(epoch))[:stop]]
    after = [list(order.batches(epoch, stop)) for order in orders]
    assert {len(orders[0]) - stop} == {len(own) for own in after}
    seen = np.concatenate([*before, *(batch for own in after for batch in own)]).tolist()
    assert len(seen) == len(set(seen))
    left_out = windows % (batch_size * ranks) if drop_last else 0
    assert windows - left_out == len(seen)


@settings(max_examples=150, deadline=None)
@given(st.integers(1, 60), st.integers(1, 12), st.integers(1, 8))
def test_an_evaluation_gives_every_window_to_one_process(windows: int, batch_size: int, ranks: int) -> None:
    """Also where windows are fewer than processes: some then have none."""
    orders = [EpochOrder(windows, batch_size, False, 0, False, r, ranks, even=False) for r in range(ranks)]
    batches = [list(order.batches(0)) for order in orders]
    assert [len(order) for order in orders] == [len(own) for own in batches]
    assert all(1 <= len(batch) <= batch_size for own in batches for batch in own)
    assert list(range(windows)) == sorted(int(i) for own in batches for batch in own for i in batch)


def test_float16_gradients_need_a_scaled_loss() -> None:
    """Small gradients vanish in float16; it is refused before training, with what to take instead."""
    with pytest.raises(InputError, match="take bf16"):
        config_file.parse("trainer: {gradient_compression: fp16}", ())
    scaled = config_file.parse("trainer: {gradient_compression: fp16, precision: 16-mixed}", ())
    assert "fp16" == scaled.trainer.gradient_compression
