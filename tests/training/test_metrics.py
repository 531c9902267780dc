"""What the rows of metrics.jsonl say, against closed forms and loops in NumPy.

1. Clipped tokens by side of the ratio that the clip saw and by sign of the advantage; moments of
   log ρ; KL of a response. Garbage outside the live tokens changes nothing.
2. Live groups and distinct responses, counted by hand.
3. How far the weights have moved: in closed form, on one rank and on two, and through a run.
"""

import copy
import dataclasses

import conftest
import numpy as np
import pieces
import pytest
import torch
from conftest import SMALL
from hypothesis import given, settings
from hypothesis import strategies as st

from rec_experiments.algo.inputs import Advantages, LossInput, LossOutput, Totals
from rec_experiments.common.batch import Responses, Rollouts, StepIndex
from rec_experiments.common.distributed import ALONE, copied_to_host
from rec_experiments.common.problems import VerifierResult
from rec_experiments.policy.lora import trained
from rec_experiments.training.metrics import (
    TokenLog,
    group_metrics,
    relative_distance,
    throughput_metrics,
)
from rec_experiments.training.trainer import Trainer

B, T = 8, 5
INDEX = StepIndex(batch=0, epoch=0, mini_batch=0, step=0)
SIDES, SIGNS = ("high", "low"), ("positive", "negative")
GARBAGE = [float("nan"), float("inf"), float("-inf"), 7.0]


def rows_of(seed: int, spread: float) -> LossInput:
    """B rows in groups of 4, some without a live token; garbage wherever none is."""
    rng = np.random.default_rng(seed)
    mask = np.arange(T) < rng.integers(0, T + 1, B)[:, None]
    mask[0, 0] = True
    behavior = -3 * rng.random((B, T))
    logp = behavior + spread * rng.normal(size=(B, T))
    proximal = behavior + spread * rng.normal(size=(B, T))
    for array in (logp, behavior, proximal):
        array[~mask] = rng.choice(GARBAGE, size=int((~mask).sum()))
    mask_BT, groups_B = torch.from_numpy(mask), torch.arange(B) // 4
    advantages = Advantages(
        advantage_B=torch.from_numpy(rng.choice([-1.5, 0.0, 0.5], B)),
        mask_BT=mask_BT,
        counted_B=torch.ones(B, dtype=torch.long),
        group_tokens_B=mask_BT.sum(1),
        totals=Totals(tokens=int(mask_BT.sum()), groups=2),
    )
    return LossInput(
        logp_BT=torch.from_numpy(logp),
        logps={"behavior": torch.from_numpy(behavior), "proximal": torch.from_numpy(proximal)},
        advantages=advantages,
        groups_B=groups_B,
        version_BX=torch.zeros(B, 1, dtype=torch.long),
        index=INDEX,
    )


def clip_ratio(name: str, batch: LossInput) -> np.ndarray:
    """log of the ratio that a method's clip looks at, by its definition."""
    role = "proximal" if name == "decoupled_ppo" else "behavior"
    log_ratio, mask = (batch.logp_BT - batch.logps[role]).numpy(), batch.mask_BT.numpy()
    if name != "gspo":
        return log_ratio
    means = [
        row[live].mean() if live.any() else 0 for row, live in zip(log_ratio, mask, strict=True)
    ]
    return np.repeat(np.array(means)[:, None], T, axis=1)


@pytest.mark.parametrize("name", sorted(pieces.METHODS))
@given(seed=st.integers(0, 10_000), spread=st.sampled_from([0.05, 0.5, 2.0]))
@settings(deadline=None, max_examples=40)
def test_clip_fractions(name, seed, spread):
    batch = rows_of(seed, spread)
    out, log = pieces.method(name).loss(batch), TokenLog()
    log.add(out, batch)
    row, seen, counts = log.reduce(), clip_ratio(name, batch), dict.fromkeys(SIDES + SIGNS, 0)
    live = list(zip(*np.nonzero(batch.mask_BT.numpy()), strict=True))
    moments = []
    for b, t in live:
        moments.append(float(batch.logp_BT[b, t] - batch.logps["behavior"][b, t]) ** 2)
        if not out.keep_BT[b, t]:
            counts["high" if seen[b, t] > 0 else "low"] += 1
            counts["positive" if batch.advantage_B[b] > 0 else "negative"] += 1
    for part, count in counts.items():
        assert row[f"train/clip_fraction_{part}"] == pytest.approx(count / len(live))
    for pair in (SIDES, SIGNS):
        total = sum(row[f"train/clip_fraction_{part}"] for part in pair)
        assert total == pytest.approx(row["train/clip_fraction"], abs=1e-12)
    assert row["train/log_ratio_second_moment"] == pytest.approx(np.mean(moments))


def test_no_live_tokens():
    batch, empty = rows_of(0, 0.5), TokenLog()
    none_BT = torch.zeros(B, T, dtype=torch.bool)
    advantages = dataclasses.replace(batch.advantages, mask_BT=none_BT)
    batch = dataclasses.replace(batch, advantages=advantages)
    empty.add(LossOutput(torch.tensor(0.0), none_BT.double(), none_BT.double(), none_BT), batch)
    assert empty.reduce() == {"train/loss": 0.0}


def test_kl_of_a_response():
    kl_BT = torch.tensor([[0.5, 0.25, float("nan")], [1.0, float("inf"), 2.0]])
    mask_BT = torch.tensor([[True, True, False], [True, False, True]])
    batch, log = rows_of(0, 0.5), TokenLog()
    log.add(pieces.method("ppo").loss(batch), batch)
    log.add_policy(torch.zeros(2, 3), kl_BT, mask_BT)
    row = log.reduce()
    assert row["train/kl"] == pytest.approx(3.75 / 4)
    assert row["train/kl_response"] == pytest.approx((0.75 + 3.0) / 2)


def test_group_metrics():
    """Three groups of two: one that learns, one of equal rewards, one whose live row has none."""
    texts = [[1, 2], [1, 2], [1, 2], [3], [4], [5]]
    rollouts = Rollouts.verified(
        Responses.of(texts),
        prompts=[[9]] * 6,
        groups=[0, 0, 1, 1, 2, 2],
        results=[VerifierResult(0.0, 0.0)] * 6,
    )
    mask_BT = torch.tensor([[True]] * 4 + [[False], [True]])
    advantage_B = torch.tensor([1.0, -1.0, 0.0, 0.0, 2.0, 0.0])
    ones_B = torch.ones(6, dtype=torch.long)
    advantages = Advantages(advantage_B, mask_BT, ones_B, ones_B, Totals(5, 3))
    assert group_metrics(rollouts, advantages) == {
        "train/live_groups": pytest.approx(1 / 3),
        "train/distinct_responses": pytest.approx(5 / 6),  # the same text in two groups is two
    }


def test_tokens_per_second():
    """Of drawing only at the first update of a batch."""
    batch = Rollouts.verified(
        Responses.of([[1, 2], [3]]),
        prompts=[[9]] * 2,
        groups=[0, 0],
        results=[VerifierResult(0.0, 0.0)] * 2,
        seconds={"rollout": 0.25},
    )
    batch = dataclasses.replace(batch, drawn=3)
    row = throughput_metrics(batch, batch.rows(torch.tensor([0])), INDEX, 4.0)
    assert (row["tokens/response"], row["tokens/train_per_second"]) == (2, 0.5)
    assert (row["tokens/rollout_per_second"], row["time/rollout"]) == (12.0, 0.25)
    later = throughput_metrics(batch, batch, INDEX._replace(epoch=1), 4.0)
    assert later == {"tokens/response": 3, "tokens/train_per_second": 0.75, "time/train": 4.0}


def tied_model() -> torch.nn.Module:
    """Seven rows, so that ranks have unequal parts, and one weight under two names."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(3, 7), torch.nn.Linear(7, 3), torch.nn.Linear(3, 7))
    model[2].weight = model[0].weight
    return model.double()


def moved_on(world, split: bool) -> float:
    """After a step of its own for each parameter; against weights that are split or whole."""
    model = tied_model()
    start = copied_to_host(trained(model))
    model = world.split(model)
    start = copied_to_host(trained(model)) if split else start
    with torch.no_grad():
        for n, parameter in enumerate(model.parameters()):
            parameter.mul_(1 + 0.1 * (n + 1))
    return relative_distance(model, start, world)


@pytest.mark.parametrize("split", [True, False])
def test_relative_distance(ranks, split):
    numbers = [p.detach().numpy() for p in tied_model().parameters()]
    moved = sum((0.1 * (n + 1)) ** 2 * (x**2).sum() for n, x in enumerate(numbers))
    expected = np.sqrt(moved / sum((x**2).sum() for x in numbers))
    assert moved_on(ALONE, split) == pytest.approx(expected, rel=1e-12)
    assert ranks(moved_on, split) == [pytest.approx(expected, rel=1e-12)] * 2


MOVING = (*SMALL, "steps=6", "algo=asymre", "optimizer.learning_rate=0.01")
SCHEDULES = {
    "interval": ("sync.interval=3",),
    "offline": ("sync=offline",),
    "several updates": ("sync.interval=2", "updates.epochs=2"),
    "offset": ("sync.interval=1", "sync.offset=2"),
    "replay": ("sync.interval=1", "buffer=replay", "buffer.reuse=2", "buffer.window=2"),
}


@pytest.mark.parametrize("name", SCHEDULES)
def test_weight_step_and_lag(name, tmp_path, monkeypatch):
    """Each step's length, and the way from the weights that drew the batch while they are held."""
    weights, versions, update = [], [], Trainer.update

    def flat(model):
        return torch.cat([p.detach().flatten() for p in copy.deepcopy(model).parameters()]).double()

    def spy(trainer, batch, index):
        weights.append(flat(trainer.model))
        versions.append(set(batch.version_BX.flatten().tolist()))
        row = update(trainer, batch, index)
        if index.step == 5:
            weights.append(flat(trainer.model))
        return row

    monkeypatch.setattr(Trainer, "update", spy)
    rows = conftest.run(tmp_path / "run", *MOVING, *SCHEDULES[name]).metrics()[1:]
    lags = 0
    for s, row in enumerate(rows):
        before, after = weights[s], weights[s + 1]
        step = float((after - before).norm() / before.norm())
        assert row["train/weight_step"] == pytest.approx(step, rel=1e-5)
        assert step > 1e-4
        single = len(versions[s]) == 1 and (name != "offset" or s == 0)
        assert ("train/weight_lag" in row) == single, s
        if single:
            drawn = weights[min(versions[s])]
            lag = float((before - drawn).norm() / drawn.norm())
            assert row["train/weight_lag"] == pytest.approx(lag, rel=1e-5)
            lags += lag > 0
    assert lags == {"interval": 4, "offline": 5, "several updates": 4}.get(name, 0)


def test_weight_metrics_with_kl(tmp_path):
    rows = conftest.run(tmp_path / "run", *MOVING, "sync=offline", "kl_every=3").metrics()[1:]
    for name in ("train/weight_step", "train/weight_lag", "train/kl_response"):
        assert ["train/kl" in row for row in rows] == [name in row for row in rows]
    assert sum("train/kl" in row for row in rows) == 2
