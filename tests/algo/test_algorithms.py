"""The paper's algorithms: the identities of its Sections 2 to 4 (Eq. 6 to 7, Eq. 9 to 10 and
RED-Weight), randomness, masks, and errors.

test_field.py compares every preset with an independent reference.
"""

import functools

import numpy as np
import pytest
import torch

import rec_experiments
from rec_experiments.algo.inputs import Advantages, LossInput, Outcomes
from rec_experiments.common import rng
from rec_experiments.common.batch import StepIndex
from rec_experiments.common.errors import UserError

algorithm_of = functools.cache(rec_experiments.algorithm)
PRESETS = [
    "reinforce", "grpo", "rec_oneside_is", "rec_oneside_nois", "rec_twoside_is",
    "rec_twoside_nois", "rec_ring_is", "rec_ring", "opmd", "asymre", "pairwise", "red_drop",
    "red_weight",
]  # fmt: skip
B, K, T = 24, 4, 7


def batch(seed: int = 0, spread: float = 1.0) -> dict[str, torch.Tensor]:
    """A random mini-batch in float64: ratios from about exp(−3·spread) to exp(3·spread)."""
    g = torch.Generator().manual_seed(seed)
    behavior = -3 * torch.rand(B, T, generator=g, dtype=torch.float64)
    logp = behavior + spread * torch.randn(B, T, generator=g, dtype=torch.float64)
    lengths = torch.randint(1, T + 1, (B,), generator=g)
    return {
        "logp": logp.requires_grad_(),
        "behavior_logp": behavior,
        "rewards": torch.randint(0, 5, (B,), generator=g).double() / 4,
        "groups": torch.arange(B) // K,
        "mask": torch.arange(T) < lengths[:, None],
    }


def gradient(algorithm, inputs) -> torch.Tensor:
    """−dL/dlogp times the number of live tokens: the per-token coefficient."""
    (grad,) = torch.autograd.grad(algorithm(**inputs).loss, inputs["logp"])
    return -grad * inputs["mask"].sum()


def centered(inputs) -> torch.Tensor:
    r = inputs["rewards"].reshape(-1, K)
    return (r - r.mean(1, keepdim=True)).reshape(-1)


def advantages_of(algorithm, inputs) -> Advantages:
    """What the trainer makes of the rewards before any gradient; every response came to its end."""
    all_B = torch.ones(len(inputs["rewards"]), dtype=torch.bool)
    outcomes = Outcomes(inputs["rewards"], inputs["groups"], inputs["mask"], all_B, all_B)
    return algorithm.parts.advantages(outcomes, rng.generator(0, rng.DROP, 0))


def test_red_drop_is_seeded():
    algorithm, inputs = algorithm_of("red_drop"), batch(1)
    np.random.seed(1)
    first = algorithm(**inputs, seed=5, step=2).loss
    np.random.seed(2)
    torch.manual_seed(9)
    assert torch.equal(first, algorithm(**inputs, seed=5, step=2).loss)
    others = [algorithm(**inputs, seed=5, step=step).loss for step in range(3, 9)]
    assert any(not torch.equal(first, other) for other in others)


def test_count_dropped():
    inputs = batch(3)
    kept = algorithm_of("red_drop")
    counted = algorithm_of("red_drop", "data_weighting.count_dropped=true")
    credits = [advantages_of(algorithm, inputs) for algorithm in (kept, counted)]
    assert torch.equal(credits[0].advantage_B, credits[1].advantage_B)
    assert credits[0].totals.tokens < credits[1].totals.tokens == int(inputs["mask"].sum())


def test_sequence_mean_of_masked_rows():
    """Nor does a group without any other: rows 3 to 8 are group 1 and a row of each beside it."""
    inputs = batch(6)
    inputs["mask"][3:9] = False
    loss = algorithm_of("reinforce", "aggregation=sequence_mean")(**inputs).loss
    of_row = -(centered(inputs)[:, None] * inputs["logp"] * inputs["mask"]).sum(1)
    of_group = of_row.reshape(-1, K).sum(1)
    others = [group for group in range(B // K) if group != 1]
    means = of_group[others] / torch.tensor([3, 3, *[K] * (len(others) - 2)])
    torch.testing.assert_close(loss, means.mean())


def test_no_live_token():
    inputs = batch(7)
    inputs["mask"] = torch.zeros(B, T, dtype=torch.bool)
    out = algorithm_of("grpo")(**inputs)
    assert out.loss.item() == 0.0


def test_loss_on_the_meta_device():
    """A loss works on the meta device, where any .item() would raise."""
    for preset in PRESETS:
        algorithm, inputs = algorithm_of(preset), batch()
        credit = advantages_of(algorithm, inputs)
        meta = Advantages(
            credit.advantage_B.to("meta"),
            credit.mask_BT.to("meta"),
            credit.counted_B.to("meta"),
            credit.group_tokens_B.to("meta"),
            credit.totals,
        )
        loss_input = LossInput(
            logp_BT=inputs["logp"].to("meta"),
            logps={"behavior": inputs["behavior_logp"].to("meta")},
            advantages=meta,
            groups_B=inputs["groups"].to("meta"),
            version_BX=torch.zeros(B, 1, dtype=torch.long, device="meta"),
            index=StepIndex(0, 0, 0, 0),
        )
        assert algorithm.parts.loss(loss_input).loss.shape == ()


def test_other_policies_are_constants():
    """A behavior policy that was not detached changes no gradient, and gets none."""
    inputs = batch()
    sampler = inputs["behavior_logp"] - 0.1
    algorithm = algorithm_of("opmd", "correction=truncated", "correction.cap=1000")
    expected = gradient(algorithm, {**inputs, "sampler_logp": sampler})
    behavior = inputs["behavior_logp"] + (inputs["logp"] - inputs["logp"].detach())
    inputs = {**inputs, "behavior_logp": behavior, "sampler_logp": sampler}
    torch.testing.assert_close(gradient(algorithm, inputs), expected, rtol=0, atol=0)


@pytest.mark.parametrize("override", ["updates=ppo", "buffer.redraws=1", "reward=clipped"])
def test_run_configuration_is_refused(override):
    with pytest.raises(UserError, match=f"{override}: configures a run"):
        algorithm_of("grpo", override)
