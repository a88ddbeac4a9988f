"""The loop trains by its configuration, tells what it does, and resumes bit for bit."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from social_xlstm.config import OptimizerConfig, TrainerConfig
from social_xlstm.errors import InputError
from social_xlstm.train import checkpoint
from social_xlstm.train.evaluate import Evaluation
from social_xlstm.train.hooks import Callback
from social_xlstm.train.loop import Trainer
from social_xlstm.train.plan import Plan
from social_xlstm.train.precision import Precision
from social_xlstm.train.seeds import seed_everything
from tests.model.sync_counter import HostSyncs

CONFIG = TrainerConfig(max_epochs=3, log_every_n_steps=2, device="cpu", checkpoint_every_n_steps=1)
OPTIMIZER = OptimizerConfig(lr=0.01)
EVALUATION = Evaluation(Precision.from_name("32-true", "cpu"), lambda values: values * 10, ("speed",))


@dataclass(frozen=True)
class Windows:
    features: torch.Tensor
    targets: torch.Tensor
    mask: torch.Tensor


class Loader:
    """Windows in an order shuffled by epoch, from any batch on."""

    def __init__(self, count: int = 22, batch_size: int = 4, *, seed: int = 5) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.features = torch.randn(count, 4, 3, 1, generator=generator)
        self.targets = self.features[:, :2] * 0.5 + 0.1
        self.mask = torch.rand(count, 2, 3, 1, generator=generator) < 0.8
        self.batch_size, self.epoch, self.start, self.given = batch_size, 0, 0, []

    def __len__(self) -> int:
        return len(range(0, len(self.features), self.batch_size))

    def set_epoch(self, epoch: int, start_batch: int = 0) -> None:
        self.epoch, self.start = epoch, start_batch

    def __iter__(self) -> Iterator[Windows]:
        order = torch.randperm(len(self.features), generator=torch.Generator().manual_seed(self.epoch))
        for rows in order.split(self.batch_size)[self.start :]:
            self.given.append((self.epoch, *rows.tolist()))
            yield Windows(self.features[rows], self.targets[rows], self.mask[rows])


class Tiny(nn.Module):
    """Two steps from four, with dropout so that the generator's state matters."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Dropout(0.3), nn.Linear(8, 2))

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        return self.body(features.movedim(1, -1)).movedim(-1, 1)


class Diary(Callback):
    """Write down every event."""

    def __init__(self) -> None:
        self.events: list[Any] = []
        self.losses: list[torch.Tensor] = []
        self.messages: list[str] = []
        self.logged: list[float] = []

    def on_fit_start(self, state: Any, batches_per_epoch: int, max_epochs: int) -> None:
        self.events.append(("start", batches_per_epoch, max_epochs))

    def on_step(self, state: Any, loss: torch.Tensor) -> None:
        self.events.append("step")
        self.losses.append(loss)

    def on_log(self, state: Any, loss: float) -> None:
        self.events.append("log")
        self.logged.append(loss)

    def on_epoch_end(self, state: Any, row: dict) -> None:
        self.events.append("epoch")

    def on_message(self, text: str) -> None:
        self.messages.append(text)

    def on_fit_end(self, state: Any) -> None:
        self.events.append("end")


def trainer(config: TrainerConfig = CONFIG, *callbacks: Callback, model: nn.Module | None = None) -> Trainer:
    seed_everything(3)
    return Trainer(model or Tiny(), config, OPTIMIZER, callbacks=callbacks)


def weights(made: Trainer) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in made.model.parameters()])


def test_events_come_in_order() -> None:
    """An outside tool can rely on the order of what it is told."""
    diary = Diary()
    trainer(replace(CONFIG, max_epochs=1, accumulate_grad_batches=2), diary).fit(Plan(Loader(18)))
    assert [("start", 5, 1), "step", "step", "step", "step", "log", "step", "epoch", "end"] == diary.events


def test_loss_falls_and_rows_hold_real_units() -> None:
    """Epoch by epoch the loss goes down; errors are in the units of the data."""
    loader = Loader()
    state = trainer(replace(CONFIG, max_epochs=8)).fit(Plan(loader, [next(iter(loader))], EVALUATION))
    first, last = state.history[0], state.history[-1]
    assert last["val_loss"] < 0.5 * first["val_loss"]
    assert last["train_loss"] < first["train_loss"]
    assert pytest.approx(10 * last["val_loss"] ** 0.5, rel=1e-5) == last["val_rmse_speed"]
    assert (8, 8 * 6, True) == (last["epoch"], last["step"], state.finished)


def test_an_epochs_loss_is_its_own_and_its_order_too() -> None:
    """The second epoch's loss does not remember the first, and the windows come in another order."""
    loader, diary = Loader(20), Diary()
    loader.mask[:] = True
    state = trainer(replace(CONFIG, max_epochs=2), diary).fit(Plan(loader))
    assert pytest.approx(torch.stack(diary.losses[5:]).mean().item()) == state.history[1]["train_loss"]
    orders = [[row for given in loader.given if given[0] == epoch for row in given[1:]] for epoch in (0, 1)]
    assert sorted(orders[0]) == sorted(orders[1]) == list(range(20))
    assert orders[0] != orders[1]


@pytest.mark.parametrize("n", [1, 3, 50])
def test_the_loss_is_read_once_in_n_steps(n: int) -> None:
    """Between two logs nothing is read from the device (O19)."""

    made = trainer(replace(CONFIG, log_every_n_steps=n, checkpoint_every_n_steps=None, max_epochs=2))
    with HostSyncs() as syncs:
        made.fit(Plan(Loader(24)))
    assert 12 // n == syncs.count


def test_accumulation_updates_like_the_joined_batch() -> None:
    """Groups of two batches of 4, the last group partial, end where batches of 8 end."""
    results = []
    for size, accumulate in ((8, 1), (4, 2)):
        made = trainer(replace(CONFIG, accumulate_grad_batches=accumulate))
        made.model.body[2].p = 0.0  # dropout would differ by shape
        state = made.fit(Plan(Loader(22, size)))
        results.append((weights(made), state.updates))
    torch.testing.assert_close(results[0][0], results[1][0], rtol=1e-4, atol=1e-6)
    assert (9, 9) == (results[0][1], results[1][1])


def test_limit_train_batches_ends_the_epoch_early() -> None:
    """No more than the limit is trained on, and the partial group is closed."""
    diary = Diary()
    state = trainer(
        replace(CONFIG, limit_train_batches=3, accumulate_grad_batches=2, max_epochs=2), diary
    ).fit(Plan(Loader()))
    assert (6, 4) == (diary.events.count("step"), state.updates)


def test_early_stop_waits_for_its_patience(tmp_path: Path) -> None:
    """Training ends after so many epochs without gain; the best weights are those kept as best.pt."""
    loader = Loader()
    made = Trainer(
        Tiny(), replace(CONFIG, max_epochs=50, early_stop_patience=2), OptimizerConfig("sgd", lr=30.0)
    )
    state = made.fit(Plan(loader, [next(iter(loader))], EVALUATION, folder=tmp_path))
    assert (True, 2) == (state.finished, state.epochs_without_gain)
    assert len(state.history) == state.best_epoch + 2
    best = checkpoint.load(tmp_path / "best.pt")
    assert (state.best_epoch, state.best_loss) == (best.progress["epoch"], best.progress["best_loss"])


def test_divergence_is_named_and_the_good_checkpoint_kept(tmp_path: Path) -> None:
    """A NaN loss ends the training with advice, before it overwrites what was good."""
    broken = Loader()
    made = trainer(replace(CONFIG, checkpoint_every_n_steps=None, max_epochs=1))
    made.fit(Plan(Loader(), folder=tmp_path))
    before = (tmp_path / "last.pt").read_bytes()
    broken.targets[:] = float("inf")
    broken.mask[:] = True
    with pytest.raises(InputError, match=r"diverged; lower optimizer\.lr"):
        trainer(replace(CONFIG, checkpoint_every_n_steps=None)).fit(Plan(broken, folder=tmp_path))
    assert before == (tmp_path / "last.pt").read_bytes()


@pytest.mark.parametrize(
    ("precision", "accumulate", "stop_after"),
    [
        ("32-true", 1, 1),
        ("32-true", 1, 6),
        ("32-true", 1, 7),
        ("32-true", 1, 11),
        ("32-true", 2, 3),
        ("32-true", 2, 8),
        ("16-mixed", 1, 3),
        ("16-mixed", 2, 11),
    ],
)
def test_resume_is_bit_for_bit(precision: Any, accumulate: int, stop_after: int, tmp_path: Path) -> None:
    """Stopped anywhere and resumed, weights, optimizer, losses and rows are those of an unbroken run."""
    config = replace(CONFIG, precision=precision, accumulate_grad_batches=accumulate, early_stop_patience=9)
    val = [next(iter(Loader(seed=8)))]
    whole_diary, first_diary, second_diary = Diary(), Diary(), Diary()
    whole = trainer(config, whole_diary)
    expected = whole.fit(Plan(Loader(), val, EVALUATION))

    first = trainer(config, first_diary)
    first_diary.on_step = lambda state, loss: (  # type: ignore
        first_diary.losses.append(loss),
        first.request_stop("test") if state.batches >= stop_after else None,
    )
    first.fit(Plan(Loader(), val, EVALUATION, folder=tmp_path))
    torch.rand(17)  # whatever happens in between
    second = Trainer(Tiny(), config, OPTIMIZER, callbacks=[second_diary])
    actual = second.fit(Plan(Loader(), val, EVALUATION), checkpoint.load(tmp_path / "last.pt"))

    assert torch.equal(weights(whole), weights(second))
    assert expected == actual
    losses = torch.stack(first_diary.losses + second_diary.losses)
    assert torch.equal(torch.stack(whole_diary.losses), losses)
    for left, right in zip(
        whole.recipe.optimizer.state_dict()["state"].values(),
        second.recipe.optimizer.state_dict()["state"].values(),
        strict=True,
    ):
        assert all(torch.equal(left[name], right[name]) for name in left)


def test_a_finished_training_resumes_for_more_epochs(tmp_path: Path) -> None:
    """Raising max_epochs continues where three epochs ended; nothing is repeated."""
    trainer(CONFIG).fit(Plan(Loader(), folder=tmp_path))
    longer = trainer(replace(CONFIG, max_epochs=5))
    state = longer.fit(Plan(Loader()), checkpoint.load(tmp_path / "last.pt"))
    whole = trainer(replace(CONFIG, max_epochs=5))
    assert whole.fit(Plan(Loader())) == state
    assert torch.equal(weights(whole), weights(longer))
    done = trainer(replace(CONFIG, max_epochs=3), diary := Diary())
    done.fit(Plan(Loader()), checkpoint.load(tmp_path / "last.pt"))
    assert 0 == diary.events.count("step")


def test_resume_refuses_another_effective_batch(tmp_path: Path) -> None:
    """The position is counted in updates, so the windows behind an update must be as many."""
    trainer(CONFIG).fit(Plan(Loader(), folder=tmp_path))
    saved = checkpoint.load(tmp_path / "last.pt")
    with pytest.raises(InputError, match="effective batch of 4, now it is 8"):
        trainer(CONFIG).fit(Plan(Loader(batch_size=8)), saved)
    with pytest.raises(InputError, match="made by 2 process"):
        trainer(CONFIG).fit(Plan(Loader()), replace(saved, random=saved.random * 2))


def test_the_ladder_continues_the_epoch_in_smaller_batches() -> None:
    """Out of memory in the middle, no window is lost or seen twice, and the update stays that of 8."""
    diary, small = Diary(), []

    class Greedy(Tiny):
        def forward(self, features: torch.Tensor) -> torch.Tensor:
            if len(features) > 3 and len(diary.losses) == 2:
                raise torch.OutOfMemoryError("CUDA out of memory")
            return super().forward(features)

    def rebuild(batch_size: int) -> Loader:
        small.append(Loader(32, batch_size))
        return small[-1]

    made = trainer(replace(CONFIG, max_epochs=1), diary, model=Greedy())
    state = made.fit(Plan(Loader(32, 8), rebuild=rebuild))
    assert [
        "out of memory with batch_size 8 × accumulate_grad_batches 1: "
        "chose batch_size 4 × accumulate_grad_batches 2 (effective batch still 8)",
        "out of memory with batch_size 4 × accumulate_grad_batches 2: "
        "chose batch_size 2 × accumulate_grad_batches 4 (effective batch still 8)",
    ] == diary.messages
    assert (4, 2, 4) == (state.updates, state.batch_size, state.accumulate)
    order = torch.randperm(32, generator=torch.Generator().manual_seed(0)).tolist()
    assert order[16:] == [row for given in small[-1].given for row in given[1:]]
    assert 2 + 8 == len(diary.losses), "two batches of eight, then sixteen windows in twos"


def test_half_a_group_is_forgotten_on_the_way_down() -> None:
    """Out of memory between two batches of a group, the update is still that of the group alone."""
    results, failed = [], []
    for fails in (False, True):

        class Greedy(Tiny):
            def forward(self, features: torch.Tensor) -> torch.Tensor:
                if fails and len(features) > 2 and diary.events.count("step") == 3:  # noqa: B023
                    failed.append("second batch of the second group")
                    raise torch.OutOfMemoryError("CUDA out of memory")
                return super().forward(features)

        diary = Diary()
        seed_everything(3)
        made = trainer(replace(CONFIG, max_epochs=1, accumulate_grad_batches=2), diary, model=Greedy())
        made.model.load_state_dict(trainer().model.state_dict())
        made.model.body[2].p = 0.0  # dropout would differ by shape
        state = made.fit(Plan(Loader(32, 4), rebuild=lambda size: Loader(32, size)))
        results.append((weights(made), state.history[0]["train_loss"]))
    assert 1 == len(failed)
    torch.testing.assert_close(results[0], results[1], rtol=1e-4, atol=1e-6)


def test_out_of_memory_is_raised_where_the_ladder_is_off() -> None:
    """`out_of_memory: raise` leaves the error to the user."""

    class Greedy(Tiny):
        def forward(self, features: torch.Tensor) -> torch.Tensor:
            raise torch.OutOfMemoryError("CUDA out of memory")

    made = trainer(replace(CONFIG, out_of_memory="raise"), model=Greedy())
    with pytest.raises(torch.OutOfMemoryError):
        made.fit(Plan(Loader(), rebuild=lambda size: Loader(batch_size=size)))


def test_an_outside_tool_wraps_loader_and_step() -> None:
    """A profiler sees every batch and every step without a change to the loop."""
    seen = Counter()

    class Profiler(Callback):
        def wrap_loader(self, batches: Any) -> Any:
            for item in batches:
                seen["batch"] += 1
                yield item

        def wrap_step(self, step: Any) -> Any:
            def timed(*args: Any, **kwargs: Any) -> torch.Tensor:
                seen["step"] += 1
                return step(*args, **kwargs)

            return timed

        def epoch_columns(self, state: Any) -> dict[str, float | None]:
            return {"seen": float(seen["step"])}

    state = trainer(replace(CONFIG, max_epochs=2), Profiler()).fit(Plan(Loader()))
    assert {"batch": 12, "step": 12} == dict(seen)
    assert [6.0, 12.0] == [row["seen"] for row in state.history]


def test_a_dead_loader_after_a_stop_still_leaves_a_checkpoint(tmp_path: Path) -> None:
    """Ctrl-C may kill the loader's workers first; the training still ends with its last good state."""
    made = trainer(replace(CONFIG, checkpoint_every_n_steps=None))

    class Dying(Loader):
        def __iter__(self) -> Iterator[Windows]:
            yield from list(super().__iter__())[:2]
            made.request_stop("Ctrl-C")
            raise RuntimeError("DataLoader worker (pid 1) exited unexpectedly")

    made.fit(Plan(Dying(), folder=tmp_path))
    assert 2 == checkpoint.load(tmp_path / "last.pt").progress["groups_done"]


def test_compile_falls_back_inside_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """A failed compile is told once and training goes on."""

    def fails(features: torch.Tensor) -> torch.Tensor:
        raise RuntimeError("no compiler")

    monkeypatch.setattr(torch, "compile", lambda model, mode: fails)
    plain = trainer(CONFIG)
    plain.fit(Plan(Loader()))
    compiled = trainer(replace(CONFIG, compile=True), diary := Diary())
    compiled.fit(Plan(Loader()))
    assert ["torch.compile failed, training runs without it: no compiler"] == diary.messages
    assert torch.equal(weights(plain), weights(compiled)), "the trial must leave no trace"


def test_an_empty_training_part_is_a_clear_error() -> None:
    """No batch to train on is said before anything starts."""
    with pytest.raises(InputError, match="gives no batch"):
        trainer(CONFIG).fit(Plan(Loader(0)))
