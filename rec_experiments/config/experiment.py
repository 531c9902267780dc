"""The whole experiment as one typed object: what the configuration composes, and nothing else."""

import dataclasses
from collections.abc import Iterator
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field, NonNegativeInt, PositiveInt

from rec_experiments.algo import contract
from rec_experiments.algo.advantages import Advantage, DataWeighting, Truncation, with_lengths
from rec_experiments.algo.best_of_k import MaxAtK
from rec_experiments.algo.loss import (
    Aggregation,
    Algorithm,
    Clip,
    Correction,
    Ratio,
    Regularizer,
    Weight,
)
from rec_experiments.algo.regularizers import Distillation
from rec_experiments.common.pieces import TARGET, Piece, Seed, Settings
from rec_experiments.common.problems import Dataset, MultiTurnDataset
from rec_experiments.common.protocols import Tracking
from rec_experiments.policy.models import ModelChoice
from rec_experiments.rollout.pipeline import Pipeline, Sequential
from rec_experiments.rollout.replay import ReplayBuffer
from rec_experiments.rollout.reward import RewardAdjustment
from rec_experiments.rollout.schedule import Schedule
from rec_experiments.samplers.native import Native, SamplerChoice
from rec_experiments.training.policies import Proximal, Reference, Teacher
from rec_experiments.training.updates import AdamW8bit, Optimizer, Updates

MOST_THREADS = 1024  # with a million, torch crashes
MOST_WORKERS = 1024  # processes; more than any machine has cores
LONGEST_SCHEDULE = 1_000_000  # batches; a search visits them one by one


class Preset(Settings):
    """name: the algorithm as the paper's legends write it. source: where the paper defines it."""

    name: str
    source: str


class Pieces(Settings):
    """The method, one field a config group (conf/algorithm.yaml)."""

    algo: Preset
    truncation: Truncation
    advantage: Advantage
    data_weighting: DataWeighting
    ratio: Ratio
    clip: Clip
    weight: Weight
    correction: Correction
    regularizer: Regularizer
    aggregation: Aggregation
    proximal: Proximal
    reference: Reference
    updates: Updates
    buffer: ReplayBuffer
    reward: RewardAdjustment

    def algorithm(self) -> Algorithm:
        return Algorithm(**{f.name: getattr(self, f.name) for f in dataclasses.fields(Algorithm)})

    def checked_algorithm(self) -> Algorithm:
        """The algorithm, after its pieces were tried on a made-up batch. Raises UserError for a
        piece that does not keep its protocol."""
        algorithm = self.algorithm()
        contract.check(algorithm)
        return algorithm


class Experiment(Pieces):
    """One run (conf/config.yaml, which explains each value)."""

    sync: Schedule
    model: ModelChoice
    dataset: Dataset
    sampler: SamplerChoice
    pipeline: Pipeline
    optimizer: Optimizer
    tracking: Tracking
    name: str | None
    seed: Seed
    steps: PositiveInt
    batch_size: PositiveInt
    group_size: PositiveInt
    micro_batch_size: PositiveInt | None
    micro_batch_tokens: PositiveInt | None
    shuffle: bool
    eval_every: PositiveInt
    eval_problems: PositiveInt | None
    eval_samples: PositiveInt
    checkpoint_every: PositiveInt
    async_checkpoints: bool
    kl_every: NonNegativeInt
    ranks: PositiveInt
    device: Literal["auto", "cpu", "cuda"]
    threads: Annotated[int, Field(ge=1, le=MOST_THREADS)]
    deterministic: bool
    output_dir: str
    run_dir: str | None
    resplit: bool
    remake: bool

    def __post_init__(self) -> None:
        for mistake in self._mistakes():
            raise ValueError(mistake)

    def _mistakes(self) -> Iterator[str]:
        """What does not fit together, one line each: key, value, what is allowed."""
        workers, timeout = self.dataset.verifier_workers, self.dataset.verifier_timeout
        if not 0 <= workers <= MOST_WORKERS:
            yield f"dataset.verifier_workers={workers}: must be between 0 and {MOST_WORKERS}"
        if timeout <= 0:
            yield f"dataset.verifier_timeout={timeout}: must be greater than 0"
        for name in ("interval", "offset"):
            if (value := getattr(self.sync, name) or 0) > LONGEST_SCHEDULE:
                yield f"sync.{name}={value}: must be at most {LONGEST_SCHEDULE}"
        yield from self._mistakes_of_the_method()
        if self.sync.most_versions > 1 and isinstance(self.dataset, MultiTurnDataset):
            yield (
                "sync=in_flight: needs a data set whose responses have one turn, as "
                "dataset=reduction"
            )
        if self.sync.keeps_cache and not isinstance(self.sampler, Native):
            yield (
                "sync.cache=kept: this sampler computes keys and values again when weights change; "
                "use sync.cache=recomputed or sampler=native"
            )
        fresh = self.buffer.fresh(self.batch_size)
        prompts = f"the {fresh} prompts that are drawn for a batch of batch_size={self.batch_size}"
        if self.ranks > fresh:
            yield (
                f"ranks={self.ranks}: must be at most {prompts}, so that each rank has a group to "
                "draw"
            )
        if self.updates.mini_batches > fresh:
            yield f"updates.mini_batches={self.updates.mini_batches}: must be at most {prompts}"
        if self.resplit and not self.run_dir:
            yield "resplit=true: needs run_dir, the folder of the run to continue"
        if self.ranks > 1 and self.sampler.for_all_ranks and isinstance(self.pipeline, Sequential):
            yield f"sampler=vllm_server: with ranks={self.ranks} it needs pipeline=overlap"
        if self.ranks > 1 and isinstance(self.optimizer, AdamW8bit):
            yield "optimizer=adamw_8bit: needs ranks=1; use optimizer=adamw"

    def _learns_from_groups_of_one(self) -> bool:
        """Whether a right and a wrong response to two prompts differ in their advantages."""
        import torch

        advantage = with_lengths(self.advantage, torch.ones(2, dtype=torch.long))
        rewards_B = torch.tensor([0.0, 1.0], dtype=torch.float64)
        rng = np.random.default_rng(0)
        found = self.data_weighting(advantage, rewards_B, torch.arange(2), rng)
        return bool((found.advantage_B[found.live_B] != 0).any()) and not self.buffer.redraws

    def _mistakes_of_the_method(self) -> Iterator[str]:
        """Groups that are too small, and policies that nobody reads."""
        if isinstance(self.advantage, MaxAtK) and self.advantage.k > self.group_size:
            yield f"advantage.k={self.advantage.k}: must be at most group_size={self.group_size}"
        if self.group_size == 1 and not self._learns_from_groups_of_one():
            yield (
                "group_size=1: must be at least 2, because this method compares the responses to "
                "a prompt; algo=sao and advantage=batch_mean compare those of a batch"
            )
        algorithm = self.algorithm()
        if not self.proximal.of_batch and "proximal" not in algorithm.needs.logps:
            yield (
                f"proximal={type(self.proximal).__name__}: no piece of the algorithm reads it; "
                "choose one that does, as in ratio=proximal, or leave it at batch_start"
            )
        if self.reference.swap_every and not (self.kl_every or algorithm.needs_reference):
            yield (
                f"reference.swap_every={self.reference.swap_every}: with kl_every=0 nothing reads "
                "the reference; leave it at null"
            )
        teaches = isinstance(self.reference, Teacher)
        if teaches and not algorithm.needs_reference:
            yield (
                "reference=teacher: no piece of the algorithm reads it; use algo=opd, or a "
                "penalty as regularizer=kl_unbiased"
            )
        if isinstance(self.regularizer, Distillation) and not (
            teaches or self.reference.swap_every
        ):
            yield (
                "reference=initial: the policy begins as this model and would learn nothing from "
                "it; name another with reference=teacher reference.path=RUN_OR_MODEL"
            )

    def config(self) -> dict[str, Any]:
        """The experiment as plain values, as run folders hold it. `schema.restore` reads them."""
        return plain(self)


def plain(value: Any) -> Any:
    """A tree of settings as plain values, each piece with the dotted name of its class."""
    if isinstance(value, Settings):
        cls = type(value)
        named = {TARGET: f"{cls.__module__}.{cls.__qualname__}"} if issubclass(cls, Piece) else {}
        return {**named, **{name: plain(getattr(value, name)) for name in cls.field_names()}}
    if isinstance(value, dict):
        return {key: plain(each) for key, each in value.items()}
    return [plain(each) for each in value] if isinstance(value, list) else value
