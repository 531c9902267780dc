"""From outcomes to advantages.

1. Rewards equal to the group's mean have advantage exactly 0 and count as positives.
2. A response that could not be judged is in no baseline, loss or denominator.
3. A response cut at the length limit is trained on, masked out, or penalised.
4. sequence_mean is the mean over groups of the mean over the group's live sequences (Eq. 10).
"""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from test_field import Batch, composed, drawn, worth

from rec_experiments.algo.advantages import GroupStandard, center, keep_balanced
from rec_experiments.common.batch import Responses, SampleKey
from rec_experiments.rollout.reward import FlipNoise, OverlongPenalty
from rec_experiments.training.metrics import quantiles

FORMAT_REWARDS = [1.1, 0.9, 0.1, -0.1]  # accuracy and format bonus, as the paper's runs had them


DTYPES = st.sampled_from([torch.float32, torch.float64])


@given(st.sampled_from([*FORMAT_REWARDS, 0.3, 1 / 3, 1e-9, 123.456]), st.integers(1, 40), DTYPES)
def test_equal_rewards(reward, size, dtype):
    rewards_B, groups_B = (
        torch.full((size,), reward, dtype=dtype).double(),
        torch.zeros(size).long(),
    )
    assert (center(rewards_B, groups_B) == 0).all()
    assert (GroupStandard(ddof=0, epsilon=0.0)(rewards_B, groups_B) == 0).all()
    assert keep_balanced(rewards_B, groups_B, np.random.default_rng(0)).all()


@given(st.lists(st.sampled_from(FORMAT_REWARDS), min_size=1, max_size=8), st.integers(0, 3), DTYPES)
def test_reward_at_the_mean(above, copies, dtype):
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
def test_small_differences(steps, unit):
    values_B = torch.tensor([unit * step for step in steps], dtype=torch.float64)
    center_B = center(values_B, torch.zeros(len(steps)).long())
    mean = sum(steps) / len(steps)
    for step, centered in zip(steps, center_B.tolist(), strict=True):
        if len(steps) * step != sum(steps):
            assert centered != 0
            assert centered == pytest.approx(unit * (step - mean), rel=1e-9)


@pytest.mark.parametrize("reward", [0.1, 0.9, 1.1, 1 / 3, 1000.3])
@pytest.mark.parametrize("size", [2, 64])
def test_float32_rounding(reward, size):
    """Every second one is the next number after the others."""
    rewards_B = torch.full((size,), reward, dtype=torch.float32)
    rewards_B[::2] = torch.nextafter(rewards_B[::2], torch.tensor(torch.inf))
    assert len(rewards_B.unique()) == 2
    assert (center(rewards_B.double(), torch.zeros(size).long()) == 0).all()


def rows_of(batch: Batch, rows) -> Batch:
    return Batch(**{name: value[rows] for name, value in vars(batch).items()})


@pytest.mark.parametrize("preset", ["reinforce", "grpo", "opmd", "asymre", "red_drop", "pairwise"])
def test_unjudged_rows(preset):
    """Nor does a group matter of which none was judged."""
    batch, algorithm = drawn(0, "far"), composed(preset)
    judged = (np.arange(13) != 1) & (batch.groups != 3)
    rewards = torch.from_numpy(np.where(judged, batch.rewards, np.nan))  # nobody reads it
    found = worth(algorithm, batch, judged=torch.from_numpy(judged), rewards=rewards)
    assert (found[~judged] == 0).all()
    expected = worth(algorithm, rows_of(batch, judged))
    np.testing.assert_allclose(found[judged], expected, rtol=1e-12, atol=1e-15)
    assert (worth(algorithm, batch, judged=torch.zeros(13).bool()) == 0).all()


def test_truncated_responses():
    batch, plain = drawn(0, "far"), composed("reinforce")
    finished = np.arange(13) % 3 != 2
    given = {"finished": torch.from_numpy(finished)}
    expected = worth(plain, batch)
    assert (worth(plain, batch, **given) == expected).all()
    masked = worth(composed("reinforce", "truncation=mask"), batch, **given)
    assert (masked[~finished] == 0).all()  # the baseline still has their rewards
    share = batch.mask.sum() / batch.mask[finished].sum()
    np.testing.assert_allclose(masked[finished], share * expected[finished], rtol=1e-12)
    penalty = composed("reinforce", "truncation=penalise", "truncation.penalty=0.25")
    penalised = worth(penalty, batch, **given)
    batch.rewards = batch.rewards - 0.25 * ~finished
    np.testing.assert_allclose(penalised, worth(plain, batch), rtol=1e-12, atol=1e-15)


@given(st.integers(1, 300), st.integers(0, 1000))
def test_quantiles(count, seed):
    values = torch.randn(count, generator=torch.Generator().manual_seed(seed)).double()
    shares = [0.0, 0.01, 0.5, 0.99, 1.0]
    expected = torch.quantile(values, values.new_tensor(shares))
    assert torch.equal(quantiles(values, shares), expected)


def test_quantiles_of_many_tokens():
    values = torch.arange(2**24 + 2, dtype=torch.float64)
    assert quantiles(values, [0.5]).item() == (2**24 + 1) / 2


def key(n: int) -> SampleKey:
    return SampleKey(seed=0, stream=0, batch=n, group=n % 7, response=n % 5)


def responses(*lengths: int, finished: bool = True) -> Responses:
    return Responses.of([[1] * n for n in lengths], finished=[finished] * len(lengths))


def test_overlong_penalty():
    """DAPO's Eq. 13: 0 up to limit − buffer, −1 at the limit, a line between."""
    penalty, ones = OverlongPenalty(buffer=10), torch.ones(5, dtype=torch.float64)
    found = penalty(ones, responses(1, 40, 41, 45, 50), [key(0)] * 5, 50)
    assert found.tolist() == pytest.approx([1.0, 1.0, 0.9, 0.5, 0.0])
    assert penalty(ones[:1], responses(50, finished=False), [key(0)], 50).tolist() == [0.0]


def test_flip_noise():
    noise, keys = FlipNoise(share=0.3, low=-0.1, high=1.1), [*map(key, range(2000))]
    rewards = torch.full((2000,), 1.1, dtype=torch.float64)
    flips = noise(rewards, responses(*[1] * 2000), keys, 9).tolist()
    assert flips == noise(rewards, responses(*[3] * 2000), keys, 9).tolist()
    assert set(flips) == {1.1, -0.1 + 1.1 - 1.1}
    assert 0.25 < np.mean(np.array(flips) < 0) < 0.35
    never = FlipNoise(share=0.0, low=0, high=1)
    assert torch.equal(never(rewards, responses(*[1] * 2000), keys, 9), rewards)
