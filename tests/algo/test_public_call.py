"""The public call of an algorithm: arguments, errors, randomness, masks, and given advantages."""

import dataclasses

import numpy as np
import objectives as o
import pytest
import torch
from test_field import (
    OBJECTIVES,
    WHOLE,
    assert_derivative,
    composed,
    drawn,
    whole_input,
    worth,
)

import rec_experiments
from rec_experiments.algo.inputs import Advantages, LossInput
from rec_experiments.common.errors import UserError

NEEDED = {
    "grpo": set(),
    "gspo": set(),
    "decoupled_ppo": {"proximal_logp"},
    "ppo_ewma": {"proximal_logp"},
    "mix_ppg": {"proximal_logp"},
    "a3po": {"versions", "step"},  # they determine the proximal policy
    "tis": {"sampler_logp"},
    "mis": {"sampler_logp"},
    "icepop": {"sampler_logp"},
    "copg": {"reference_logp"},
    "grpo_kl": {"reference_logp"},
}
FURTHER = {"proximal_logp", "sampler_logp", "reference_logp"}


@pytest.mark.parametrize("preset", sorted(NEEDED))
def test_needed_policies(preset):
    """The loss ignores policies that no piece reads; a missing one is an error."""
    algorithm, call = composed(preset), drawn(0, "far").call()
    if preset == "a3po":
        del call["proximal_logp"]
    expected = algorithm(**call).loss
    needed = {name: x for name, x in call.items() if name not in FURTHER - NEEDED[preset]}
    assert torch.equal(algorithm(**needed).loss, expected)
    for name in NEEDED[preset]:
        fewer = {key: x for key, x in call.items() if key != name}
        with pytest.raises(ValueError, match=f"^{name} is missing: this algorithm needs it$"):
            algorithm(**fewer)


def test_versions_and_step():
    """Without them it would be the behavior policy, and A-3PO would be GRPO."""
    versions = torch.zeros(13, dtype=torch.long)
    call = drawn(2, "far").call(proximal_logp=None, versions=versions)
    a3po, grpo = composed("a3po")(**call).loss, composed("grpo")(**call).loss
    assert not torch.isclose(a3po, grpo, rtol=1e-3)
    given = torch.from_numpy(drawn(2, "far").proximal)
    without = call | {"proximal_logp": given, "versions": None, "step": None}
    assert composed("a3po")(**without).loss.isfinite()  # a given policy needs neither
    call["versions"][3] = 10
    with pytest.raises(ValueError, match=r"^versions must be at most step=9: one is 10$"):
        composed("a3po")(**call)


@pytest.mark.parametrize("value", [float("nan"), -float("inf")])
@pytest.mark.parametrize(
    ("preset", "name"),
    [("reinforce", "logp"), ("grpo", "logp"), ("grpo", "behavior_logp"),
     ("mis", "sampler_logp"), ("grpo_kl", "reference_logp"), ("ppo_ewma", "proximal_logp")],
)  # fmt: skip
def test_not_finite(preset, name, value):
    call = drawn(0, "near").call()
    with torch.no_grad():
        call[name][0, 0] = value
    with pytest.raises(ValueError, match=f"^{name} must be finite where mask is true: row 0, tok"):
        composed(preset)(**call)
    if name not in {"logp", "behavior_logp"}:  # no piece reads it
        assert composed("reinforce")(**call).loss.isfinite()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"mask": torch.full((13, 6), 0.5)}, "mask must be true or false, or 1 or 0"),
        ({"mask": torch.full((13, 6), torch.nan)}, "mask must be true or false, or 1 or 0"),
        ({"behavior_logp": None}, "behavior_logp is missing"),
        ({"groups": torch.arange(13.0)}, "groups must be integers, they are torch.float32"),
        ({"groups": torch.ones(13).bool()}, "groups must be integers, they are torch.bool"),
        ({"versions": torch.zeros(13)}, "versions must be integers, they are torch.float32"),
        ({"rewards": torch.ones(12)}, r"rewards \(12,\) must have 13 rows"),
        ({"rewards": torch.full((13,), torch.nan)}, "rewards must be finite where judged is true"),
        ({"mask": torch.ones(13, 5)}, ".*one shape B x T"),
    ],
)
def test_wrong_arguments(changes, message):
    with pytest.raises(ValueError, match=f"^{message}"):
        composed("grpo")(**drawn(0, "near").call(**changes))


def test_rewards_or_advantages():
    algorithm, call = composed("grpo"), drawn(0, "far").call()
    with pytest.raises(ValueError, match="rewards and advantages are both given"):
        algorithm(**call, advantages=call["rewards"])
    del call["rewards"]
    with pytest.raises(ValueError, match="rewards is missing: give rewards, or advantages"):
        algorithm(**call)
    with pytest.raises(ValueError, match=r"advantages \(12,\) must have 13 rows"):
        algorithm(**call, advantages=torch.ones(12))
    with pytest.raises(ValueError, match="advantages must be finite where judged is true"):
        algorithm(**call, advantages=torch.full((13,), torch.nan))
    with pytest.raises(ValueError, match="truncation=penalise changes rewards"):
        composed("grpo", "truncation=penalise")(**call, advantages=torch.ones(13))


@pytest.mark.parametrize("preset", ["grpo", "opo", "max_at_k", "red_weight"])
def test_own_advantages_may_be_given_back(preset):
    batch, algorithm = drawn(0, "far"), composed(preset)
    rewards, groups, mask = map(torch.from_numpy, (batch.rewards, batch.groups, batch.mask))
    own = algorithm.advantages(rewards, groups, mask.sum(1))
    expected = worth(algorithm, batch)
    assert (worth(algorithm, batch, rewards=None, advantages=own) == expected).all()
    by_token = own[:, None].where(mask, torch.nan)
    assert (worth(algorithm, batch, rewards=None, advantages=by_token) == expected).all()


def test_advantages_by_token():
    call, by_token = drawn(0, "far").call(rewards=None), torch.zeros(13, 6)
    with pytest.raises(ValueError, match=r"advantages \(13, 5\) must have B rows, or the shape of"):
        composed("grpo")(**call, advantages=by_token[:, :5])
    by_token[call["mask"].sum(1).argmax(), 1] = 1.0
    with pytest.raises(
        ValueError, match="advantages must be the same at all live tokens of a resp"
    ):
        composed("grpo")(**call, advantages=by_token)


def test_exact_kl_needs_the_trainer():
    with pytest.raises(ValueError, match="needs all logits: it runs in the trainer only"):
        composed("grpo", "regularizer=kl_exact")(**drawn(0, "far").call())


def test_red_drop_is_seeded():
    algorithm, call = composed("red_drop"), drawn(1, "near").call()
    np.random.seed(1)
    first = algorithm(**call, seed=5).loss
    np.random.seed(2)
    torch.manual_seed(9)
    assert torch.equal(first, algorithm(**call, seed=5).loss)
    others = [algorithm(**{**call, "step": step}, seed=5).loss for step in range(10, 16)]
    assert any(not torch.equal(first, other) for other in others)


def test_count_dropped():
    batch = drawn(1, "near")
    kept, counted = (
        whole_input(composed("red_drop", f"data_weighting.count_dropped={each}").parts, batch)
        for each in (False, True)
    )
    assert torch.equal(kept.advantages.advantage_B, counted.advantages.advantage_B)
    assert kept.advantages.totals.tokens < counted.advantages.totals.tokens == batch.mask.sum()


def test_a_group_without_live_tokens():
    batch = drawn(6, "near")
    batch.mask[batch.groups == 1] = False
    algorithm = composed("reinforce", "aggregation=sequence_mean")
    assert_derivative(algorithm, lambda x: o.sum_mean(x, x.mean[:, None] * x.logp), batch)
    batch.mask[:] = False
    assert composed("grpo")(**batch.call()).loss == 0


@pytest.mark.parametrize("preset", sorted(set(OBJECTIVES) - WHOLE))
def test_loss_on_the_meta_device(preset):
    """There any .item() raises."""
    parts = composed(preset).parts
    given = whole_input(parts, drawn(0, "far"))

    def on_meta(cls, value):
        moved = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
        tensors = {k: x.to("meta") for k, x in moved.items() if isinstance(x, torch.Tensor)}
        return cls(**{**moved, **tensors})

    given = on_meta(
        LossInput,
        dataclasses.replace(
            given,
            logps={role: x.to("meta") for role, x in given.logps.items()},
            advantages=on_meta(Advantages, given.advantages),
        ),
    )
    assert parts.loss(given).loss.shape == ()


def test_other_policies_are_constants():
    """A behavior policy that was not detached changes no gradient, and gets none."""
    algorithm = composed("opmd", "correction=truncated", "correction.cap=1000")
    batch = drawn(0, "far")
    call = batch.call()
    moving = call["behavior_logp"] + (call["logp"] - call["logp"].detach()).nan_to_num()
    loss = algorithm(**{**call, "behavior_logp": moving}).loss
    (found,) = torch.autograd.grad(loss, call["logp"])
    assert (found.numpy() == worth(algorithm, batch)).all()


@pytest.mark.parametrize("override", ["updates=ppo", "buffer.redraws=1", "reward=noise"])
def test_run_configuration_is_refused(override):
    with pytest.raises(UserError, match=f"{override}: configures a run"):
        rec_experiments.algorithm("grpo", override)
