"""Shared: one-thread torch, a cache of warm starts for the session, small experiments and runs.

What needs transformers is imported where it is used: most tests of algorithms do without.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, NamedTuple
from unittest import mock

import pytest
import shapes
import torch
from hypothesis import HealthCheck, settings
from omegaconf import DictConfig
from ranks import ranks  # noqa: F401 (a fixture for all)

from rec_experiments.algo.loss import Algorithm
from rec_experiments.cli.main import main
from rec_experiments.common import files
from rec_experiments.common.batch import Responses, Rollouts, Sequences, StepIndex
from rec_experiments.common.determinism import CUBLAS, FLASH_ATTENTION, secure
from rec_experiments.common.distributed import ALONE, World
from rec_experiments.config import schema
from rec_experiments.config.composition import composing
from rec_experiments.config.experiment import Experiment
from rec_experiments.runs.run_folder import RunFolder

if TYPE_CHECKING:
    from rec_experiments.training.metrics import TokenLog

# A loaded machine fails no property, and every run of the tests tries the same examples.
settings.register_profile(
    "patient", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("patient")

# An experiment of seconds: the same code path as a real one, at a rate that shows in a few steps.
SMALL = (
    "dataset=arithmetic",
    "optimizer.learning_rate=5.0e-4",
    "steps=3",
    "batch_size=4",
    "group_size=4",
    "eval_problems=8",
    "eval_every=2",
    "checkpoint_every=1",
    "kl_every=1",
    "model.warm_start.steps=4",
    "dataset.train_problems=64",
    "dataset.eval_problems=16",
)


@pytest.fixture(scope="session", autouse=True)
def _session(tmp_path_factory):
    temporary = tmp_path_factory.getbasetemp()
    shared = temporary.parent if "PYTEST_XDIST_WORKER" in os.environ else temporary
    torch.set_num_threads(1)
    os.environ["REC_EXPERIMENTS_CACHE"] = str(shared / "cache")  # of all workers
    os.environ["MPLCONFIGDIR"] = str(tmp_path_factory.mktemp("matplotlib"))  # of all processes
    shapes.watch()


@pytest.fixture(autouse=True)
def _no_network(monkeypatch):
    """The hub is not asked whether it answers: what would be fetched from it is made up."""
    monkeypatch.setattr(files, "hub_silence", lambda: "")


@pytest.fixture(autouse=True)
def _switches():
    """No test leaves the switches of its run to the next one."""
    yield
    turn_off()


def turn_off() -> None:
    secure(False)
    for name, _ in (CUBLAS, FLASH_ATTENTION):
        os.environ.pop(name, None)


@functools.cache
def composed(*overrides: str, name: str = "config") -> DictConfig:
    with composing() as compose:
        return compose(name, overrides)


def resolve(*overrides: str) -> dict:
    """The resolved configuration, as run folders hold it."""
    return experiment(*overrides).config()


def experiment(*overrides: str) -> Experiment:
    return schema.build(composed(*overrides), Experiment)


def run(path: Path, *overrides: str, until: int | None = None, remake: bool = False) -> RunFolder:
    """Train in this process; `until` raises KeyboardInterrupt after that step's row."""
    from rec_experiments.runs.prepare import prepare

    exp, config = experiment(*overrides), resolve(*overrides)
    folder = RunFolder(path)
    folder.check(config)
    folder.start(config, {}, remake)

    def stop(row):
        if row["step"] == until:
            raise KeyboardInterrupt

    trainer = prepare(exp)
    with contextlib.closing(trainer.rollouts.worker), contextlib.ExitStack() as ended:
        ended.callback(folder.unlock)  # the traceback of an error would hold it
        trainer.train(folder, stop)
    return folder


class Row(NamedTuple):
    """Token ids of a prompt and a response."""

    prompt: list[int]
    response: list[int]

    @property
    def length(self) -> int:
        return len(self.prompt) + len(self.response)


def sequences_of(rows: list[tuple[list[int], list[int]]]) -> Sequences:
    """Prompts and responses as the tensors that a forward pass takes."""
    return Sequences.of([row[0] for row in rows], [row[1] for row in rows])


def by_row(rollouts: Rollouts) -> list[SimpleNamespace]:
    """The rows of rollouts as plain lists without padding, read one by one."""
    found = []
    for b in range(len(rollouts)):
        P, T = int(rollouts.prompt_length_B[b]), int(rollouts.length_B[b])
        version_BT = rollouts.version_BX.expand(-1, rollouts.token_BT.shape[1])
        found.append(
            SimpleNamespace(
                prompt=rollouts.prompt_BP[b].tolist()[rollouts.prompt_BP.shape[1] - P :],
                tokens=rollouts.token_BT[b, :T].tolist(),
                logp=rollouts.logp_BT[b, :T].tolist(),
                mask=rollouts.mask_BT[b, :T].tolist(),
                finished=bool(rollouts.finished_B[b]),
                reward=float(rollouts.reward_B[b]),
                accuracy=float(rollouts.accuracy_B[b]),
                group=int(rollouts.group_B[b]),
                version=int(rollouts.version_BX[b, 0]),
                versions=version_BT[b, :T].tolist(),
                logps={role: logp[b, :T].tolist() for role, logp in rollouts.logps.items()},
            )
        )
    return found


class Said(NamedTuple):
    """One response as plain lists."""

    tokens: list[int]
    logp: list[float]
    finished: bool
    mask: list[bool]


def said(responses: Responses) -> list[Said]:
    """The responses, one by one."""
    lengths = responses.length_B.tolist()
    logps = [row[:n] for row, n in zip(responses.logp_BT.tolist(), lengths, strict=True)]
    columns = responses.tokens(), logps, responses.finished_B.tolist(), responses.masks()
    return [Said(*row) for row in zip(*columns, strict=True)]


def sample(sampler, prompts, draws, temperature) -> list[list[Said]]:
    """What a sampler says to each prompt."""
    rows = iter(said(sampler.sample(prompts, draws, temperature)))
    return [[next(rows) for _ in named] for named in draws]


def accumulate_gradient(
    model,
    rollouts: Rollouts,
    algorithm: Algorithm,
    *,
    temperature: float = 1.0,
    micro_batch_size: int | None = None,
    reference=None,
    world: World = ALONE,
) -> TokenLog:
    """Add the gradient of a mini-batch to the model's, and measure KL if there is a reference."""
    from rec_experiments.policy.batching import Limits
    from rec_experiments.policy.logprobs import ForwardPass
    from rec_experiments.training.gradient import GradientPass, MiniBatch

    gradient = GradientPass(
        algorithm=algorithm,
        forward=ForwardPass(temperature=temperature, compute_dtype=torch.float32),
        limits=Limits(sequences=micro_batch_size, tokens=None),
        others={} if reference is None else {"reference": reference},
        kl=reference is not None,
        world=world,
    )
    index = StepIndex(batch=rollouts.index, epoch=0, mini_batch=0, step=rollouts.index)
    return gradient.accumulate(model, MiniBatch.of(rollouts, algorithm, index, 0, model))


def timeless(row: dict) -> dict:
    """A row of metrics without what the clock says."""
    return {k: v for k, v in row.items() if not k.startswith("time/") and "per_second" not in k}


def assert_equal(one, other, where="state"):
    """Equal bit for bit, whatever is nested, but for the seconds that batches took and the names of
    the runs."""
    assert type(one) is type(other), where
    if isinstance(one, dict):
        assert one.keys() == other.keys(), where
        for key in one.keys() - {"seconds", "identity"}:
            assert_equal(one[key], other[key], f"{where}.{key}")
    elif isinstance(one, list):
        assert len(one) == len(other), where
        for i, pair in enumerate(zip(one, other, strict=True)):
            assert_equal(*pair, f"{where}[{i}]")
    elif isinstance(one, torch.Tensor):
        assert torch.equal(one, other), where
    else:
        assert one == other, where


def command(*arguments: str, cwd: Path, **environment: str) -> subprocess.CompletedProcess:
    """`python -m rec_experiments ARGUMENTS` in a folder, as a user runs it."""
    return subprocess.run(
        [sys.executable, "-m", "rec_experiments", *arguments],
        cwd=cwd,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )


@pytest.fixture
def data_folder() -> Path:
    """Real data sets, named by REC_DATA; tests that need them are skipped where it is unset."""
    if "REC_DATA" not in os.environ:
        pytest.skip("REC_DATA is not set: it names a folder with gsm8k/train.jsonl and the like")
    return Path(os.environ["REC_DATA"])


def problem_numbers(exp: Experiment, draw: int, total: int) -> list[int]:
    """Numbers of the problems of a draw."""
    from rec_experiments.rollout.replay import problems_of

    size = exp.buffer.fresh(exp.batch_size)
    return problems_of(draw, size, total, exp.seed, exp.shuffle)


def refused(arguments, monkeypatch, capfd) -> str:
    """The one line on stderr of a command that must exit with 2."""
    monkeypatch.setattr(sys, "argv", ["rec_experiments", *arguments])
    with pytest.raises(SystemExit) as stopped:
        main()
    out, err = capfd.readouterr()
    lines = [line for line in err.splitlines() if line.strip()]
    assert stopped.value.code == 2, err
    assert len(lines) == 1, err
    assert lines[0].startswith("error: ")
    assert "Traceback" not in out + err
    return lines[0]


def assert_same_result(one: RunFolder, other: RunFolder) -> None:
    """The same metrics, but for times, and the same final state."""
    assert [*map(timeless, one.metrics())] == [*map(timeless, other.metrics())]
    assert_equal(one.load_checkpoint()[0], other.load_checkpoint()[0])


@pytest.fixture(scope="module")
def padded_rows():
    """Every model goes through the library's own modules, as one that is split over ranks does. In
    float64 its norms still round to float32, where a tree's do not."""
    with mock.patch("rec_experiments.policy.tree.supports", return_value=False):
        yield


@pytest.fixture(scope="module")
def mini_batch():
    """A float64 model, and a batch of 16 responses of unlike lengths in 4 groups."""
    from rec_experiments.runs.prepare import prepare

    trainer = prepare(experiment(*SMALL, "algo=grpo", "sync.interval=8"))
    trainer.rollouts.update_weights(0, 0, trainer.model)
    rollouts = trainer.rollouts.get_batch(0)
    model = trainer.model.double()
    torch.manual_seed(0)
    with torch.no_grad():  # move off the policy that drew the batch, so that ratios matter
        for parameter in model.parameters():
            parameter.add_(0.02 * torch.randn_like(parameter))
    return model, dataclasses.replace(rollouts, reward_B=torch.arange(16).double() % 3)


def with_exact_norms(model: torch.nn.Module) -> torch.nn.Module:
    """The model with norms that keep float64; those of the library compute in float32."""
    for module in list(model.modules()):
        for child, norm in module.named_children():
            if "norm" in child:
                exact = torch.nn.RMSNorm(norm.weight.shape, norm.variance_epsilon)
                exact.weight, exact.variance_epsilon = norm.weight, norm.variance_epsilon
                setattr(module, child, exact)
    return model
