"""What these tests lock: the closed forms of the finite policies behind the computed figures.

1. Eq. 6 and Eq. 7 equal a sum over pairs, a finite difference, and the loss that training uses.
2. The argmin of the surrogate is where a general minimiser goes, and Eq. 3 is greatest there.
3. Section 3: REINFORCE on fixed data takes the second arm; clipping and OPMD keep the third alive.
4. Theorem 1 of paper 2 holds, and the check finds violations where its assumption is broken.
"""

import itertools
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rec_experiments import algorithm
from rec_experiments.analysis.figures import bandit
from rec_experiments.analysis.figures.bandit import BEHAVIOR, REWARDS
from rec_experiments.analysis.figures.computed import three_arms

SAMPLES = np.repeat([0, 1, 2], [3, 6, 1])  # ten samples distributed exactly as π_b
logits = st.lists(st.floats(-3, 3), min_size=3, max_size=3).map(np.array)
taus = st.floats(0.1, 10)


@given(logits, logits, taus)
def test_surrogate_loss_is_the_mean_over_pairs_of_samples(theta, start, tau):
    a = REWARDS - tau * (bandit.log_policy(theta) - bandit.log_policy(start))
    k = len(SAMPLES)
    pairs = itertools.combinations(SAMPLES, 2)
    expected = sum((a[i] - a[j]) ** 2 for i, j in pairs) / (k * (1 + tau)) ** 2
    found = bandit.surrogate_loss(theta, start, BEHAVIOR, REWARDS, tau)
    assert found == pytest.approx(expected, rel=1e-9, abs=1e-12)


@given(logits, taus)
def test_step_descends_the_surrogate_loss_at_its_start(start, tau):
    h = 1e-5
    slope = [
        bandit.surrogate_loss(start + h * unit, start, BEHAVIOR, REWARDS, tau)
        - bandit.surrogate_loss(start - h * unit, start, BEHAVIOR, REWARDS, tau)
        for unit in np.eye(3)
    ]
    found = bandit.surrogate_step(start, BEHAVIOR, REWARDS, tau)
    np.testing.assert_allclose(found, -np.array(slope) / (2 * h), atol=1e-8)


def test_a_general_minimiser_of_the_surrogate_loss_finds_its_argmin():
    start, tau = np.array([0.4, -0.3, 0.1]), 0.7
    theta = torch.tensor(start, requires_grad=True)
    data, rewards = torch.tensor(BEHAVIOR), torch.tensor(REWARDS)
    optimizer = torch.optim.LBFGS([theta], max_iter=200, line_search_fn="strong_wolfe")

    def loss() -> torch.Tensor:
        optimizer.zero_grad()
        log_ratio = theta.log_softmax(0) - torch.tensor(start).log_softmax(0)
        a = rewards - tau * log_ratio
        value = (data * (a - (data * a).sum()) ** 2).sum()
        value.backward()
        return value

    optimizer.step(loss)
    found = bandit.policy(bandit.surrogate_argmin(start, REWARDS, tau))
    np.testing.assert_allclose(found, theta.softmax(0).detach().numpy(), atol=1e-5)


@given(logits, logits, taus)
def test_no_policy_beats_the_argmin_on_the_surrogate_objective(theta, start, tau):
    argmin = bandit.surrogate_argmin(start, REWARDS, tau)
    best = bandit.objective(argmin, start, REWARDS, tau)
    assert bandit.objective(theta, start, REWARDS, tau) <= best + 1e-9
    scale = bandit.policy(start) * np.exp(REWARDS / tau)
    np.testing.assert_allclose(bandit.policy(argmin), scale / scale.sum(), atol=1e-12)


METHODS = {
    "REINFORCE": ["reinforce"],
    "REC-OneSide-NoIS (0.2)": ["rec_oneside_nois"],
    "REC-OneSide-NoIS (0.6, 2.0)": ["rec_oneside_nois", "clip.low=0.6", "clip.high=2.0"],
    "OPMD (0.1)": ["opmd", "regularizer.tau=0.1"],
    "AsymRE (-0.1)": ["asymre", "advantage.shift=-0.1"],
}


@pytest.mark.parametrize("name", METHODS)
def test_the_figure_moves_the_policy_as_the_preset_would(name):
    """Against −∇ of the preset's loss on ten one-token responses drawn by π_b."""
    assert list(METHODS) == list(three_arms.METHODS)
    loss, rng = algorithm(*METHODS[name]), np.random.default_rng(0)
    for _ in range(50):
        theta = np.log(BEHAVIOR) + rng.normal(size=3)
        logits = torch.tensor(theta, requires_grad=True)
        found = loss(
            logp=logits.log_softmax(0)[SAMPLES][:, None],
            behavior_logp=torch.tensor(np.log(BEHAVIOR))[SAMPLES][:, None],
            groups=torch.zeros(len(SAMPLES), dtype=torch.long),
            mask=torch.ones(len(SAMPLES), 1, dtype=torch.bool),
            rewards=torch.tensor(REWARDS[SAMPLES]),
        )
        (gradient,) = torch.autograd.grad(found.loss, logits)
        moved = bandit.direction(theta, three_arms.METHODS[name](theta))
        np.testing.assert_allclose(moved, -gradient.numpy(), atol=1e-12)


def end(name: str) -> np.ndarray:
    path = bandit.trajectory(three_arms.METHODS[name], np.log(BEHAVIOR), rate=1.0, steps=2000)
    return bandit.policy(path[-1])


def test_reinforce_on_fixed_data_takes_the_second_arm():
    np.testing.assert_allclose(bandit.reinforce(BEHAVIOR, REWARDS), [-0.174, 0.132, 0.042])
    np.testing.assert_allclose(end("REINFORCE"), [0, 1, 0], atol=1e-3)
    # The same data under a policy gradient that is on-policy: the best arm.
    on_policy = bandit.trajectory(
        lambda theta: bandit.reinforce(bandit.policy(theta), REWARDS), np.log(BEHAVIOR), 1.0, 5000
    )
    np.testing.assert_allclose(bandit.policy(on_policy[-1]), [0, 0, 1], atol=1e-2)


def test_regularised_updates_come_to_rest_where_their_stationary_point_lies():
    # Once the first arm is clipped, the others are imitated in proportion to their coefficients.
    np.testing.assert_allclose(
        end("REC-OneSide-NoIS (0.6, 2.0)"), [0, 0.132 / 0.174, 0.042 / 0.174], atol=3e-3
    )
    narrow = end("REC-OneSide-NoIS (0.2)")
    assert np.abs(np.log(narrow[1:] / BEHAVIOR[1:])).max() < np.log(1.2) + 0.05
    opmd = end("OPMD (0.1)")
    drift = np.log(opmd) - np.log(BEHAVIOR)
    residual = BEHAVIOR * (REWARDS - 0.58 - 0.1 * drift) + opmd * 0.1 * (BEHAVIOR * drift).sum()
    np.testing.assert_allclose(residual, 0, atol=1e-4)


def test_lower_bound_is_the_theorems_formula_written_out():
    cases = bandit.random_cases(np.random.default_rng(1), 20, 4)
    found = bandit.improvement_bound(cases)
    for n in range(20):
        alpha, reward = cases.behavior[n], cases.rewards[n]
        mean = sum(a * r for a, r in zip(alpha, reward, strict=True))
        variance = sum(a * (r - mean) ** 2 for a, r in zip(alpha, reward, strict=True))
        sigma = (variance + cases.epsilon[n]) ** 0.5
        gain = sum(p * (r - mean) / sigma for p, r in zip(cases.policy[n], reward, strict=True))
        far = sum(abs(p - a) for p, a in zip(cases.policy[n], alpha, strict=True)) / 2
        stale = sum(abs(p - a) for p, a in zip(cases.current[n], alpha, strict=True)) / 2
        expected = gain - 2 * (1 - sigma) / sigma * far - 2 * stale
        assert found[n] == pytest.approx(expected, rel=1e-9, abs=1e-12)


def test_theorem_holds_and_a_broken_assumption_is_noticed():
    cases = bandit.random_cases(np.random.default_rng(2), 3000, arms=3)
    for policies in (cases.policy, cases.current, cases.behavior):
        np.testing.assert_allclose(policies.sum(1), 1)
        assert policies.min() > 0
    assert (bandit.improvement_bound(cases) <= bandit.improvement(cases) + 1e-9).all()
    scaled = replace(cases, rewards=8 * cases.rewards)  # the theorem wants rewards in [0, 1]
    assert (bandit.improvement_bound(scaled) > bandit.improvement(scaled) + 1e-9).any()
