"""Where sampler and trainer disagree on one policy: the metric, and truncated importance weighting.

1. A token's coefficient is multiplied by min(π_trainer / π_sampler, cap), and by nothing else.
2. ρ is then taken between two numbers of the trainer; the sampler's enter the correction alone.
3. The trainer's log-probabilities are of the version that drew the batch; checkpoints keep them.
4. The metric is the mean |log π_trainer − log π_sampler| where both are at one version.
"""

import copy
import dataclasses
import math

import numpy as np
import pytest
import torch
from conftest import SMALL, accumulate_gradient, experiment

import rec_experiments
from rec_experiments.algo.corrections import MismatchCorrection
from rec_experiments.algo.surrogate import tokens
from rec_experiments.policy.logprobs import collate, compute_logprobs
from rec_experiments.rollout.manager import RolloutManager
from rec_experiments.rollout.replay import NoReplay
from rec_experiments.runs.prepare import prepare
from rec_experiments.types import LossInput, Outcomes, StepIndex

STALE = (*SMALL, "sync.interval=3", "kl_every=0", "optimizer.learning_rate=1")
PRESETS = ["reinforce", "grpo", "rec_ring_is", "red_weight"]


def feed_of(exp, trainer):
    feed = RolloutManager(
        worker=trainer.rollouts.worker, schedule=exp.sync, buffer=NoReplay(redraws=0), seed=0,
        problems=trainer.rollouts.problems, batches=4, bundle=1, batch_size=4,
        group_size=4, temperature=exp.sampler.temperature, shuffle=True,
    )  # fmt: skip
    feed.update_weights(0, 0, trainer.model)
    return feed


@pytest.fixture(scope="module")
def drawn():
    """A float64 model off the policy that drew a batch, that batch, and known gaps in it."""
    exp = experiment(*SMALL)
    trainer = prepare(exp)
    rollouts = feed_of(exp, trainer).get_batch(0)
    g = torch.Generator().manual_seed(0)
    own = [[x + 0.1 for x in response.logp] for response in rollouts.responses]
    gaps = [(2 * torch.randn(len(row), generator=g)).tolist() for row in own]
    responses = [
        dataclasses.replace(r, logp=[x - gap for x, gap in zip(*row, strict=True)])
        for r, *row in zip(rollouts.responses, own, gaps, strict=True)
    ]
    results = [
        dataclasses.replace(result, reward=float(i % 3))
        for i, result in enumerate(rollouts.results)
    ]
    rollouts = dataclasses.replace(
        rollouts, responses=responses, results=results, logps={"behavior": own}
    )
    return trainer.model.double(), rollouts, gaps, trainer.evaluator.chat.pad_id


def corrected(name, cap):
    choices = (
        ["correction=none"] if cap is None else ["correction=truncated", f"correction.cap={cap}"]
    )
    return rec_experiments.algorithm(name, *choices).parts


def gradient_of(drawn, cap, name="grpo", **changes):
    model, rollouts, _, pad_id = drawn
    model = copy.deepcopy(model)
    log = accumulate_gradient(
        model,
        dataclasses.replace(rollouts, **changes),
        corrected(name, cap),
        pad_id=pad_id,
        micro_batch_size=5,
    )
    return torch.cat([p.grad.flatten() for p in model.parameters()]), log.reduce()


def weight_of(gap_T, cap):
    """Of the tokens of one sequence; gap: log π_trainer − log π_sampler."""
    batch = tokens(gap_T[None], torch.ones(1))
    batch = dataclasses.replace(
        batch, logps={"behavior": gap_T[None] - 3, "sampler": torch.full_like(gap_T[None], -3)}
    )
    piece = MismatchCorrection(weight="token", cap=cap, measure="token", low=None, high=None)
    return piece(batch)[0]


def test_the_weight_in_closed_form():
    gap = torch.tensor(
        [0.0, math.log(1.5), math.log(2), 5.0, 1e9, -math.log(4), -1e9], dtype=torch.float64
    )
    expected = [1, 1.5, 2, 2, 2, 0.25, 0]
    assert weight_of(gap, 2.0).tolist() == pytest.approx(expected, rel=1e-12)
    assert weight_of(gap[:4], 1e300)[3] == pytest.approx(math.exp(5))


@pytest.mark.parametrize("name", PRESETS)
def test_each_coefficient_is_multiplied_by_it(name):
    g = torch.Generator().manual_seed(1)
    logp = torch.randn(8, 5, generator=g, dtype=torch.float64, requires_grad=True)
    behavior = logp.detach() + 0.1 * torch.randn(8, 5, generator=g, dtype=torch.float64)
    correction = torch.rand(8, 5, generator=g, dtype=torch.float64) * 2  # below the cap
    mask = torch.arange(5) < torch.tensor([5, 3, 1, 4, 5, 2, 5, 3])[:, None]
    correction[~mask] = math.nan
    rewards, groups = torch.tensor([0.0, 1, 1, 0, 0, 0, 1, 0]).double(), torch.arange(8) // 4
    everyone = torch.ones(8, dtype=torch.bool)
    outcomes = Outcomes(rewards, groups, mask, everyone, everyone)
    gradients = []
    for cap in (None, 2):
        algorithm = corrected(name, cap)
        batch = LossInput(
            logp_BT=logp,
            logps={"behavior": behavior, "sampler": behavior - correction.log()},
            advantages=algorithm.advantages(outcomes, np.random.default_rng(0)),
            groups_B=groups,
            versions_B=torch.zeros_like(groups),
            index=StepIndex(0, 0, 0, 0),
        )
        gradients += torch.autograd.grad(algorithm.loss(batch).loss, logp)
    plain, weighted = gradients
    assert plain.abs().max() > 1e-3
    torch.testing.assert_close(weighted, torch.where(mask, plain * correction, 0.0))


def test_the_gradient_of_a_batch_against_one_written_by_hand(drawn):
    """REINFORCE with importance weights: Σ A · ρ · min(e^gap, cap) · ∇log π / tokens."""
    model, rollouts, gaps, pad_id = drawn
    ours, _ = gradient_of(drawn, 1.5, "rec_oneside_is")
    rewards = torch.tensor([v.reward for v in rollouts.results]).double().reshape(-1, 4)
    advantages = (rewards - rewards.mean(1, keepdim=True)).flatten()
    algorithm = rec_experiments.algorithm("rec_oneside_is").parts
    model, loss = copy.deepcopy(model), torch.zeros((), dtype=torch.float64)
    for i, response in enumerate(rollouts.responses):
        rows = collate([rollouts.prompts[i]], [response.tokens], pad_id)
        logp = compute_logprobs(model, rows, 1.0).logp_BT
        log_ratio = (logp - torch.tensor([rollouts.logps["behavior"][i]])).detach()
        keep = algorithm.clip(log_ratio, tokens(log_ratio, advantages[i : i + 1]))
        weight = log_ratio.exp() * torch.tensor([gaps[i]]).double().exp().clamp(max=1.5)
        loss = loss - (keep * weight * advantages[i] * logp).sum()
    (loss / sum(len(r.tokens) for r in rollouts.responses)).backward()
    expected = torch.cat([p.grad.flatten() for p in model.parameters()])
    assert expected.abs().max() > 1e-4
    torch.testing.assert_close(ours, expected, rtol=1e-5, atol=1e-8)


def test_the_ratio_does_not_see_the_sampler(drawn):
    """Ratio and clip metrics are those of a sampler without a gap; only the mismatch tells."""
    _, rollouts, gaps, _ = drawn
    exact = [
        dataclasses.replace(r, logp=row)
        for r, row in zip(rollouts.responses, rollouts.logps["behavior"], strict=True)
    ]
    without, row = gradient_of(drawn, 2.0, responses=exact)
    with_gap, gap_row = gradient_of(drawn, 2.0)
    assert not torch.allclose(without, with_gap)
    for name in row:
        if "mismatch" not in name and name != "train/loss":
            assert gap_row[name] == row[name], name
    flat = torch.tensor([abs(gap) for of_row in gaps for gap in of_row]).double()
    assert row["train/mismatch"] == row["train/mismatch_max"] == 0
    assert gap_row["train/mismatch"] == pytest.approx(float(flat.mean()), rel=1e-5)
    assert gap_row["train/mismatch_max"] == pytest.approx(float(flat.max()), rel=1e-5)
    uncorrected, _ = gradient_of(drawn, None, responses=exact, logps={})
    assert torch.equal(without, uncorrected)


CAPPED = ("correction=truncated", "correction.cap=2")


@pytest.mark.parametrize(("correction", "seen"), [((), [True, False, False]), (CAPPED, [True] * 3)])
def test_the_metric_is_there_where_it_can_be_known(correction, seen):
    exp = experiment(*STALE, *correction, "sampler.temperature=0.8")
    trainer = prepare(exp)
    feed = feed_of(exp, trainer)
    rows = []
    for step in range(3):
        rows.append(trainer.update(feed.get_batch(step), exp.updates.index_of(step)))
        feed.update_weights(step + 1, step + 1, trainer.model)
    assert ["train/mismatch" in row for row in rows] == seen
    assert all(row["train/mismatch_max"] < 1e-4 for row in rows if "train/mismatch" in row)
    assert rows[2]["train/ratio_max"] > 1.01  # the weights did move on
    assert all(("time/recompute" in row) == bool(correction) for row in rows)


def test_the_recomputed_are_those_of_the_version_that_drew_the_batch():
    exp = experiment(*STALE, "sync.interval=2", *CAPPED)
    trainer = prepare(exp)
    feed, versions = feed_of(exp, trainer), []
    for step in range(3):
        versions.append(copy.deepcopy(trainer.model))
        trainer.update(feed.get_batch(step), exp.updates.index_of(step))
        feed.update_weights(step + 1, step + 1, trainer.model)
    stale = feed.get_batch(3)
    assert (stale.index, set(stale.versions)) == (3, {2})
    pad_id = trainer.evaluator.chat.pad_id
    rows = collate(stale.prompts, [r.tokens for r in stale.responses], pad_id)
    with torch.no_grad():
        expected = compute_logprobs(versions[2], rows, 1.0).logp_BT
    for response, recomputed, logp in zip(
        stale.responses, stale.logps["behavior"], expected.tolist(), strict=True
    ):
        assert len(recomputed) == len(response.tokens)
        assert recomputed == pytest.approx(logp[: len(recomputed)], abs=1e-5)


def test_a_checkpoint_keeps_them():
    exp = experiment(*SMALL, "sync.interval=1", "sync.offset=2", *CAPPED)
    trainer = prepare(exp)
    feed = feed_of(exp, trainer)
    feed.get_batch(0)
    feed.update_weights(1, 1, trainer.model)  # draws the batches that are due from version 0
    state = feed.state()
    assert state["pending"]
    other = feed_of(exp, trainer)
    other.restore(state, feed.behavior.weights, {})
    kept = other.get_batch(1).logps
    assert kept == feed.get_batch(1).logps
    assert kept["behavior"]
