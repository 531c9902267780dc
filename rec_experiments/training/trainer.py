"""The training loop."""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from transformers import PreTrainedModel

from rec_experiments import rng
from rec_experiments.config.experiment import Experiment
from rec_experiments.distributed import ALONE, World
from rec_experiments.policy.batching import Limits
from rec_experiments.policy.chat import ChatTemplate
from rec_experiments.policy.logprobs import ForwardPass
from rec_experiments.policy.models import Pretrained
from rec_experiments.rollout.manager import RolloutManager
from rec_experiments.rollout.worker import RolloutRequest, RolloutWorker, Snapshot
from rec_experiments.runs.checkpoints import State
from rec_experiments.runs.run_folder import RunFolder
from rec_experiments.training.gradient import GradientPass, MiniBatch
from rec_experiments.training.metrics import (
    TokenLog,
    group_metrics,
    response_metrics,
    rollout_metrics,
)
from rec_experiments.training.movement import copied, relative_distance
from rec_experiments.training.policies import Policies
from rec_experiments.training.state import Trained, fitting
from rec_experiments.types import Problem, Rollouts, SampleKey, StepIndex

SAMPLES_SHOWN = 4  # responses written to samples.jsonl at each evaluation

Row = dict[str, Any]


@dataclass(kw_only=True)
class TrainingContext:
    """What a rank works with, loaded and checked before anything is written."""

    model: PreTrainedModel
    policies: Policies  # those beside the model
    chat: ChatTemplate
    worker: RolloutWorker  # close it when the run is over
    train_problems: list[Problem]
    eval_problems: list[Problem]
    world: World = ALONE


def train(
    experiment: Experiment,
    context: TrainingContext,
    folder: RunFolder,
    on_row: Callable[[Row], None] = lambda row: None,
    note: Callable[[str], None] = lambda line: None,
    stop: Callable[[], bool] = lambda: False,
) -> bool:
    """Run the experiment to its end, from the folder's newest whole checkpoint if it has one.

    Every rank runs it, each on its part of the work, and all see the same rows.
    on_row sees each row of metrics.jsonl as it is written; note gets a line for people. `stop` is
    asked between gradient steps; once it says so, the state is saved and the run ends early.
    Returns whether all steps are done.
    """
    model, course = context.model, experiment.updates.course()
    optimizer = experiment.optimizer.build(model)
    feed = make_manager(experiment, context)
    trained = Trained(
        model=model,
        optimizer=optimizer,
        policies=context.policies,
        course=course,
        feed=feed,
        world=context.world,
    )
    step, batch = 0, None  # gradient steps taken, and what the next one trains on

    def split_anew(parts: list[State]) -> State:
        note(
            f"a state of {len(parts)} ranks is split among {context.world.size}: from here on the "
            "run is not bit for bit what it would have been"
        )
        return trained.resplit(parts)

    state, damaged = folder.load_checkpoint(split_anew if experiment.resplit else None)
    for name in damaged:
        note(f"checkpoint {name} is damaged and was passed over")
    resumed = state is not None
    if state is not None:
        with fitting(folder.step_folder(state.get("step", 0)), state, experiment.steps):
            step, batch = trained.restore(state)
        note(f"resumed after gradient step {step}")
        del state
    folder.rewind(step if resumed else -1)

    def record(row: Row) -> None:
        folder.append("metrics.jsonl", [row])
        on_row(row)

    def save() -> None:
        folder.save_checkpoint(step, trained.state(step, batch), experiment.async_checkpoints)

    if not resumed:
        record({"step": 0, **evaluate(experiment, context, folder, 0)})
        feed.reach(0, 0, model)
    saved = step
    with folder.writing() as settle:
        while step < experiment.steps and not any(context.world.gather(stop())):
            index = course.index_of(step)
            if batch is None:
                batch = begin_batch(experiment, context, optimizer, feed.take(index.batch), index)
            moved = course.before(index, model)
            lag = weight_lag(experiment, context, feed.behavior, batch, index)
            row = update(experiment, context, optimizer, batch, index) | lag | moved
            course.after(index, row)
            step += 1
            if course.index_of(step).batch != index.batch:
                batch = None
            if step % experiment.eval_every == 0 or step == experiment.steps:
                row |= evaluate(experiment, context, folder, step)
            record({"step": step, **row})
            if batch is None:
                feed.reach(index.batch + 1, step, model)
            settle()
            if step % experiment.checkpoint_every == 0 or step == experiment.steps:
                save()
                saved = step
        if saved < step:
            save()
    return step == experiment.steps


def make_manager(experiment: Experiment, context: TrainingContext) -> RolloutManager:
    return RolloutManager(
        worker=context.worker,
        schedule=experiment.sync,
        buffer=experiment.buffer,
        problems=context.train_problems,
        seed=experiment.seed,
        batches=experiment.updates.batches(experiment.steps),
        bundle=experiment.sampler.bundle(context.model, draw_tokens(experiment)),
        batch_size=experiment.batch_size,
        group_size=experiment.group_size,
        temperature=experiment.sampler.temperature,
        shuffle=experiment.shuffle,
        world=context.world,
    )


def draw_tokens(experiment: Experiment) -> int:
    """The most tokens that a draw can have, prompts included."""
    responses = experiment.buffer.fresh(experiment.batch_size) * experiment.group_size
    task = experiment.dataset
    return responses * (task.max_prompt_tokens + task.max_response_tokens)


def begin_batch(
    experiment: Experiment,
    context: TrainingContext,
    optimizer: torch.optim.Optimizer,
    batch: Rollouts,
    index: StepIndex,
) -> Rollouts:
    """The batch with what the policy before its first update says of it, where that is needed.

    A stage that ends forgets the optimizer's state, where the reference asks for it.
    seconds["proximal"] is what it took.
    """
    started, model = time.perf_counter(), context.model
    if experiment.reference.resets_optimizer and experiment.reference.is_due(index.batch):
        optimizer.state.clear()
    context.policies.begin_batch(index, model)
    gradient = gradient_pass(experiment, context, index)
    if experiment.updates.per_batch == 1 or not (gradient.proximal and gradient.proximal.of_batch):
        return batch
    whole = MiniBatch.of(batch, gradient.algorithm, index, experiment.seed, model)
    logp = replace(gradient, others={}, kl=False).score_all(model, whole).logp_BT.tolist()
    rows = zip(logp, batch.responses, strict=True)
    proximal = [of_row[: len(response.tokens)] for of_row, response in rows]
    seconds = {**batch.seconds, "proximal": time.perf_counter() - started}
    return replace(batch, logps={**batch.logps, "proximal": proximal}, seconds=seconds)


def gradient_pass(
    experiment: Experiment, context: TrainingContext, index: StepIndex
) -> GradientPass:
    """How the gradient of this update is computed."""
    algorithm, policies = experiment.algorithm(), context.policies
    others, kl = dict(policies.models), measures_kl(experiment.kl_every, index.step)
    if not kl and not algorithm.needs_reference:
        others.pop("reference", None)
    return GradientPass(
        algorithm=algorithm,
        forward=forward_pass(experiment, context.chat),
        limits=pass_limits(experiment),
        others=others,
        proximal=policies.proximal,
        kl=kl,
        world=context.world,
    )


def forward_pass(experiment: Experiment, chat: ChatTemplate) -> ForwardPass:
    """How the experiment computes log-probabilities."""
    return ForwardPass(
        pad_id=chat.pad_id,
        temperature=experiment.sampler.temperature,
        compute_dtype=getattr(torch, experiment.model.compute_dtype),
        **layout(experiment),
    )


def pass_limits(experiment: Experiment) -> Limits:
    """Of one forward pass."""
    return Limits(
        sequences=experiment.micro_batch_size,
        tokens=experiment.micro_batch_tokens,
        **layout(experiment),
    )


def layout(experiment: Experiment) -> dict[str, bool]:
    """How sequences stand in the rows of a pass, as `Limits` names it."""
    if not isinstance(experiment.model, Pretrained):
        return {}
    return {"packed": experiment.model.packed, "shared": experiment.model.shared_prompts}


def measures_kl(every: int, update: int) -> bool:
    """Whether KL is measured in this update: in one of each `every`.

    Which one is drawn by lot, the same for all runs. At a fixed distance, an interval of 20 with
    `every` 5 would show four of its twenty stalenesses, always the same.
    """
    if not every:
        return False
    block, place = divmod(update, every)
    return place == int(rng.generator(0, rng.MEASURE, block).integers(every))


def weight_lag(
    experiment: Experiment,
    context: TrainingContext,
    behavior: Snapshot | None,
    batch: Rollouts,
    index: StepIndex,
) -> Row:
    """How far the weights are from those that drew the batch, as a share of their norm.

    Only in the updates that measure KL, and only where one version drew the whole batch and its
    weights are still held: under an offset they are gone.
    """
    if not measures_kl(experiment.kl_every, index.step):
        return {}
    if behavior is None or set(batch.versions) != {behavior.version}:
        return {}
    return {"train/weight_lag": relative_distance(context.model, behavior.weights, context.world)}


def update(
    experiment: Experiment,
    context: TrainingContext,
    optimizer: torch.optim.Optimizer,
    batch: Rollouts,
    index: StepIndex,
) -> Row:
    """One gradient step on one mini-batch of a batch. Returns its row of metrics."""
    started = time.perf_counter()
    # Named by seed and step, so that any module with dropout is the same after a resume.
    named = rng.generator(experiment.seed, rng.MODEL, index.step)
    torch.manual_seed(int(named.integers(1 << 62)))
    groups = experiment.updates.groups(index, batch.groups[-1] + 1, experiment.seed)
    rollouts = batch.of_groups(groups)
    gradient = gradient_pass(experiment, context, index)
    mini_batch = MiniBatch.of(rollouts, gradient.algorithm, index, experiment.seed, context.model)
    forward = gradient.forward
    with context.policies.at_hand(gradient.others, context.world.device, forward.compute_dtype):
        log = gradient.accumulate(context.model, mini_batch)
    log = TokenLog.joined(context.world.gather(log.cpu()))
    row = {
        **rollout_metrics(rollouts, index),
        **group_metrics(rollouts, mini_batch.advantages),
        **log.reduce(),
    }
    before = copied(context.model) if gradient.kl else None
    norm = float(experiment.optimizer.step(optimizer, context.model, index.step))
    if not math.isfinite(norm):  # and no more are the weights
        why = ", of finite log-ratios, so perhaps a piece of the loss" if log.is_finite else ""
        raise FloatingPointError(f"norm of the gradient: {norm}{why}")
    row["train/grad_norm"] = norm
    if before is not None:
        row["train/weight_step"] = relative_distance(context.model, before, context.world)
    row["train/learning_rate"] = experiment.optimizer.rate(index.step)
    context.policies.after_update(context.model)
    seconds = {"train": time.perf_counter() - started}
    tokens = sum(response.length for response in rollouts.responses)
    speeds = {"tokens/response": tokens, "tokens/train_per_second": tokens / seconds["train"]}
    if index.epoch == index.mini_batch == 0:  # the batch has come with this update
        seconds = {**batch.seconds, **seconds}
        row["train/redrawn_groups"] = batch.redrawn
        speeds["tokens/rollout_per_second"] = batch.drawn / seconds["rollout"]
    return {**row, **speeds, **{f"time/{name}": value for name, value in seconds.items()}}


def evaluate(experiment: Experiment, context: TrainingContext, folder: RunFolder, step: int) -> Row:
    """Score the weights after `step` gradient steps on the held-out problems."""
    answered = answer(experiment, context, step)
    shown = list(zip(answered.groups, answered.responses, answered.results, strict=True))
    folder.append(
        "samples.jsonl",
        [
            {
                "step": step,
                "prompt": context.eval_problems[group].messages[-1]["content"],
                "response": context.chat.transcript(response),
                "answer": context.eval_problems[group].answer,
                "reward": result.reward,
            }
            for group, response, result in shown[:SAMPLES_SHOWN]
        ],
    )
    return {
        **response_metrics("eval", answered.responses, answered.results),
        "time/eval": sum(answered.seconds.values()),
    }


def answer(experiment: Experiment, context: TrainingContext, step: int) -> Rollouts:
    """What the model answers to the held-out problems after `step` gradient steps, judged."""
    keys = [
        [
            SampleKey(experiment.seed, rng.EVAL, step, group, k)
            for k in range(experiment.eval_samples)
        ]
        for group in range(len(context.eval_problems))
    ]
    mine = context.world.share(len(context.eval_problems))
    share = context.worker.answer(
        Snapshot.of(context.model, step),
        RolloutRequest(
            context.eval_problems[mine], keys[mine], experiment.sampler.eval_temperature
        ),
    )
    return Rollouts.joined(context.world.gather(share), step)
