"""The training loop: epochs, groups of batches, logging, validation, early stop, checkpoints and resume."""

import dataclasses
import math
from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any

import torch
from torch import nn

from social_xlstm.config import OptimizerConfig, TrainerConfig
from social_xlstm.errors import InputError
from social_xlstm.train import checkpoint as checkpoints
from social_xlstm.train import snapshot
from social_xlstm.train.distributed import World, wrap
from social_xlstm.train.evaluate import evaluate
from social_xlstm.train.hooks import Callback
from social_xlstm.train.memory_ladder import Rung, descend
from social_xlstm.train.plan import Plan, Stretch, batches_in_epoch
from social_xlstm.train.precision import Precision, compile_or_eager, set_tf32
from social_xlstm.train.state import FitState
from social_xlstm.train.step import Recipe, Sums, build_optimizer, drop_gradients, learning_rate, train_step
from social_xlstm.train.transfer import move_to_device


class Trainer:
    """Train one model by its configuration; `fit` does the work, `request_stop` ends it early."""

    def __init__(
        self,
        model: nn.Module,
        config: TrainerConfig,
        optimizer: OptimizerConfig,
        *,
        world: World | None = None,
        callbacks: Sequence[Callback] = (),
        arrange: Callable[[Any], Any] | None = None,
    ) -> None:
        self.config, self.optimizer_config = config, optimizer
        self.world = world or World()
        self.device = self.world.device(config.device)
        self.callbacks = tuple(callbacks)
        self.model = model.to(self.device)
        self.stop_reason: str | None = None
        self._loss = torch.zeros(())
        self.state = FitState()
        set_tf32(config.tf32, self.device)
        wrapped = wrap(self.model, self.world, self.device, config)
        self.recipe = Recipe(
            model=wrapped.call,
            optimizer=build_optimizer(optimizer, self.model.parameters()),
            precision=Precision.from_name(config.precision, self.device),
            sums=Sums.zero(self.device),
            clip=config.gradient_clip_val,
            set_to_none=config.set_to_none,
            non_blocking=config.non_blocking,
            arrange=arrange,
            without_sync=wrapped.without_sync,
            sum_over_world=self.world.sum if self.world.size > 1 else None,
            world_size=self.world.size,
        )
        self._step = reduce(lambda step, callback: callback.wrap_step(step), self.callbacks, train_step)
        self._compile_pending = config.compile

    def request_stop(self, reason: str) -> None:
        """Stop after the current update; safe to call from a signal handler."""
        self.stop_reason = reason

    def fit(self, plan: Plan, resume: checkpoints.Checkpoint | None = None) -> FitState:
        """Train to the end, from the start or exactly from where a checkpoint was taken."""
        configured = Rung(plan.train.batch_size, self.config.accumulate_grad_batches)
        self.state = FitState(batch_size=configured.batch_size, accumulate=configured.accumulate)
        if resume is not None:
            self._resume(resume, configured)
        self.model.train()
        total = batches_in_epoch(plan.train, configured, configured, self.config.limit_train_batches)
        if len(set(self.world.gather(total))) > 1:
            raise InputError(
                "processes would train on different numbers of batches; set loader.drop_last true"
            )
        if total == 0:
            raise InputError(
                "the training part gives no batch; lower data.loader.batch_size or set drop_last false"
            )
        self._tell("on_fit_start", total, self.config.max_epochs)
        if self.recipe.precision.note:
            self._say(self.recipe.precision.note)
        while self._goes_on():
            if self._train_epoch(plan, configured):
                self._finish_epoch(plan)
            self._save(plan, "last.pt")
        self._tell("on_fit_end")
        return self.state

    def _goes_on(self) -> bool:
        """Return whether another epoch follows; record the end when it is reached."""
        patience, state = self.config.early_stop_patience, self.state
        out_of_patience = patience is not None and state.epochs_without_gain >= patience
        state.finished = state.epoch >= self.config.max_epochs or out_of_patience
        return not state.finished and not self._stops()

    def _stops(self) -> bool:
        """Check whether any process is to stop: a host sync with several processes, free with one."""
        stops = self.world.any(self.stop_reason is not None, self.device)
        if stops and self.stop_reason is None:
            self.stop_reason = "another process"
        return stops

    def _train_epoch(self, plan: Plan, configured: Rung) -> bool:
        """Train to the end of the epoch, down the memory ladder if need be; return whether it was reached."""
        start = Rung(self.state.batch_size, self.state.accumulate)
        # Processes that run out of memory alone would leave the others waiting for their gradients.
        if self.config.out_of_memory == "raise" or plan.rebuild is None or self.world.size > 1:
            return self._train_on(start, plan, configured)
        return descend(start, lambda rung: self._train_on(rung, plan, configured), self._say)

    def _train_on(self, rung: Rung, plan: Plan, configured: Rung) -> bool:
        """Train on the rest of the epoch in batches of this rung; return whether its end was reached."""
        state = self.state
        state.batch_size, state.accumulate = rung.batch_size, rung.accumulate
        drop_gradients(self.recipe)  # a failed attempt leaves half a group
        loader = plan.loader_for(rung, configured)
        total = batches_in_epoch(loader, rung, configured, self.config.limit_train_batches)
        done = min(state.groups_done * rung.accumulate, total)
        batches: Any = Stretch(loader, state.epoch, done, total)
        for callback in self.callbacks:
            batches = callback.wrap_loader(batches)
        try:
            for index, batch in enumerate(batches, start=done + 1):
                update = index % rung.accumulate == 0 or index == total
                if update:
                    self._set_learning_rate(updates=-(-total // rung.accumulate) * self.config.max_epochs)
                self._train_batch(batch, update)
                if update and self._after_update(plan):
                    return False  # also after the last batch: validation can wait for the resumed training
        except (RuntimeError, InputError):
            # Ctrl-C reaches the loader's workers too; one that died of it raises here, and is expected.
            if self.stop_reason is None:
                raise
            return False
        return True

    def _set_learning_rate(self, updates: int) -> None:
        for group in self.recipe.optimizer.param_groups:
            group["lr"] = learning_rate(self.optimizer_config, self.state.updates, updates)

    def _train_batch(self, batch: Any, update: bool) -> None:
        """Run the step and notify the callbacks; its loss stays on the device."""
        if self._compile_pending:
            self._compile(batch)
        self._loss = self._step(self.recipe, batch, update=update)
        self.state.batches += 1
        self._tell("on_step", self._loss)

    def _after_update(self, plan: Plan) -> bool:
        """Log and save at their intervals; return whether to stop."""
        state = self.state
        state.updates += 1
        state.groups_done += 1
        logs = state.updates % self.config.log_every_n_steps == 0
        if logs:
            self._tell(
                "on_log", self._loss.item()
            )  # host sync: the only one while training, once in n updates
        # With several processes the check is a host sync, so it is done where there is one anyway.
        stops = (logs or self.world.size == 1) and self._stops()
        every = self.config.checkpoint_every_n_steps
        if every is not None and state.updates % every == 0 and not stops:
            self._save(plan, "last.pt")
        return stops

    def _finish_epoch(self, plan: Plan) -> None:
        """Validate, write the epoch's row, keep the best weights, and move on to the next epoch."""
        state = self.state
        squared, observed = self.world.sum(self.recipe.sums.epoch).tolist()  # host sync: once per epoch
        self._tell("on_train_end")
        row: dict[str, Any] = {
            "epoch": state.epoch + 1,
            "step": state.updates,
            "train_loss": squared / observed if observed else None,
            "lr": self.recipe.optimizer.param_groups[0]["lr"],
        }
        if plan.val is not None and plan.evaluation is not None:
            row |= evaluate(self.model, plan.val, plan.evaluation).flat("val_")
        for callback in self.callbacks:
            row |= callback.epoch_columns(state)
        judged = row.get("val_loss", row["train_loss"])
        if judged is not None and not math.isfinite(judged):
            raise InputError(
                f"the loss is {judged} after epoch {row['epoch']}: training diverged; lower optimizer.lr or "
                "trainer.gradient_clip_val, or use precision 32-true (the last good checkpoint is kept)"
            )
        best = state.judge(judged, row["epoch"])
        state.history.append(row)
        state.epoch, state.groups_done = state.epoch + 1, 0
        self.recipe.sums.epoch.zero_()
        self._tell("on_epoch_end", row)
        if best:
            self._save(plan, "best.pt")

    def _resume(self, resume: checkpoints.Checkpoint, configured: Rung) -> None:
        """Restore a checkpoint's state, on the ladder's rung it was on."""
        state = snapshot.restore(resume, self.model, self.recipe, self.world, self.optimizer_config)
        if state.batch_size * state.accumulate != configured.effective:
            raise InputError(
                f"the checkpoint has an effective batch of {state.batch_size * state.accumulate}, "
                f"now it is {configured.effective}; keep batch_size and accumulate_grad_batches"
            )
        self.state = state

    def _save(self, plan: Plan, name: str) -> None:
        """Write a checkpoint in the first process; the others contribute their random state."""
        if plan.folder is None:
            return
        taken = snapshot.take(self.state, self.model, self.recipe, self.world, plan.about)
        if self.world.is_first:
            checkpoints.save(taken, plan.folder / name)
        self.world.wait()

    def _compile(self, batch: Any) -> None:
        """Compile with the first batch's shape, once, and report whether it took effect."""
        self._compile_pending = False
        moved = move_to_device(batch, self.device)
        features = (self.recipe.arrange(moved) if self.recipe.arrange else moved).features
        with self.recipe.precision.autocast():
            compiled = compile_or_eager(self.recipe.model, features)  # type: ignore[arg-type]
        self.recipe = dataclasses.replace(self.recipe, model=compiled.call)
        self._say(compiled.message)

    def _say(self, text: str) -> None:
        for callback in self.callbacks:
            callback.on_message(text)

    def _tell(self, event: str, *values: Any) -> None:
        for callback in self.callbacks:
            getattr(callback, event)(self.state, *values)
