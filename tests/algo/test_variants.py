"""Variants of published objectives, each against its own statement in objectives.py.

1. Each token's coefficient equals the objective's derivative to 1e-10, on random batches with near,
   far and extreme ratios.
2. Bounds are inclusive.
3. The error of the off-policy gradient of the best of k is of order (ρ − 1)² in expectation.
4. Every row of docs/names.yaml composes, or says why it does not.
"""

import itertools
from pathlib import Path

import numpy as np
import objectives as o
import pytest
import torch
import yaml
from test_field import assert_derivative, composed, corrected, drawn, standard

from rec_experiments.algo.batch_clips import SecondMoment, SecondMomentBounds, SecondMomentOfAll
from rec_experiments.algo.loss import tokens

KINDS = ["near", "far", "extreme"]
NAMES = yaml.safe_load((Path(__file__).parents[2] / "docs" / "names.yaml").read_text())


def best(k, bound):
    return lambda x: o.best_of_off_policy(x, k, bound)


CORRECTIONS = {
    "product_truncated": ("product", 2.0, "product", None, None),
    "token_rejected": ("one", None, "token", 0.5, 2.0),
    "masked_both": ("one", None, "product", 1 / 3, 3.0),
    "masked_token": ("token", 2.0, "product", 0.5, 2.0),
    "masked_product": ("product", 2.0, "product", 0.5, 2.0),
    "geometric": ("one", None, "mean", 0.999, 1.001),
    "geometric_token": ("token", 2.0, "mean", 0.999, 1.001),
    "k3": ("one", None, "k3", None, 0.01),
}
TENTH = "clip.low=0.1 clip.high=0.1"
MINICLIP = "clip.miniclip_low=0.3 clip.miniclip_high=0.5"
VARIANTS = {
    "cispo weight=bounded": standard(o.cispo, floor=0.8, cap=1.2),
    f"cispo weight=bounded weight.floor=0.9 weight.cap=1.1 clip=one_side {TENTH}": standard(
        o.masked_cispo, floor=0.9, cap=1.1
    ),
    "cispo weight.cap=1.28 clip=one_side clip.low=null clip.high=0.28": standard(
        o.masked_cispo, floor=0.0, cap=1.28
    ),
    "topr weight=token_tapered": lambda x: o.token_topr(x, 2 * x.rewards - 1),
    "ppo_ewma weight=capped_behavior": standard(o.capped_decoupled),
    "m2po clip=second_moment_of_all": standard(o.m2po, of_all=True),
    "m2po clip=second_moment_bounds": standard(o.m2po_bounds, 0.04),
    f"m2po clip=second_moment_bounds {MINICLIP}": standard(o.m2po_bounds, 0.04, low=0.3, high=0.5),
    "max_at_k_off_policy": best(4, 0.2),
    "max_at_k_off_policy regularizer.k=1 regularizer.bound=null": best(1, None),
    "max_at_k_off_policy regularizer.k=2 regularizer.bound=null": best(2, None),
    "max_at_k_off_policy regularizer.k=3": best(3, 0.2),
    "max_at_k_off_policy regularizer.k=99": best(99, 0.2),
    "grpo correction=geometric_token correction.cap=null correction.low=0.9 correction.high=1.1": (
        corrected(o.corrected, "token", None, "mean", 0.9, 1.1)
    ),
    **{
        f"grpo correction={name}": corrected(o.corrected, *rule)
        for name, rule in CORRECTIONS.items()
    },
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("variant", sorted(VARIANTS))
def test_variant(variant, kind):
    algorithm = composed(*variant.split())
    for seed, sizes in itertools.product(range(2), ["mixed", "one", "single"]):
        assert_derivative(algorithm, VARIANTS[variant], drawn(seed, kind, sizes))


UNLIMITED = {"miniclip_low": None, "miniclip_high": None}


def kept(piece, log_ratio, sign=1.0):
    log_ratio_BT = torch.tensor([log_ratio], dtype=torch.float64)
    return piece(log_ratio_BT, tokens(log_ratio_BT, torch.tensor([sign])))[0].tolist()


def test_second_moment_at_its_threshold():
    """(log ρ)² of ¼ and 0: binary fractions, so that their means are exact."""
    unbounded = {"low": None, "high": None}
    for cls, bounds in (
        (SecondMoment, unbounded), (SecondMomentOfAll, unbounded), (SecondMomentBounds, UNLIMITED)
    ):  # fmt: skip
        assert kept(cls(threshold=0.25, **bounds), [0.5, 0.5, 0.5]) == [True] * 3
        assert kept(cls(threshold=0.25 - 1e-6, **bounds), [0.5, 0.5, 0.5]) == [False] * 3
        assert kept(cls(threshold=0.0, **bounds), [0.0, 0.0]) == [True] * 2


def test_tokens_of_a_second_moment():
    """One token moved out, one moved back by as much: the mean over all has both."""
    bounds = {"low": None, "high": None, "threshold": 0.1}
    moved = [0.25, -0.5]  # 1/16 outward, 1/4 inward
    assert kept(SecondMoment(**bounds), moved) == [True, True]
    assert kept(SecondMomentOfAll(**bounds), moved) == [True, False]
    assert kept(SecondMomentOfAll(**bounds), moved, sign=0.0) == [True, False]
    # means of squares cut at τ²: 0.01 at 0.1; 0.0975 at 0.35, over 0.09; so 0.2 is τ and goes too
    far, threshold = [0.1, 0.2, 0.35, 0.5], {"low": None, "high": None, "threshold": 0.07}
    assert kept(SecondMoment(**threshold), far) == [True, True, True, False]
    assert kept(SecondMomentBounds(**UNLIMITED, threshold=0.07), far) == [True, False, False, False]
    wide = SecondMomentBounds(miniclip_low=0.3, miniclip_high=0.3, threshold=0.07)
    assert kept(wide, far) == [True, True, False, False]
    assert kept(wide, [-x for x in far], sign=-1.0) == [True, True, True, False]
    assert kept(wide, far, sign=-1.0) == [True] * 4


REWARDS = np.array([0.0, 0.4, 1.0])
SIZE, BEST_OF = 4, 3


def expected_gradient(algorithm, behavior, logits) -> np.ndarray:
    """Of all groups of SIZE draws from `behavior`, each of one token, with respect to the logits
    of the policy; each group counts by its probability."""
    groups = list(itertools.product(range(len(REWARDS)), repeat=SIZE))
    rows = np.array(groups).ravel()
    logp = logits - np.log(np.exp(logits).sum())
    gradient = np.zeros(len(REWARDS))
    tensors = {
        "behavior_logp": torch.from_numpy(np.log(behavior)[rows][:, None]),
        "rewards": torch.from_numpy(REWARDS[rows]),
        "groups": torch.arange(len(groups)).repeat_interleave(SIZE),
        "mask": torch.ones(len(rows), 1, dtype=torch.bool),
    }
    leaf = torch.from_numpy(logp[rows][:, None]).requires_grad_()
    (worth_B1,) = torch.autograd.grad(algorithm(logp=leaf, **tensors).loss, leaf)
    worth_GK = -worth_B1.numpy().reshape(len(groups), SIZE) * len(groups)
    for group, worth_K in zip(groups, worth_GK, strict=True):
        for y, c in zip(group, worth_K, strict=True):
            gradient += behavior[list(group)].prod() * c * (np.eye(len(REWARDS))[y] - np.exp(logp))
    return gradient


def true_gradient(logits) -> np.ndarray:
    """Of the expected best of BEST_OF draws from the policy, by listing them."""
    leaf = torch.from_numpy(logits).requires_grad_()
    policy, best_of = torch.softmax(leaf, 0), torch.zeros((), dtype=torch.float64)
    for chosen in itertools.product(range(len(REWARDS)), repeat=BEST_OF):
        best_of = best_of + policy[list(chosen)].prod() * REWARDS[list(chosen)].max()
    return torch.autograd.grad(best_of, leaf)[0].numpy()


@pytest.mark.parametrize(("off_policy", "order"), [(True, 2), (False, 1)])
def test_best_of_k_in_expectation(off_policy, order):
    """The error is quadratic in the distance of the policies if ratios are taken to first order,
    linear if they are left out, and 0 on-policy."""
    overrides = [f"regularizer.k={BEST_OF}", "regularizer.bound=null"]
    algorithm = (
        composed("max_at_k_off_policy", *overrides)
        if off_policy
        else composed("max_at_k", f"advantage.k={BEST_OF}", "advantage.without_own=false")
    )
    logits, away = np.array([0.3, -0.2, 0.1]), np.array([0.5, -1.0, 0.7])
    behavior = np.exp(logits) / np.exp(logits).sum()

    def error(distance):
        there = logits + distance * away
        found = expected_gradient(algorithm, behavior, there)
        return np.abs(found - true_gradient(there)).max()

    assert error(0.0) < 1e-14
    ratio = error(1e-2) / error(1e-3)
    assert ratio == pytest.approx(10**order, rel=0.1)


@pytest.mark.parametrize("here", [row["here"] for row in NAMES if row["here"]], ids=" ".join)
def test_names_compose(here):
    assert composed(*here).describe()
    assert all(row["here"] or row["why"] for row in NAMES)
