"""The whole experiment as one typed object: what the configuration composes, and nothing else."""

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rec_experiments.algo.surrogate import Algorithm
from rec_experiments.sync import Schedule


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
    shaping: Any
    clip: Any
    weight: Any
    regularizer: Any
    aggregation: Any

    def algorithm(self) -> Algorithm:
        return Algorithm(
            advantage=self.advantage,
            shaping=self.shaping,
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


# Keys that say where and how a run goes or what a method is called, not what is computed.
NOT_IDENTITY = ("algo", "pipeline", "tracking", "output_dir", "run_dir")


def identity(config: dict[str, Any]) -> dict[str, Any]:
    """The part of a resolved configuration that decides what a run computes."""
    return {key: value for key, value in config.items() if key not in NOT_IDENTITY}


def run_path(config: dict[str, Any]) -> Path:
    """The run's folder: run_dir, or a name made of method, schedule, seed and identity."""
    if config["run_dir"]:
        return Path(config["run_dir"])
    digest = hashlib.sha256(json.dumps(identity(config), sort_keys=True).encode()).hexdigest()
    sync, name = config["sync"], config["algo"]["name"].lower().replace(" ", "-")
    schedule = "offline" if sync["interval"] is None else f"m{sync['interval']}-n{sync['offset']}"
    return Path(config["output_dir"]) / f"{name}_{schedule}_seed{config['seed']}_{digest[:8]}"
