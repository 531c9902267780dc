"""Finite policies, for which the papers' statements can be computed exactly.

Sections 2 and 3 of the paper on its 3-arm bandit, in the limit of many samples: the data are a
distribution over the arms. A policy is a softmax of logits θ, one per arm. Theorem 1 of arXiv
2505.22257 (paper 2) on policies over any number of arms.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rec_experiments.algo.loss import Clip, tokens

Array = NDArray[np.float64]

REWARDS = np.array([0.0, 0.8, 1.0])  # Section 3
BEHAVIOR = np.array([0.3, 0.6, 0.1])  # π_b of Section 3


def log_policy(theta: Array) -> Array:
    """log π of logits, the arms along the last dimension."""
    top = theta.max(-1, keepdims=True)
    return theta - top - np.log(np.exp(theta - top).sum(-1, keepdims=True))


def policy(theta: Array) -> Array:
    """π of logits, the arms along the last dimension."""
    return np.exp(log_policy(theta))


def objective(theta: Array, start: Array, rewards: Array, tau: float) -> Array:
    """Surrogate objective J(θ; π_start) = E r − τ KL(π_θ ‖ π_start), Eq. 3."""
    log_ratio = log_policy(theta) - log_policy(start)
    return (policy(theta) * (rewards - tau * log_ratio)).sum(-1)


def surrogate_loss(theta: Array, start: Array, data: Array, rewards: Array, tau: float) -> Array:
    """Eq. 6 for data distributed as `data`: (1/K²) Σ_{i<j} (a_i − a_j)² is the variance of a."""
    a = rewards - tau * (log_policy(theta) - log_policy(start))
    mean = (data * a).sum(-1, keepdims=True)
    return (data * (a - mean) ** 2).sum(-1) / (1 + tau) ** 2


def surrogate_argmin(start: Array, rewards: Array, tau: float) -> Array:
    """Logits at which Eq. 6 is 0 and Eq. 3 is maximal: π ∝ π_start exp(r/τ), Eq. 4.

    They are the same for all data that contain every arm.
    """
    return start + rewards / tau


def reinforce(data: Array, rewards: Array, shift: float = 0.0) -> Array:
    """Coefficient of each arm's ∇ log π in Eq. 1, and in AsymRE with shift −τ (Section 4.2)."""
    return data * (rewards - (data * rewards).sum() - shift)


def clipped(theta: Array, data: Array, rewards: Array, clip: Clip) -> Array:
    """The same for REC (Section 4.1) without importance weight; the data come from π = data."""
    coefficient = reinforce(data, rewards)
    import torch

    log_ratio_B1 = torch.from_numpy(log_policy(theta) - np.log(data))[:, None]
    advantage_B = torch.from_numpy(coefficient / data)
    keep_B1 = clip(log_ratio_B1, tokens(log_ratio_B1, advantage_B))
    return coefficient * keep_B1[:, 0].numpy()


def opmd(theta: Array, data: Array, rewards: Array, tau: float) -> Array:
    """The same for OPMD (Section 4.2), its squared penalty included; the data from π = data."""
    return reinforce(data, rewards) - tau * data * (log_policy(theta) - np.log(data))


def direction(theta: Array, coefficient: Array) -> Array:
    """Σ_j coefficient_j ∇ log π(a_j), with ∇_θ log π(a_j) = e_j − π (Section 3)."""
    return coefficient - coefficient.sum() * policy(theta)


def surrogate_step(start: Array, data: Array, rewards: Array, tau: float) -> Array:
    """−∇ of Eq. 6 at θ = start, which is REINFORCE times 2τ/(1+τ)²: Eq. 7."""
    return 2 * tau / (1 + tau) ** 2 * direction(start, reinforce(data, rewards))


def trajectory(
    coefficient: Callable[[Array], Array], start: Array, rate: float, steps: int
) -> Array:
    """Logits after 0, 1, …, `steps` gradient steps, (steps + 1) x arms."""
    path = [start]
    for _ in range(steps):
        path.append(path[-1] + rate * direction(path[-1], coefficient(path[-1])))
    return np.array(path)


def cosine(u: Array, v: Array) -> float:
    """Cosine of the angle between two changes of the logits, up to shifts of all logits."""
    u, v = u - u.mean(), v - v.mean()
    return float(u @ v / np.sqrt((u @ u) * (v @ v)))


@dataclass(frozen=True, kw_only=True, slots=True)
class Cases:
    """Triples of policies with their rewards, triples x arms, and a whitening constant of each."""

    policy: Array  # π, the policy after the step
    current: Array  # π_k
    behavior: Array  # α, which drew the data
    rewards: Array
    epsilon: Array


def whitened_scale(variance: Array, epsilon: Array | float) -> Array:
    """(1 − σ_ε)/σ_ε with σ_ε = √(variance + ε), the factor of paper 2's lower bound."""
    deviation = np.sqrt(variance + epsilon)
    return (1 - deviation) / deviation


def improvement(cases: Cases) -> Array:
    """J(π) − J(π_k) of each triple."""
    return ((cases.policy - cases.current) * cases.rewards).sum(-1)


def improvement_bound(cases: Cases) -> Array:
    """Right-hand side of Theorem 1 of paper 2, of each triple.

    L_α(π) − 2 (1−σ_ε)/σ_ε TV(π, α) − 2 TV(π_k, α). It assumes rewards in [0, 1] and σ_ε ≤ 1,
    which ε ≤ 3/4 ensures. Every arm must have positive probability under α.
    """
    mean = (cases.behavior * cases.rewards).sum(-1, keepdims=True)
    centered = cases.rewards - mean
    variance = (cases.behavior * centered**2).sum(-1)
    advantage = centered / np.sqrt(variance + cases.epsilon)[:, None]
    ratio = cases.policy / cases.behavior
    return (
        (cases.behavior * ratio * advantage).sum(-1)
        - 2
        * whitened_scale(variance, cases.epsilon)
        * total_variation(cases.policy, cases.behavior)
        - 2 * total_variation(cases.current, cases.behavior)
    )


def total_variation(first: Array, second: Array) -> Array:
    """½ Σ |first − second| over the last axis."""
    return np.abs(first - second).sum(-1) / 2


def random_cases(rng: np.random.Generator, count: int, arms: int) -> Cases:
    """Policies from uniform to nearly deterministic, close to α or not; rewards of 0/1 or between.

    A quarter is on-policy (π_k = α, Corollary 1).
    """
    behavior, other, current = (_random_policies(rng, count, arms) for _ in range(3))
    far = rng.random((2, count, 1)) ** 3
    far[1, rng.random(count) < 0.25] = 0
    uniform = rng.random((count, arms))
    return Cases(
        policy=behavior + far[0] * (other - behavior),
        current=behavior + far[1] * (current - behavior),
        behavior=behavior,
        rewards=np.where(rng.random((count, 1)) < 0.5, uniform, (uniform < 0.5).astype(float)),
        epsilon=10 ** rng.uniform(-6, np.log10(0.75), count),
    )


def _random_policies(rng: np.random.Generator, count: int, arms: int) -> Array:
    """Softmax of normal logits with a random spread; never 0."""
    return policy(rng.normal(size=(count, arms)) * rng.uniform(0, 5, (count, 1)))
