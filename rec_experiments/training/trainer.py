"""The training loop."""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from transformers import PreTrainedModel

from rec_experiments.common import rng
from rec_experiments.common.batch import Rollouts, StepIndex
from rec_experiments.common.distributed import World, copied_to_host
from rec_experiments.policy.lora import trained
from rec_experiments.rollout.manager import RolloutManager
from rec_experiments.training.evaluator import Evaluator
from rec_experiments.training.gradient import GradientPass, MiniBatch
from rec_experiments.training.metrics import (
    TokenLog,
    group_metrics,
    relative_distance,
    rollout_metrics,
    throughput_metrics,
)
from rec_experiments.training.protocol import Row, RunStore
from rec_experiments.training.state import TrainingState, fitting
from rec_experiments.training.updates import Optimizer, Policies, Updates


@dataclass(kw_only=True)
class Trainer:
    """Trains `model` on one rank of `world`.

    steps, eval_every, checkpoint_every: gradient steps. kl_every: KL is measured in one of this
    many updates, 0 for never. resplit: accept a checkpoint of another number of ranks.
    """

    model: PreTrainedModel
    policies: Policies
    optimizer: Optimizer
    updates: Updates
    gradient: GradientPass
    rollouts: RolloutManager
    evaluator: Evaluator
    seed: int
    steps: int
    eval_every: int
    checkpoint_every: int
    async_checkpoints: bool
    kl_every: int
    resplit: bool
    world: World

    def __post_init__(self) -> None:
        self.torch_optimizer = self.optimizer.build(self.model)
        self.state = TrainingState(
            model=self.model,
            optimizer=self.torch_optimizer,
            policies=self.policies,
            rollouts=self.rollouts,
            world=self.world,
        )

    def train(
        self,
        store: RunStore,
        on_row: Callable[[Row], None] = lambda row: None,
        note: Callable[[str], None] = lambda line: None,
        stop: Callable[[], bool] = lambda: False,
    ) -> bool:
        """Train from the newest intact checkpoint, or from the start, to the last step.

        Every rank calls it and sees the same rows. on_row gets each row of metrics.jsonl, note a
        line for the user. Once `stop` returns True on some rank, which is checked between gradient
        steps, the state is saved and training ends early. Returns whether all steps are done.
        """

        def record(row: Row) -> None:
            store.append("metrics.jsonl", [row])
            on_row(row)

        def save() -> None:
            store.save_checkpoint(step, self.state.state(step, batch), self.async_checkpoints)

        step, batch = self.resume(store, note)  # batch: the one in use, None between two
        if step == 0:
            record({"step": 0, **self.evaluate(store, 0)})
            self.rollouts.update_weights(0, 0, self.model)
        saved = step
        with store.writing() as finish_written:
            while step < self.steps and not any(self.world.gather(stop())):
                index = self.updates.index_of(step)
                if batch is None:
                    batch = self.begin_batch(self.rollouts.get_batch(index.batch), index)
                row = self.update(batch, index)
                step += 1
                if self.updates.index_of(step).batch != index.batch:
                    batch = None
                if step % self.eval_every == 0 or step == self.steps:
                    row |= self.evaluate(store, step)
                record({"step": step, **row})
                if batch is None:
                    self.rollouts.update_weights(index.batch + 1, step, self.model)
                finish_written()
                if step % self.checkpoint_every == 0 or step == self.steps:
                    save()
                    saved = step
            if saved < step:
                save()
        return step == self.steps

    def resume(self, store: RunStore, note: Callable[[str], None]) -> tuple[int, Rollouts | None]:
        """Restore the newest intact checkpoint, and remove rows written after it. Returns the
        gradient steps taken and the batch in use; (0, None) without a checkpoint."""
        state, damaged = store.load_checkpoint(self.resplit)
        for name in damaged:
            note(f"checkpoint {name} is damaged and was skipped")
        if state is None:
            store.rewind(-1)
            return 0, None
        if state["ranks"] != self.world.size:
            note(
                f"a checkpoint of {state['ranks']} ranks is split among {self.world.size}: from "
                "here on, results are not bit-identical to those of the original number of ranks"
            )
        with fitting(store.step_folder(state["step"]), state, self.steps):
            step, batch = self.state.restore(state)
        note(f"resumed after gradient step {step}")
        store.rewind(step)
        return step, batch

    def begin_batch(self, batch: Rollouts, index: StepIndex) -> Rollouts:
        """Attach the proximal policy's log-probabilities, if a piece reads those of the policy at
        the start of the batch; seconds["proximal"] is the time this takes. Swap the reference
        policy if it is due, and reset the optimizer if the swap asks for it."""
        started = time.perf_counter()
        reference, proximal = self.policies.reference, self.policies.proximal
        if reference.resets_optimizer and reference.is_due(index.batch):
            self.torch_optimizer.state.clear()
        self.policies.begin_batch(index.batch, self.model)
        if self.updates.per_batch == 1 or proximal is None or not proximal.of_batch:
            return batch
        rows = MiniBatch.of(batch, self.gradient.algorithm, index, self.seed, self.model)
        policy_alone = replace(self.gradient, others={}, kl=False)
        logp_BT = policy_alone.score_all(self.model, rows).logp_BT.cpu().where(batch.live_BT, 0.0)
        seconds = {**batch.seconds, "proximal": time.perf_counter() - started}
        return replace(batch, logps={**batch.logps, "proximal": logp_BT}, seconds=seconds)

    def update(self, batch: Rollouts, index: StepIndex) -> Row:
        """One gradient step on one mini-batch of a batch. Returns its row of metrics.

        Raises FloatingPointError for a gradient that is not finite.
        """
        started = time.perf_counter()
        measures = measures_kl(self.kl_every, index.step)

        rows = batch.of_groups(self.updates.groups(index, batch.groups, self.seed))
        trained = self.rollouts.schedule.trained(rows, index.step)
        mini_batch = MiniBatch.of(trained, self.gradient.algorithm, index, self.seed, self.model)

        log = self.accumulate(mini_batch, measures)

        lag = self.weight_lag(batch) if measures else {}
        step = self.step(index.step, log, measures)

        return {
            **rollout_metrics(rows, index),
            **self.rollouts.schedule.metrics(trained, index.step),
            **group_metrics(rows, mini_batch.advantages),
            **log.reduce(),
            **step,
            **lag,
            **throughput_metrics(batch, rows, index, time.perf_counter() - started),
        }

    def accumulate(self, mini_batch: MiniBatch, kl: bool) -> TokenLog:
        """Compute the gradient. Returns the tokens of all ranks. kl: whether to measure it."""
        # Seeded by run and step, so that dropout is the same after a resume.
        seeds = rng.generator(self.seed, rng.MODEL, mini_batch.index.step)
        torch.manual_seed(int(seeds.integers(1 << 62)))
        gradient = self.gradient if kl else self.gradient.without_kl()
        log = gradient.accumulate(self.model, mini_batch)
        return TokenLog.joined(self.world.gather(log.cpu()))

    def step(self, step: int, log: TokenLog, measures_distance: bool) -> Row:
        """Change the weights of the policy and of the policies that follow it."""
        before = copied_to_host(trained(self.model)) if measures_distance else None
        norm = float(self.optimizer.step(self.torch_optimizer, self.model, step))
        if not math.isfinite(norm):  # then neither are the weights
            hint = "; the log-ratios are finite, so a piece of the loss may be at fault"
            raise FloatingPointError(f"norm of the gradient: {norm}{hint if log.is_finite else ''}")
        row = {"train/grad_norm": norm, "train/learning_rate": self.optimizer.rate(step)}
        if before is not None:
            row["train/weight_step"] = relative_distance(self.model, before, self.world)
        self.policies.after_update(self.model)
        return row

    def weight_lag(self, batch: Rollouts) -> Row:
        """Distance from the weights that drew the batch, relative to their norm. Empty if several
        versions drew it, or if their weights are no longer kept, as under an offset."""
        behavior = self.rollouts.behavior
        if behavior is None or bool((batch.version_BX != behavior.version).any()):
            return {}
        return {"train/weight_lag": relative_distance(self.model, behavior.weights, self.world)}

    def evaluate(self, store: RunStore, step: int) -> Row:
        """Evaluate the weights after `step` gradient steps, and record some responses."""
        answers = self.evaluator.answer(self.model, step)
        store.append("samples.jsonl", self.evaluator.examples(answers, step))
        return self.evaluator.metrics(answers)


def measures_kl(every: int, update: int) -> bool:
    """Whether KL is measured in this update: in one of each `every` consecutive updates.

    Which one is random, but the same for all runs. With a fixed one, an interval of 20 and
    `every` 5 would always show the same four of the twenty possible lags.
    """
    if not every:
        return False
    block, place = divmod(update, every)
    return place == int(rng.generator(0, rng.MEASURE, block).integers(every))
