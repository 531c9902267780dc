"""What a step of the miniature must do, what this machine can do, and where the rest goes.

Run `python tests/benchmarks/roofline.py` on one quiet core. Three limits of each stage, each
counted from a real step and divided by what was measured on this machine at the same shapes:

operations   multiplications and additions of all matrix products and attentions
bytes        that all calls of torch read and write
calls        of torch's operations, each at the price of one on a few numbers

The least is what the model's shape and the batch ask for: every token of the tree of shared
prefixes once, forward to draw it, forward and backward to train on it.
"""

import argparse
import contextlib
import dataclasses
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from hydra import compose, initialize_config_dir
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

from rec_experiments.common.batch import Rollouts
from rec_experiments.config import schema
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


class Counted(TorchDispatchMode):
    """Counts operations, bytes and calls of what runs within."""

    def __init__(self) -> None:
        super().__init__()
        self.operations = self.bytes = self.calls = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        with self:
            parts = func.decompose(*args, **kwargs)  # what is made of others under inference_mode
        if parts is not NotImplemented:
            return parts
        out = func(*args, **kwargs)
        self.calls += 1
        if func.overloadpacket in flop_registry:
            self.operations += flop_registry[func.overloadpacket](*args, **kwargs, out_val=out)
        if not func.is_view:
            leaves = tree_leaves((args, kwargs, out))
            self.bytes += sum(x.nbytes for x in leaves if isinstance(x, torch.Tensor))
        return out


@dataclasses.dataclass
class Stage:
    """seconds: of the processor. What was not counted is 0."""

    seconds: float = 0.0
    operations: int = 0
    bytes: int = 0
    calls: int = 0

    def add(self, other: "Stage", sign: int) -> None:
        for key, value in dataclasses.asdict(other).items():
            setattr(self, key, getattr(self, key) + sign * value)


class Stages:
    """Time or counts of the stages of a run; stages within another one are taken off it."""

    def __init__(self, counting: bool):
        self.counting, self.found = counting, defaultdict(Stage)
        self.open: list[str] = []

    @contextlib.contextmanager
    def stage(self, name: str) -> Iterator[None]:
        counted = Counted() if self.counting else None
        start = time.process_time()
        self.open.append(name)
        try:
            with counted or contextlib.nullcontext():
                yield
        finally:
            self.open.pop()
        mine = Stage(seconds=time.process_time() - start)
        if counted:
            mine.operations, mine.bytes, mine.calls = (
                counted.operations, counted.bytes, counted.calls,
            )  # fmt: skip
        self.found[name].add(mine, 1)
        if self.open:  # the outer one sees all of it as well
            self.found[self.open[-1]].add(mine, -1)

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


def steps_of(
    overrides: list[str], warm: int, steps: int, counting: bool
) -> tuple[Stages, Any, list[Rollouts]]:
    """The stages of some steps of a run, after others to warm up; its model and batches."""
    with initialize_config_dir(str(schema.CONF), version_base="1.3"):
        experiment = schema.build(compose("config", [*ALONE, *overrides]), Experiment)
    trainer = prepare(experiment)
    stages, batches = Stages(counting), []

    def on_row(row: dict[str, Any]) -> None:
        if row["step"] == warm:
            stages.found.clear()
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
    return stages, trainer.model, batches


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
        rows = [tuple(row[:length]) for row, length in whole]
        distinct = set(rows)
        tree = {row[:n] for row in distinct for n in range(1, len(row))}  # the last is not read
        found["responses"] += len(rows)
        found["distinct responses"] += len(distinct)
        found["tokens"] += sum(len(row) - 1 for row in rows)
        found["tokens of distinct responses"] += sum(len(row) - 1 for row in distinct)
        found["tokens of the tree of prefixes"] += len(tree)
        forward = sum(per_token(model.config, len(prefix)) for prefix in tree)
        found["operations to draw"] += forward
        found["operations to train"] += 3 * forward  # the backward pass has two products for one
    return {name: count / len(batches) for name, count in found.items()}


def fastest(call: Callable[[], Any], repeats: int = 200) -> float:
    """Processor seconds of the quickest of many calls in a row."""
    best = float("inf")
    for _ in range(7):
        start = time.process_time()
        for _ in range(repeats):
            call()
        best = min(best, (time.process_time() - start) / repeats)
    return best


def machine(model: Any, rows: int) -> dict[str, float]:
    """Peak of the model's own products on `rows` tokens, of copying, and the price of a call."""
    D, F = model.config.hidden_size, model.config.intermediate_size
    V = model.config.vocab_size
    speeds = []
    for inner, outer in ((D, D), (D, F), (F, D), (D, V)):
        x, w = torch.randn(rows, inner), torch.randn(outer, inner)
        seconds = fastest(lambda x=x, w=w: torch.nn.functional.linear(x, w))
        speeds.append(2 * rows * inner * outer / seconds)
    source = torch.randn(rows, 4 * D)
    target = torch.empty_like(source)
    copying = 2 * source.nbytes / fastest(lambda: target.copy_(source))
    one = torch.ones(4)
    return {
        "operations": max(speeds), "bytes": copying,
        "calls": 1 / fastest(lambda: torch.add(one, one, out=one), 2000),
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=20)
    options = parser.parse_args()
    schema.register()
    for title, overrides, period in (
        ("the miniature as it is", [], 20),
        ("every response different, every group live", list(WORST), 1),
    ):
        steps = max(period, options.steps // 20 * period)
        timed, model, batches = steps_of(overrides, period, max(steps, 4), counting=False)
        counted, _, _ = steps_of(overrides, period, period, counting=True)
        need = least(model, batches)
        can = machine(model, round(need["tokens of distinct responses"]) // 2)
        print(f"\n{title}, one step")
        for name, count in need.items():
            print(f"  {name:32} {count:14,.0f}")
        print(
            f"  this machine, one thread: {can['operations'] / 1e9:.0f} G operations/s, "
            f"{can['bytes'] / 1e9:.1f} GB/s, {1e6 / can['calls']:.2f} µs a call"
        )
        operations = need["operations to draw"] + need["operations to train"]
        bound = operations / can["operations"]
        total = sum(stage.seconds for stage in timed.found.values()) / len(batches)
        print(
            f"  least time by operations {1e3 * bound:.1f} ms, measured {1e3 * total:.1f} ms: "
            f"{total / bound:.1f} times\n"
        )
        print(f"  {'stage':26} {'ms':>7} {'share':>6}   made of: operations  bytes  calls, in ms")
        for name, stage in sorted(timed.found.items()):
            count, ms = counted.found[name], 1e3 * stage.seconds / len(batches)
            parts = [1e3 * getattr(count, key) / period / can[key] for key in can]
            print(
                f"  {name:26} {ms:7.1f} {ms / 1e3 / total:6.0%}   "
                + "  ".join(f"{part:9.1f}" for part in parts)
                + f"   ({count.calls / period:.0f} calls)"
            )


if __name__ == "__main__":
    main()
