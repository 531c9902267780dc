"""The field's methods: each preset against its paper's objective, written by another hand.

1. What a token is worth is the float64 reference's gradient to 1e-10, on random batches, at the
   bounds and far off; with empty and single-token responses, equal rewards, a group of one.
2. The references are gradients: finite differences of those objectives that are differentiable.
3. No advantage, no gradient; padding, and the order of rows, change nothing.
"""

import dataclasses
import functools
import math

import numpy as np
import pytest
import references
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import rec_experiments
from rec_experiments.errors import UserError

composed = functools.cache(rec_experiments.algorithm)
STEP = 9  # gradient steps taken, where versions are 0 to 8


@dataclasses.dataclass
class Batch:
    """A mini-batch as NumPy has it; log-probabilities of all policies are B x T."""

    logp: np.ndarray
    behavior: np.ndarray
    proximal: np.ndarray
    reference: np.ndarray
    sampler: np.ndarray
    rewards: np.ndarray
    groups: np.ndarray
    mask: np.ndarray
    versions: np.ndarray

    @property
    def mean(self):
        return references.group_mean_advantage(self.rewards, self.groups)

    @property
    def standard(self):
        return references.group_std_advantage(self.rewards, self.groups)

    @property
    def whitened(self):
        return references.whitened_advantage(self.rewards, self.groups)

    @property
    def against_behavior(self):
        return self.logp, self.behavior, self.standard, self.mask

    def call(self, **changes) -> dict:
        """The arguments of the public call."""
        tensors = {
            "logp": torch.from_numpy(self.logp.copy()).requires_grad_(),
            "behavior_logp": torch.from_numpy(self.behavior),
            "proximal_logp": torch.from_numpy(self.proximal),
            "reference_logp": torch.from_numpy(self.reference),
            "sampler_logp": torch.from_numpy(self.sampler),
            "rewards": torch.from_numpy(self.rewards),
            "groups": torch.from_numpy(self.groups),
            "mask": torch.from_numpy(self.mask),
            "versions": torch.from_numpy(self.versions),
        }
        return {**tensors, "step": STEP, **changes}


def masked(reference, mask, *arguments, **named):
    return reference(*arguments, mask=mask, **named)[1]


def interpolated(x: Batch) -> np.ndarray:
    """A-3PO one step behind: α = (v_prox − v_b)/(v_θ − v_b), v_prox = v_θ − 1, but at least v_b."""
    share = np.array([max(STEP - 1 - v, 0) / max(STEP - v, 1) for v in x.versions])
    moved = np.where(x.mask, x.logp, 0.0) - np.where(x.mask, x.behavior, 0.0)
    return np.where(x.mask, x.behavior, 0.0) + share[:, None] * moved


def kl(x: Batch, mask) -> np.ndarray:
    """Of GRPO with a k3 penalty."""
    clipped = references.ppo_clip(x.logp, x.behavior, x.whitened, mask)
    return clipped[1] + references.k3_kl(x.logp, x.reference, mask, beta=0.1)[1]


def varied(x: Batch) -> np.ndarray:
    rows = [len({x.rewards[j] for j in np.flatnonzero(x.groups == g)}) > 1 for g in x.groups]
    return x.mask & np.array(rows)[:, None]


def of_versions(x: Batch, weights) -> np.ndarray:
    return references.ppo_clip(*x.against_behavior, weights=weights)[1]


r = references
GRADIENTS = {
    "dr_grpo": lambda x: r.dr_grpo(x.logp, x.behavior, x.mean, x.mask, x.groups)[1],
    "dapo": lambda x: r.ppo_clip(*x.against_behavior, low=0.2, high=0.28)[1],
    "gspo": lambda x: r.grouped_gspo(*x.against_behavior, x.groups)[1],
    "gmpo": lambda x: r.gmpo(*x.against_behavior, x.groups)[1],
    "cispo": lambda x: r.cispo(*x.against_behavior, cap=5.0)[1],
    "topr": lambda x: r.tapered_reinforce(x.logp, x.behavior, 2 * x.rewards - 1, x.mask, x.groups)[
        1
    ],
    "sppo": lambda x: r.sppo(*x.against_behavior)[1],
    "decoupled_ppo": lambda x: r.decoupled_ppo(x.logp, x.behavior, x.proximal, x.standard, x.mask)[
        1
    ],
    "ppo_ewma": lambda x: r.ppo_ewma(x.logp, x.behavior, x.proximal, x.standard, x.mask)[1],
    "sfpo": lambda x: r.ppo_clip(*x.against_behavior)[1],
    "a3po": lambda x: r.decoupled_ppo(x.logp, x.behavior, interpolated(x), x.standard, x.mask)[1],
    "tis": lambda x: of_versions(x, r.truncated_weights(x.behavior, x.sampler, x.mask)),
    "mis": lambda x: of_versions(x, r.masked_weights(x.behavior, x.sampler, x.mask)),
    "icepop": lambda x: of_versions(x, r.band_weights(x.behavior, x.sampler, x.mask)),
    "m2po": lambda x: r.m2po(*x.against_behavior)[1],
    "bapo": lambda x: r.bapo(
        *x.against_behavior, low_end=0.9, high_end=3.0, step_low=0.02, step_high=0.05, target=0.4
    )[1],
    "sapo": lambda x: r.sapo(*x.against_behavior, x.groups)[1],
    "dppo_tv": lambda x: r.dppo(*x.against_behavior, "tv", 0.2, 0.2)[1],
    "dppo_kl": lambda x: r.dppo(*x.against_behavior, "kl", 0.05, 0.05)[1],
    "vespo": lambda x: r.vespo(*x.against_behavior, x.groups)[1],
    "rloo": lambda x: r.sequence_reinforce(
        x.logp, r.leave_one_out_advantage(x.rewards, x.groups), x.mask, x.groups
    )[1],
    "copg": lambda x: r.copg(x.logp, x.reference, x.rewards, x.mask, x.groups)[1],
    "oapl": lambda x: r.oapl(
        x.logp, x.behavior, r.optimal_advantage(x.rewards, x.groups), x.mask, x.groups
    )[1],
    "maxrl": lambda x: r.sequence_reinforce(
        x.logp, r.maxrl_advantage(x.rewards, x.groups), x.mask, x.groups
    )[1],
    "max_at_k": lambda x: r.sequence_reinforce(
        x.logp, r.max_at_k_advantage(x.rewards, x.groups), x.mask, x.groups
    )[1],
    "mix_ppg": lambda x: r.around_proximal(x.logp, x.behavior, x.proximal, x.standard, x.mask)[1],
    "grpo_kl": lambda x: kl(x, x.mask),
    "grpo_zero_variance": lambda x: kl(x, varied(x)),
}
# Choices that are no preset of their own: overrides of grpo.
CHOICES = {
    "region=dual": lambda x: r.dual_clip(*x.against_behavior)[1],
    "regularizer=kl_k1": lambda x: (
        r.ppo_clip(*x.against_behavior)[1] + r.k1_kl(x.logp, x.reference, x.mask, beta=0.1)[1]
    ),
    "regularizer=kl_k2": lambda x: (
        r.ppo_clip(*x.against_behavior)[1] + r.k2_kl(x.logp, x.reference, x.mask, beta=0.1)[1]
    ),
    "correction=masked": lambda x: of_versions(
        x, r.masked_weights(x.behavior, x.sampler, x.mask, kept="one")
    ),
}
SIZES = {"mixed": [4, 5, 1, 3], "one": [6], "single": [1]}
BOUNDS = [math.log1p(b) for b in (-0.2, 0.2, 0.28, -0.6, 2.0, 3e-4, -1 / 13, 0.3)]


def drawn(seed: int, kind: str, sizes: str = "mixed", empty: bool = True) -> Batch:
    """kind: near, far or extreme random ratios, or all at a bound or a hair beside it. The second
    group has equal rewards, the third row no token, the fourth one."""
    rng = np.random.default_rng(seed)
    groups = np.repeat(np.arange(len(SIZES[sizes])), SIZES[sizes])
    rows, tokens = len(groups), 6

    def ratios():
        spread = {"near": 0.05, "far": 1.0, "extreme": 8.0, "bounds": 1.0}[kind]
        if kind == "bounds":
            return rng.choice(BOUNDS, (rows, tokens)) + rng.choice([-1e-9, 1e-9], (rows, tokens))
        return np.clip(spread * rng.normal(size=(rows, tokens)), -19.9, 19.9)

    behavior = -3 * rng.random((rows, tokens)) - (20.0 if kind == "extreme" else 3.1)
    lengths = rng.integers(1, tokens + 1, rows)
    if rows > 4:
        lengths[2], lengths[3] = (0 if empty else 1), 1
    rewards = rng.integers(0, 3, rows) / 2
    rewards[groups == 1] = 0.9
    mask = np.arange(tokens) < lengths[:, None]
    near = 0.02 * rng.normal(size=(rows, tokens))
    logp = behavior + ratios()
    batch = Batch(
        logp=logp,
        behavior=behavior,
        proximal=behavior + near,
        reference=logp - ratios(),
        sampler=behavior + (near if kind == "near" else 0.4 * ratios()),
        rewards=rewards,
        groups=groups,
        mask=mask,
        versions=rng.integers(0, STEP, rows),
    )
    for name in ("logp", "behavior", "proximal", "reference", "sampler"):
        array = getattr(batch, name)
        array[~mask] = rng.choice([np.nan, np.inf, -np.inf, 7.0], size=int((~mask).sum()))
    return batch


def worth(algorithm, batch: Batch, **changes) -> np.ndarray:
    """The gradient of the loss with respect to each token's log-probability."""
    call = batch.call(**changes)
    if call.get("proximal_logp") is not None and algorithm.proximal.kind == "interpolated":
        call["proximal_logp"] = None  # so that it is computed
    (gradient,) = torch.autograd.grad(algorithm(**call).loss, call["logp"])
    return gradient.numpy()


@pytest.mark.parametrize("kind", ["near", "far", "extreme", "bounds"])
@pytest.mark.parametrize("preset", sorted(GRADIENTS))
def test_a_preset_is_its_papers_objective(preset, kind):
    algorithm = composed(preset)
    for seed in range(4):
        for sizes in SIZES:
            batch = drawn(seed, kind, sizes, empty=preset != "copg")
            found, expected = worth(algorithm, batch), GRADIENTS[preset](batch)
            np.testing.assert_allclose(found, expected, rtol=1e-10, atol=1e-13)


@pytest.mark.parametrize("kind", ["near", "far", "extreme", "bounds"])
@pytest.mark.parametrize("choice", sorted(CHOICES))
def test_a_choice_is_its_papers_objective(choice, kind):
    algorithm = composed("grpo", choice)
    for seed in range(4):
        batch = drawn(seed, kind)
        np.testing.assert_allclose(
            worth(algorithm, batch), CHOICES[choice](batch), rtol=1e-10, atol=1e-13
        )


@pytest.mark.parametrize("preset", ["dppo_tv", "dppo_kl"])
def test_a_divergence_of_likely_tokens_which_can_be_large_either_way(preset):
    for seed in range(8):
        batch, rng = drawn(seed, "near"), np.random.default_rng(seed)
        for array in (batch.logp, batch.behavior):
            array[batch.mask] = np.log(rng.uniform(0.02, 0.98, batch.mask.sum()))
        found, expected = worth(composed(preset), batch), GRADIENTS[preset](batch)
        np.testing.assert_allclose(found, expected, rtol=1e-10, atol=1e-13)


@pytest.mark.parametrize("without_own", [True, False])
@pytest.mark.parametrize("k", [1, 2, 3, 5, 9])
def test_the_best_of_k_over_all_sets(k, without_own):
    rng = np.random.default_rng(k)
    rewards, groups = rng.integers(0, 4, 17) / 3, rng.integers(0, 3, 17)
    expected = references.max_at_k_advantage(rewards, groups, k, without_own)
    piece = composed(
        "max_at_k", f"advantage.k={k}", f"advantage.without_own={without_own}"
    ).parts.advantage
    found = piece(torch.from_numpy(rewards), torch.from_numpy(groups)).numpy()
    np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-13)


OBJECTIVES = {
    "ppo_clip": lambda x, p: r.ppo_clip(p, x.behavior, x.standard, x.mask),
    "gspo": lambda x, p: r.grouped_gspo(p, x.behavior, x.standard, x.mask, x.groups, 0.3, 0.4),
    "gmpo": lambda x, p: r.gmpo(p, x.behavior, x.standard, x.mask, x.groups),
    "sppo": lambda x, p: r.sppo(p, x.behavior, x.standard, x.mask),
    "sapo": lambda x, p: r.sapo(p, x.behavior, x.standard, x.mask, x.groups),
    "dr_grpo": lambda x, p: r.dr_grpo(p, x.behavior, x.mean, x.mask, x.groups),
    "decoupled_ppo": lambda x, p: r.decoupled_ppo(p, x.behavior, x.proximal, x.mean, x.mask),
    "around_proximal": lambda x, p: r.around_proximal(p, x.behavior, x.proximal, x.mean, x.mask),
    "dual_clip": lambda x, p: r.dual_clip(p, x.behavior, x.standard, x.mask),
    "copg": lambda x, p: r.copg(p, x.reference, x.rewards, x.mask, x.groups),
    "oapl": lambda x, p: r.oapl(p, x.behavior, x.mean, x.mask, x.groups, beta=0.3),
    "k1": lambda x, p: r.k1_kl(p, x.reference, x.mask),
    "k2": lambda x, p: r.k2_kl(p, x.reference, x.mask),
    "k3": lambda x, p: r.k3_kl(p, x.reference, x.mask),
}


@pytest.mark.parametrize("name", sorted(OBJECTIVES))
def test_a_reference_is_the_gradient_of_its_objective(name):
    """Central differences; at random ratios no token is at a bound."""
    objective, step = OBJECTIVES[name], 1e-6
    batch = drawn(0, "far", empty=name != "copg")
    _, gradient = objective(batch, batch.logp)
    assert np.abs(gradient).max() > 1e-3
    for i, t in zip(*np.nonzero(batch.mask), strict=True):
        moved = [batch.logp.copy() for _ in range(2)]
        moved[0][i, t] += step
        moved[1][i, t] -= step
        above, below = (objective(batch, logp)[0] for logp in moved)
        assert gradient[i, t] == pytest.approx((above - below) / (2 * step), rel=1e-6, abs=1e-8)


NO_BASELINE = {"topr"}  # a reward of ½ is its 0, whatever the group
PENALISED = {"grpo_kl", "copg", "oapl"}  # their penalty has a gradient without any advantage


@pytest.mark.parametrize("preset", sorted(set(GRADIENTS) - PENALISED))
def test_no_advantage_is_no_gradient(preset):
    batch = drawn(1, "far")
    batch.rewards[:] = 0.5 if preset in NO_BASELINE else 0.9
    found = worth(composed(preset), batch)
    assert (found == 0).all()


@pytest.mark.parametrize("preset", sorted(GRADIENTS))
def test_padding_and_the_order_of_rows_change_nothing(preset):
    algorithm = composed(preset)
    batch = drawn(2, "far", empty=preset != "copg")
    expected = worth(algorithm, batch)
    order = np.random.default_rng(0).permutation(len(batch.groups))
    fields = [field.name for field in dataclasses.fields(Batch)]
    shuffled = Batch(**{name: getattr(batch, name)[order] for name in fields})
    shuffled.groups = 7 - 3 * shuffled.groups  # any integers
    for name in ("logp", "behavior", "proximal", "reference", "sampler"):
        wider = np.pad(getattr(shuffled, name), ((0, 0), (0, 2)), constant_values=np.nan)
        setattr(shuffled, name, wider)
    shuffled.mask = np.pad(shuffled.mask, ((0, 0), (0, 2)))
    found = worth(algorithm, shuffled)
    assert (found[:, -2:] == 0).all()
    np.testing.assert_allclose(found[:, :-2], expected[order], rtol=1e-10, atol=1e-14)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from(sorted(GRADIENTS)))
def test_the_gradient_is_finite_whatever_the_ratios(seed, preset):
    batch = drawn(seed, "extreme")
    for name in ("logp", "proximal", "reference", "sampler"):
        array = getattr(batch, name)
        array[batch.mask] += 39 * (array[batch.mask] - batch.behavior[batch.mask])
    assert np.isfinite(worth(composed(preset), batch)).all()


def test_a_negative_reward_is_no_success_rate():
    batch = drawn(0, "near")
    batch.rewards[0] = -0.1
    message = r"advantage.kind=relative_to_mean: a reward is -0.1; must be at least 0"
    with pytest.raises(UserError, match=message):
        worth(composed("maxrl"), batch)
