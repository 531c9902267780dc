"""Where a step of the miniature spends its time, and how far that is from the least it could be.

Run `python tests/benchmarks/roofline.py` on one quiet core. The least is what the model's shape and
the batch ask for, at the speed of this machine's products of the same shapes: every token of the
tree of shared prefixes once, forward to draw it, forward and backward to train on it.
"""

import argparse
import contextlib
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from hydra import compose, initialize_config_dir

from rec_experiments.common.batch import Rollouts
from rec_experiments.config import plugins, schema
from rec_experiments.config.experiment import Experiment
from rec_experiments.rollout.worker import LocalWorker
from rec_experiments.runs.prepare import prepare
from rec_experiments.runs.run_folder import RunFolder
from rec_experiments.training.gradient import GradientPass

ALONE = (
    "kl_every=0", "eval_every=1000000", "checkpoint_every=1000000", "eval_problems=1",
    "steps=100000",
)  # fmt: skip
WORST = (
    "batch_size=32", "sync=on_policy", "dataset.max_response_tokens=24",
    "model.warm_start.steps=0", "algo=asymre",
)  # fmt: skip
# asymre's advantages are never 0, so every group is live whatever the rewards.


class Stages:
    """Processor seconds of each stage of a run, without those of the stages within it."""

    def __init__(self):
        self.seconds: Counter[str] = Counter()
        self.open: list[str] = []

    @contextlib.contextmanager
    def stage(self, name: str) -> Iterator[None]:
        start = time.process_time()
        self.open.append(name)
        try:
            yield
        finally:
            self.open.pop()
        spent = time.process_time() - start
        self.seconds[name] += spent
        if self.open:
            self.seconds[self.open[-1]] -= spent

    def around(self, patched: contextlib.ExitStack, owner: Any, attribute: str, name: str) -> None:
        """Calls of this function are a stage, until `patched` is closed."""
        function: Callable = getattr(owner, attribute)

        def call(*args: Any, **kwargs: Any) -> Any:
            with self.stage(name):
                return function(*args, **kwargs)

        setattr(owner, attribute, call)
        patched.callback(setattr, owner, attribute, function)


class Enough(Exception):
    """All steps that were wanted are made."""


def steps_of(overrides: tuple[str, ...], warm: int, steps: int) -> tuple[Counter, Any, list]:
    """Seconds by stage of some steps of a run, after others to warm up; its model and batches."""
    with initialize_config_dir(str(plugins.CONF), version_base="1.3"):
        experiment = schema.build(compose("config", [*ALONE, *overrides]), Experiment)
    trainer = prepare(experiment)
    stages, batches = Stages(), []

    def on_row(row: dict[str, Any]) -> None:
        if row["step"] == warm:
            stages.seconds.clear()
            batches.clear()
        if row["step"] == warm + steps:
            raise Enough

    with contextlib.ExitStack() as patched:
        for owner, attribute, name in (
            (trainer.rollouts.worker.sampler, "sample", "drawing: decoding"),
            (LocalWorker, "draw", "drawing: text, rewards"),
            (GradientPass, "_score", "training: forward"),
            (torch.Tensor, "backward", "training: backward"),
            (GradientPass, "accumulate", "training: loss, log"),
            (type(experiment.optimizer), "step", "training: optimizer"),
            (trainer, "update", "training: metrics, rest"),
        ):
            stages.around(patched, owner, attribute, name)
        update = trainer.update

        def update_of(batch: Rollouts, index: Any):
            batches.append(batch)
            return update(batch, index)

        trainer.update = update_of
        folder = RunFolder(Path(patched.enter_context(tempfile.TemporaryDirectory())))
        folder.start({}, {})
        with contextlib.suppress(Enough):
            trainer.train(folder, on_row)
    return stages.seconds, trainer.model, batches


def per_token(config: Any, attended: int) -> int:
    """Operations of one token's forward pass that attends to so many: 2 for each weight of a
    matrix, and 4 a channel, layer and position for scores and mixing."""
    D, F, V = config.hidden_size, config.intermediate_size, config.vocab_size
    layer = 2 * (4 * D * D + 3 * D * F) + 4 * D * attended
    return config.num_hidden_layers * layer + 2 * D * V


def least(model: Any, batches: list[Rollouts]) -> dict[str, float]:
    """Operations that a step's batch asks for, mean over batches, and what they are counted of."""
    found: Counter[str] = Counter()
    for batch in batches:
        lengths_B = batch.prompt_length_B + batch.length_B
        whole = zip(batch.sequences.whole_BL.tolist(), lengths_B.tolist(), strict=True)
        distinct = {tuple(row[:length]) for row, length in whole}
        tree = {row[:n] for row in distinct for n in range(1, len(row))}  # the last is not read
        found["distinct responses"] += len(distinct)
        found["tokens of distinct responses"] += sum(len(row) - 1 for row in distinct)
        found["tokens of the tree of prefixes"] += len(tree)
        forward = sum(per_token(model.config, len(prefix)) for prefix in tree)
        found["operations"] += 4 * forward  # drawn once; the backward pass is two more products
    return {name: count / len(batches) for name, count in found.items()}


def speed(model: Any, rows: int) -> float:
    """Operations per second of the fastest of the model's own products on `rows` tokens."""
    D, F, V = (getattr(model.config, f"{n}_size") for n in ("hidden", "intermediate", "vocab"))
    found = []
    for inner, outer in ((D, D), (D, F), (F, D), (D, V)):
        x, w = torch.randn(rows, inner), torch.randn(outer, inner)
        for _ in range(7):
            start = time.process_time()
            for _ in range(200):
                torch.nn.functional.linear(x, w)
            found.append(200 * 2 * rows * inner * outer / (time.process_time() - start))
    return max(found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=20)
    options = parser.parse_args()
    for title, overrides, period in (
        ("the miniature as it is", (), 20),
        ("every response different, every group live", WORST, 1),
    ):
        steps = max(period, options.steps // 20 * period, 4)
        seconds, model, batches = steps_of(overrides, period, steps)
        need = least(model, batches)
        bound = need["operations"] / speed(model, round(need["tokens of distinct responses"]) // 2)
        total = sum(seconds.values()) / len(batches)
        print(f"\n{title}, one step")
        for name, count in need.items():
            print(f"  {name:32} {count:14,.0f}")
        print(
            f"  least time by operations {1e3 * bound:.1f} ms, measured {1e3 * total:.1f} ms: "
            f"{total / bound:.1f} times"
        )
        for name, spent in sorted(seconds.items()):
            share = spent / len(batches) / total
            print(f"  {name:26} {1e3 * spent / len(batches):7.1f} ms {share:6.0%}")


if __name__ == "__main__":
    main()
