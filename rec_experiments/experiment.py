"""The whole experiment as one typed object: what the configuration composes, and nothing else."""

import dataclasses
from dataclasses import dataclass
from enum import Enum
from typing import Any

from rec_experiments.algo.surrogate import Algorithm
from rec_experiments.rollout.schedule import Schedule


@dataclass(kw_only=True, slots=True)
class Preset:
    """name: the algorithm as the paper's legends write it. source: where the paper defines it."""

    name: str
    source: str


@dataclass(kw_only=True, slots=True)
class Pieces:
    """The algorithm, one field a config group (conf/algorithm.yaml)."""

    algo: Preset
    advantage: Any
    data_weighting: Any
    clip: Any
    weight: Any
    regularizer: Any
    aggregation: Any

    def algorithm(self) -> Algorithm:
        return Algorithm(
            advantage=self.advantage,
            data_weighting=self.data_weighting,
            clip=self.clip,
            weight=self.weight,
            regularizer=self.regularizer,
            aggregation=self.aggregation,
        )


@dataclass(kw_only=True, slots=True)
class Experiment(Pieces):
    """One run (conf/config.yaml, which explains each value)."""

    sync: Schedule
    model: Any
    dataset: Any
    sampler: Any
    pipeline: Any
    optimizer: Any
    tracking: Any
    seed: int
    steps: int
    batch_size: int
    group_size: int
    micro_batch_size: int | None
    micro_batch_tokens: int | None
    shuffle: bool
    eval_every: int
    eval_problems: int | None
    eval_samples: int
    checkpoint_every: int
    kl_every: int
    ranks: int
    mismatch_cap: float | None
    device: str
    threads: int
    output_dir: str
    run_dir: str | None
    remake: bool

    def __post_init__(self) -> None:
        for name, least in {
            "seed": 0, "steps": 1, "batch_size": 1, "group_size": 1, "micro_batch_size": 1,
            "micro_batch_tokens": 1, "eval_every": 1, "eval_problems": 1, "eval_samples": 1,
            "checkpoint_every": 1, "kl_every": 0, "ranks": 1, "threads": 1,
        }.items():  # fmt: skip
            value = getattr(self, name)
            if value is not None and value < least:
                raise ValueError(f"{name}={value}: must be at least {least}")
        if self.mismatch_cap is not None and not self.mismatch_cap >= 1:
            raise ValueError(
                f"mismatch_cap={self.mismatch_cap}: must be at least 1, or null for no correction"
            )
        if self.group_size == 1:
            raise ValueError(
                "group_size=1: the baseline is the mean reward of a group, so it needs at least 2"
            )
        if self.ranks > self.batch_size:
            raise ValueError(
                f"ranks={self.ranks}: must be at most batch_size={self.batch_size}, so that each "
                "has a group to draw"
            )
        if self.device not in ("auto", "cpu", "cuda"):
            raise ValueError(f"device={self.device}: must be auto, cpu or cuda")

    def config(self) -> dict[str, Any]:
        """The experiment as plain values, as run folders hold it. `schema.restore` reads them."""
        return plain(self)


def plain(value: Any) -> Any:
    """A tree of dataclasses as dicts, an enumeration as its name."""
    if dataclasses.is_dataclass(value):
        return {f.name: plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, dict):
        return {key: plain(each) for key, each in value.items()}
    if isinstance(value, list):
        return [plain(each) for each in value]
    return value.name if isinstance(value, Enum) else value
