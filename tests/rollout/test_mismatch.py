"""Where sampler and trainer disagree on one policy: the metric, and truncated importance weighting.

1. A token's weight is min(π_trainer / π_sampler, cap), in closed form and in a gradient by hand.
2. ρ is then taken between two numbers of the trainer; the sampler's enter the correction alone.
3. The trainer's log-probabilities are of the version that drew the batch; their time is counted.
4. The metric is the mean |log π_trainer − log π_sampler| where both are at one version.
"""

import copy
import dataclasses
import math

import objectives as o
import pytest
import torch
from conftest import SMALL, accumulate_gradient, by_row, experiment

import rec_experiments
from rec_experiments.algo.corrections import MismatchCorrection
from rec_experiments.algo.loss import tokens
from rec_experiments.common.batch import Sequences
from rec_experiments.policy import recompute
from rec_experiments.policy.batching import Limits, collate
from rec_experiments.policy.logprobs import ForwardPass, compute_logprobs
from rec_experiments.runs.prepare import prepare

STALE = (*SMALL, "sync.interval=3", "kl_every=0", "optimizer.learning_rate=1")


def begun(*overrides):
    """An experiment, and its trainer, which has handed its initial weights to its rollouts."""
    exp = experiment(*overrides, "steps=4")
    trainer = prepare(exp)
    trainer.rollouts.update_weights(0, 0, trainer.model)
    return exp, trainer


@pytest.fixture(scope="module")
def drawn():
    """A float64 model off the policy that drew a batch, that batch, and known gaps in it."""
    _, trainer = begun(*SMALL)
    rollouts = trainer.rollouts.get_batch(0)
    g = torch.Generator().manual_seed(0)
    own_BT = rollouts.logp_BT.double() + 0.1
    gap_BT = 2 * torch.randn(own_BT.shape, generator=g)
    rollouts = dataclasses.replace(
        rollouts,
        logp_BT=own_BT - gap_BT,
        reward_B=(torch.arange(len(rollouts)) % 3).double(),
        logps={"behavior": own_BT},
    )
    return trainer.model.double(), rollouts, gap_BT


def corrected(name, cap):
    choices = (
        ["correction=none"] if cap is None else ["correction=truncated", f"correction.cap={cap}"]
    )
    return rec_experiments.algorithm(name, *choices).parts


def gradient_of(drawn, cap, name="grpo", **changes):
    model, rollouts, _ = drawn
    model = copy.deepcopy(model)
    log = accumulate_gradient(
        model,
        dataclasses.replace(rollouts, **changes),
        corrected(name, cap),
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


def test_the_gradient_of_a_batch_against_one_written_by_hand(drawn):
    """REINFORCE with importance weights: Σ A · ρ · min(e^gap, cap) · ∇log π / tokens."""
    model, rollouts, _ = drawn
    ours, _ = gradient_of(drawn, 1.5, "rec_oneside_is")
    model, logp = copy.deepcopy(model), []
    for row in by_row(rollouts):
        rows = collate(Sequences.of([row.prompt], [row.tokens]))
        logp.append(compute_logprobs(model, rows, 1.0).logp_BT[0])
    x = o.rows_of(rollouts, logp)
    o.ppo(x, x.mean, weights=x.kappa.clamp(max=1.5)).backward()
    expected = torch.cat([p.grad.flatten() for p in model.parameters()])
    assert expected.abs().max() > 1e-4
    torch.testing.assert_close(ours, expected, rtol=1e-5, atol=1e-8)


def test_the_ratio_does_not_see_the_sampler(drawn):
    """Ratio and clip metrics are those of a sampler without a gap; only the mismatch tells."""
    _, rollouts, gap_BT = drawn
    exact_BT = rollouts.logps["behavior"]
    without, row = gradient_of(drawn, 2.0, logp_BT=exact_BT)
    with_gap, gap_row = gradient_of(drawn, 2.0)
    assert not torch.allclose(without, with_gap)
    for name in row:
        if "mismatch" not in name and name != "train/loss":
            assert gap_row[name] == row[name], name
    flat = gap_BT[rollouts.mask_BT].abs().double()
    assert row["train/mismatch"] == row["train/mismatch_max"] == 0
    assert gap_row["train/mismatch"] == pytest.approx(float(flat.mean()), rel=1e-5)
    assert gap_row["train/mismatch_max"] == pytest.approx(float(flat.max()), rel=1e-5)
    uncorrected, _ = gradient_of(drawn, None, logp_BT=exact_BT, logps={})
    assert torch.equal(without, uncorrected)


CAPPED = ("correction=truncated", "correction.cap=2")


@pytest.mark.parametrize(("correction", "seen"), [((), [True, False, False]), (CAPPED, [True] * 3)])
def test_the_metric_is_there_where_it_can_be_known(correction, seen):
    exp, trainer = begun(*STALE, *correction, "sampler.temperature=0.8")
    feed, rows = trainer.rollouts, []
    for step in range(3):
        rows.append(trainer.update(feed.get_batch(step), exp.updates.index_of(step)))
        feed.update_weights(step + 1, step + 1, trainer.model)
    assert ["train/mismatch" in row for row in rows] == seen
    assert all(row["train/mismatch_max"] < 1e-4 for row in rows if "train/mismatch" in row)
    assert rows[2]["train/ratio_max"] > 1.01  # the weights did move on
    for row in rows:  # a part of the time in the worker, for each draw
        assert (0 < row.get("time/recompute", 0) < 60) == bool(correction)


def test_the_recomputed_are_those_of_the_version_that_drew_the_batch():
    exp, trainer = begun(*STALE, "sync.interval=2", *CAPPED)
    feed, versions = trainer.rollouts, []
    for step in range(3):
        versions.append(copy.deepcopy(trainer.model))
        trainer.update(feed.get_batch(step), exp.updates.index_of(step))
        feed.update_weights(step + 1, step + 1, trainer.model)
    stale = feed.get_batch(3)
    assert (stale.index, stale.version_BX.unique().tolist()) == (3, [2])
    rows = collate(stale.sequences)
    with torch.no_grad():
        expected = compute_logprobs(versions[2], rows, 1.0).logp_BT
    found = stale.logps["behavior"][stale.mask_BT]
    torch.testing.assert_close(found, expected[stale.mask_BT], rtol=0, atol=1e-5)


def test_times_of_several_passes_add_up(drawn, monkeypatch):
    """Each version of a batch in flight is a pass; the clock of this test ticks in seconds."""
    _, rollouts, _ = drawn
    ticks = iter([10.0, 13.0, 20.0, 24.0])
    monkeypatch.setattr(recompute.time, "perf_counter", lambda: next(ticks))
    forward = ForwardPass(temperature=1.0, compute_dtype=torch.float32)
    again = recompute.LogprobRecomputer(
        prepare(experiment(*SMALL)).model, forward, Limits(sequences=None, tokens=None)
    )
    once = again(rollouts)
    assert once.seconds["recompute"] == 3.0
    assert again(once, start=2).seconds["recompute"] == 7.0
