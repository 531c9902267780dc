"""From outcomes to advantages: what counts, what does not, and what is exact.

1. A comparison with a group's mean is exact: equal rewards, and a reward that is the mean, have
   advantage 0 and count as positives, whatever the numbers round to.
2. A response that could not be judged is in no baseline, no loss and no denominator.
3. What is cut at the length limit is trained on, masked out, or penalised, as chosen.
4. sequence_mean is the mean over groups of the mean over the group's live sequences (Eq. 10).
"""

import dataclasses
import functools
import math

import numpy as np
import pytest
import torch
from conftest import SMALL, experiment
from hypothesis import given
from hypothesis import strategies as st

import rec_experiments
from rec_experiments import rng
from rec_experiments.algo.advantages import GroupStandard
from rec_experiments.algo.data_weighting import keep_balanced
from rec_experiments.algo.groups import center
from rec_experiments.rollout.reward import ClippedReward, FlipNoise, OverlongPenalty
from rec_experiments.runs.prepare import prepare
from rec_experiments.training.metrics import quantiles, response_metrics
from rec_experiments.types import Response, SampleKey, VerifierResult

algorithm_of = functools.cache(rec_experiments.algorithm)
FORMAT_REWARDS = [1.1, 0.9, 0.1, -0.1]  # accuracy and format bonus, as the paper's runs had them


DTYPES = st.sampled_from([torch.float32, torch.float64])


@given(st.sampled_from([*FORMAT_REWARDS, 0.3, 1 / 3, 1e-9, 123.456]), st.integers(1, 40), DTYPES)
def test_equal_rewards_have_no_advantage_and_none_is_dropped(reward, size, dtype):
    rewards_B, groups_B = (
        torch.full((size,), reward, dtype=dtype).double(),
        torch.zeros(size).long(),
    )
    assert (center(rewards_B, groups_B) == 0).all()
    assert (GroupStandard(ddof=0, epsilon=0.0)(rewards_B, groups_B) == 0).all()
    assert keep_balanced(rewards_B, groups_B, np.random.default_rng(0)).all()


@given(st.lists(st.sampled_from(FORMAT_REWARDS), min_size=1, max_size=8), st.integers(0, 3), DTYPES)
def test_a_reward_at_the_mean_is_no_negative(above, copies, dtype):
    """Pairs at equal distances from 0.5 have the mean 0.5; so have groups with 0.5 among them."""
    rewards = [x for y in above for x in (y, 1 - y)] + [0.5] * (copies + 1)
    rewards_B, groups_B = (
        torch.tensor(rewards, dtype=dtype).double(),
        torch.zeros(len(rewards)).long(),
    )
    advantage_B = center(rewards_B, groups_B)
    assert (advantage_B[-(copies + 1) :] == 0).all()
    kept_B = keep_balanced(rewards_B, groups_B, np.random.default_rng(0))
    assert kept_B[-(copies + 1) :].all()
    for reward, advantage in zip(rewards, advantage_B.tolist(), strict=True):
        assert math.copysign(1, advantage) == math.copysign(1, reward - 0.5) or reward == 0.5


@given(st.lists(st.integers(-50, 50), min_size=2, max_size=16), st.floats(0.01, 10))
def test_a_real_difference_is_never_taken_for_rounding(steps, unit):
    values_B = torch.tensor([unit * step for step in steps], dtype=torch.float64)
    center_B = center(values_B, torch.zeros(len(steps)).long())
    mean = sum(steps) / len(steps)
    for step, centered in zip(steps, center_B.tolist(), strict=True):
        if len(steps) * step != sum(steps):
            assert centered != 0
            assert centered == pytest.approx(unit * (step - mean), rel=1e-9)


@pytest.mark.parametrize("ones", [1, 17, 63])
def test_rewards_may_have_any_zero(ones):
    """Of 64 responses some earn 0.004 more; a thousand added to all is no other advantage."""
    rewards_B = 0.004 * (torch.arange(64) < ones).double()
    groups_B = torch.zeros(64).long()
    near_B, far_B = (center(rewards_B + shift, groups_B) for shift in (0.0, 1000.0))
    assert near_B.tolist() == pytest.approx((rewards_B - 0.004 * ones / 64).tolist(), rel=1e-12)
    large_B = near_B.abs() > 1e-3  # others are no more than what float32 leaves of a thousand
    assert large_B.any()
    torch.testing.assert_close(far_B[large_B], near_B[large_B], rtol=1e-9, atol=0)


@pytest.mark.parametrize("reward", [0.1, 0.9, 1.1, 1 / 3, 1000.3])
@pytest.mark.parametrize("size", [2, 64])
def test_rewards_that_float32_rounds_apart_are_equal(reward, size):
    """Every second one is the next number after the others."""
    rewards_B = torch.full((size,), reward, dtype=torch.float32)
    rewards_B[::2] = torch.nextafter(rewards_B[::2], torch.tensor(torch.inf))
    assert len(rewards_B.unique()) == 2
    assert (center(rewards_B.double(), torch.zeros(size).long()) == 0).all()


def batch(**changes) -> dict:
    g = torch.Generator().manual_seed(0)
    behavior = -torch.rand(8, 5, generator=g, dtype=torch.float64)
    logp = behavior + 0.3 * torch.randn(8, 5, generator=g, dtype=torch.float64)
    return {
        "logp": logp.requires_grad_(),
        "behavior_logp": behavior,
        "rewards": torch.tensor([1.0, 0, 1, 0, 0, 0, 1, 1]),
        "groups": torch.tensor([0, 0, 0, 0, 1, 1, 1, 1]),
        "mask": torch.arange(5) < torch.tensor([5, 4, 3, 2, 5, 1, 2, 3])[:, None],
        **changes,
    }


def gradient(inputs, preset="grpo", *overrides):
    loss = algorithm_of(preset, *overrides)(**inputs).loss
    return torch.autograd.grad(loss, inputs["logp"])[0]


def without_rows(inputs, rows):
    kept = [row for row in range(8) if row not in rows]
    return {
        name: value[kept].detach().requires_grad_() if name == "logp" else value[kept]
        for name, value in inputs.items()
    }, kept


@pytest.mark.parametrize("preset", ["reinforce", "grpo", "opmd", "asymre", "red_drop", "pairwise"])
def test_what_could_not_be_judged_might_as_well_not_be_there(preset):
    judged = torch.tensor([True, True, False, True, False, True, True, True])
    rewards = torch.where(judged, batch()["rewards"], 5.0)  # whatever it is, nobody reads it
    found = gradient(batch(judged=judged, rewards=rewards), preset)
    smaller, kept = without_rows(batch(), [2, 4])
    assert (found[[2, 4]] == 0).all()
    torch.testing.assert_close(found[kept], gradient(smaller, preset), rtol=1e-12, atol=1e-15)


def test_a_group_of_which_nobody_was_judged_is_finite():
    judged = torch.tensor([False] * 4 + [True] * 4)
    found = gradient(batch(judged=judged), "grpo")
    assert torch.isfinite(found).all()
    assert (found[:4] == 0).all()
    assert (gradient(batch(judged=torch.zeros(8).bool()), "grpo") == 0).all()


def test_unjudged_responses_reach_the_training_as_such():
    """From the verifier's time-out to the advantage, in the package's own path; and are counted."""
    exp = experiment(*SMALL, "algo=reinforce", "batch_size=2")
    trainer = prepare(exp)
    verify = trainer.rollouts.worker.verifier

    def slow(items):
        results = [dataclasses.replace(v, reward=float(i % 3)) for i, v in enumerate(verify(items))]
        results[1] = VerifierResult(reward=0.0, accuracy=0.0, timed_out=True)
        results[6] = VerifierResult(reward=0.0, accuracy=0.0, crashed=True)
        return results

    trainer.rollouts.worker.verifier = slow
    feed = trainer.rollouts
    feed.update_weights(0, 0, trainer.model)
    rollouts = feed.get_batch(0)
    from rec_experiments.training.gradient import MiniBatch

    index = exp.updates.index_of(0)
    advantages = MiniBatch.of(rollouts, exp.algorithm(), index, 0, trainer.model).advantages
    rewards = [0.0, None, 2, 0, 1, 2, None, 1]
    for row, reward in enumerate(rewards):
        group = [r for r in rewards[row // 4 * 4 : row // 4 * 4 + 4] if r is not None]
        expected = 0.0 if reward is None else reward - sum(group) / len(group)
        assert float(advantages.advantage_B[row]) == pytest.approx(expected)
        assert bool(advantages.mask_BT[row].any()) == (reward is not None)
    row = response_metrics("train", rollouts.responses, rollouts.results)
    assert (row["train/verifier_timeouts"], row["train/verifier_crashes"]) == (1, 1)
    assert row["train/reward"] == pytest.approx(6 / 6)


def test_truncated_responses_as_chosen():
    finished = torch.tensor([True, True, False, True, False, True, True, True])
    inputs = batch(finished=finished)
    plain = gradient(batch(), "reinforce")
    assert torch.equal(gradient(inputs, "reinforce"), plain)
    masked = gradient(inputs, "reinforce", "truncation=mask")
    tokens, live = inputs["mask"].sum(), inputs["mask"][finished].sum()
    assert (masked[~finished] == 0).all()  # the baseline still has their rewards
    torch.testing.assert_close(masked[finished], plain[finished] * tokens / live)
    penalised = gradient(inputs, "reinforce", "truncation=penalise", "truncation.penalty=0.25")
    rewards = inputs["rewards"] - 0.25 * ~finished
    torch.testing.assert_close(penalised, gradient(batch(rewards=rewards), "reinforce"))


def test_sequence_mean_is_per_group():
    """Eq. 10: 1/|S| of each group, then the mean over groups, by hand."""
    inputs = batch(rewards=torch.tensor([1.0, 0, 0, 0, 0, 1, 1, 1]))
    algorithm = algorithm_of("red_drop", "aggregation=sequence_mean")
    out = algorithm(**inputs, seed=3)
    (found,) = torch.autograd.grad(out.loss, inputs["logp"])
    kept = keep_balanced(
        inputs["rewards"].double(), inputs["groups"], rng.generator(3, rng.DROP, 0)
    )
    assert kept.tolist().count(False) == 2
    expected = torch.zeros(8, 5, dtype=torch.float64)
    for group in (0, 1):
        rows = [row for row in range(8) if inputs["groups"][row] == group and kept[row]]
        mean = sum(float(inputs["rewards"][row]) for row in rows) / len(rows)
        for row in rows:
            worth = (float(inputs["rewards"][row]) - mean) / len(rows) / 2
            expected[row] = -worth * inputs["mask"][row]
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-15)


def test_sequence_token_mean_by_hand():
    inputs = batch()
    found = gradient(inputs, "reinforce", "aggregation=sequence_token_mean")
    for row in range(8):
        group = inputs["rewards"][row // 4 * 4 : row // 4 * 4 + 4]
        worth = (inputs["rewards"][row] - group.mean()).double() / inputs["mask"][row].sum() / 4 / 2
        torch.testing.assert_close(found[row], -worth * inputs["mask"][row], rtol=1e-12, atol=0)


@given(st.integers(1, 300), st.integers(0, 1000))
def test_quantiles_are_those_of_the_library(count, seed):
    values = torch.randn(count, generator=torch.Generator().manual_seed(seed)).double()
    shares = [0.0, 0.01, 0.5, 0.99, 1.0]
    expected = torch.quantile(values, values.new_tensor(shares))
    assert torch.equal(quantiles(values, shares), expected)


def test_quantiles_of_more_tokens_than_the_library_takes():
    values = torch.arange(2**24 + 2, dtype=torch.float64)
    assert quantiles(values, [0.5]).item() == (2**24 + 1) / 2


def key(n: int) -> SampleKey:
    return SampleKey(seed=0, stream=0, batch=n, group=n % 7, response=n % 5)


def response(tokens: int, finished: bool = True) -> Response:
    return Response([1] * tokens, [0.0] * tokens, finished, [True] * tokens)


def test_the_overlong_penalty_in_closed_form():
    """DAPO's Eq. 13: 0 up to limit − buffer, −1 at the limit, a line between."""
    penalty = OverlongPenalty(buffer=10)
    found = [penalty(1.0, response(n), key(0), 50) for n in (1, 40, 41, 45, 50)]
    assert found == pytest.approx([1.0, 1.0, 0.9, 0.5, 0.0])
    assert penalty(1.0, response(50, finished=False), key(0), 50) == 0.0


def test_noise_mirrors_its_share_and_is_named_by_the_sample():
    noise = FlipNoise(share=0.3, low=-0.1, high=1.1)
    flips = [noise(1.1, response(1), key(n), 9) for n in range(2000)]
    assert flips == [noise(1.1, response(3), key(n), 9) for n in range(2000)]
    assert set(flips) == {1.1, -0.1 + 1.1 - 1.1}
    assert 0.25 < np.mean(np.array(flips) < 0) < 0.35
    assert [FlipNoise(share=0.0, low=0, high=1)(0.2, response(1), key(n), 9) for n in range(9)] == [
        0.2
    ] * 9


@given(st.floats(-3, 3))
def test_a_clipped_reward(reward):
    assert ClippedReward(low=0.0, high=1.0)(reward, response(1), key(0), 9) == min(
        1, max(0, reward)
    )
