"""Identities between methods, at limits of their parameters and of the batch: where two objectives
are one, so are their gradients."""

import dataclasses

import numpy as np
import pytest
import torch
from test_field import CONF, STEP, Batch, composed, drawn, worth


def same(one, other, batch: Batch, rtol: float = 1e-12, **changes) -> None:
    found = worth(composed(*one), batch, **changes)
    assert np.abs(found).max() > 0
    np.testing.assert_allclose(found, worth(composed(*other), batch), rtol=rtol, atol=1e-15)


def far(**changes) -> Batch:
    return dataclasses.replace(drawn(3, "far"), **changes)


def one_token_each() -> Batch:
    batch = drawn(3, "far", empty=False)
    return dataclasses.replace(batch, mask=batch.mask & (np.arange(6) == 0))


ALWAYS = {  # two methods, on any batch
    "A ring that begins at the inner bounds is one-sided": (
        ("rec_ring", "clip.outer_low=0.2", "clip.outer_high=0.2"),
        ("rec_oneside_nois",),
    ),
    "A ring without outer bounds is two-sided": (
        ("rec_ring", "clip.outer_low=null", "clip.outer_high=null"),
        ("rec_twoside_nois",),
    ),
    **{
        f"{preset} {bounds} is unclipped": ((preset, *bounds.split()), (preset, "clip=none"))
        for preset, bounds in (
            ("grpo", "clip.low=1 clip.high=null"),
            ("rec_twoside_is", "clip.low=null clip.high=null"),
            ("rec_ring", "clip.low=null clip.high=null"),
            ("mix_ppg", "clip.low=null clip.high=null"),
            ("dppo_kl", "clip.delta_low=null clip.delta_high=null"),
            ("gmpo", "clip.log_low=null clip.log_high=null"),
            ("ipo", "clip.delta=1"),
            ("vaco", "clip.bound=null"),
            ("m2po", "clip.threshold=1e9"),
        )
    },
    "M2PO without room keeps what has not moved outwards": (
        ("m2po", "clip.threshold=0"),
        ("grpo", "clip.low=0", "clip.high=0"),
    ),
    "M2PO's bounds without room end at the miniclip": (
        ("m2po", "clip=second_moment_bounds", "clip.threshold=0", "clip.miniclip_high=0.5"),
        ("grpo", "clip.low=0", "clip.high=0.5"),
    ),
    **{
        f"BAPO's search with {end} ends where it starts": (
            ("bapo", f"clip.{end}"),
            ("grpo", "clip.low=0.4", "clip.high=0.2"),
        )
        for end in ("target=0", "lower_end=0.6")
    },
    "BAPO's upper bound may start at 1": (
        ("bapo", "clip.target=0", "clip.upper_start=1"),
        ("grpo", "clip.low=0.4", "clip.high=0"),
    ),
    "A cap that no kept token reaches is none": (
        ("cispo", "clip=two_side", "weight.cap=1.2"),
        ("rec_twoside_is", "advantage=standard"),
    ),
    "A floor of 0 is none": (
        ("cispo", "weight=bounded", "weight.floor=0"),
        ("cispo", "weight.cap=1.2"),
    ),
    "The behavior policy's ratio is that of the token": (
        ("cispo", "weight=capped_behavior", "weight.cap=2"),
        ("cispo", "weight.cap=2"),
    ),
    "COPG without its penalty is RLOO": (("copg", "regularizer.beta=0"), ("rloo",)),
    "OPMD without its square is REINFORCE": (("opmd", "regularizer.tau=0"), ("reinforce",)),
    **{
        f"{preset} at an infinite temperature is REINFORCE": (
            (preset, "data_weighting.temperature=inf"),
            ("reinforce",),
        )
        for preset in ("red_weight", "pairwise")
    },
    "The best of one is its reward": (
        ("max_at_k", "advantage.k=1"),
        ("rloo", "advantage=plain"),
    ),
    "Whitening without an epsilon is the population's deviation": (
        ("grpo", "advantage=whitened", "advantage.epsilon=0"),
        ("grpo", "advantage.ddof=0", "advantage.epsilon=0"),
    ),
    "A correction without a band has no effect": (
        ("grpo", "correction=geometric", "correction.low=null", "correction.high=null"),
        ("grpo",),
    ),
    "A penalty of 0 for truncation is none": (
        ("grpo", "truncation=penalise", "truncation.penalty=0"),
        ("grpo",),
    ),
    "DAPO's loss with GRPO's clip is GRPO": (("dapo", "clip=one_side"), ("grpo",)),
    "CISPO with a cap beyond reach is the unclipped IS": (
        ("cispo", "weight.cap=1e8"),
        ("rec_oneside_is", "advantage=standard", "clip=none"),
    ),
    "sPPO is REC-TwoSide-NoIS": (
        ("sppo",),
        ("rec_twoside_nois", "advantage=standard", "clip=reciprocal"),
    ),
    "Dr. GRPO is REC-OneSide-IS over sequences": (
        ("dr_grpo",),
        ("rec_oneside_is", "aggregation=sequence_mean"),
    ),
    "GMPO without a clip is GSPO without one": (("gmpo", "clip=none"), ("gspo", "clip=none")),
    "PPO-EWMA is decoupled PPO around that policy": (("ppo_ewma",), ("decoupled_ppo",)),
    "A total variation of 1 is no bound": (
        ("dppo_tv", "clip.delta_low=1", "clip.delta_high=1", "weight.cap=1e8"),
        ("grpo", "clip=none"),
    ),
    "DPPO without room keeps what has not moved outwards": (
        ("dppo_tv", "clip.delta_low=0", "clip.delta_high=0"),
        ("dppo_kl", "clip.delta_low=0", "clip.delta_high=0"),
    ),
    "A dual clip beyond reach is the one-side clip": (
        ("grpo", "clip=dual", "clip.ceiling=1e8"),
        ("grpo",),
    ),
    "SAPO at temperature 0 is the unclipped IS": (
        ("sapo", "weight.tau_positive=1e-13", "weight.tau_negative=1e-13"),
        ("grpo", "clip=none", "aggregation=sequence_token_mean"),
    ),
    "The penalty of grpo_kl apart, it is GRPO": (
        ("grpo_kl", "regularizer.beta=0", "advantage.epsilon=0"),
        ("grpo", "advantage.ddof=0", "advantage.epsilon=0"),
    ),
    "OPSM without a bound on the drift is GRPO": (("opsm", "clip.drift=null"), ("grpo",)),
    "IPO without its bound and square is the unclipped IS": (
        ("ipo", "clip.delta=null", "regularizer.tau=0"),
        ("rec_oneside_is", "clip=none"),
    ),
    "DIS is REC-TwoSide-IS": (("dis",), ("rec_twoside_is", "advantage=standard")),
    "VACO without room keeps what has not moved outwards": (
        ("vaco", "clip.bound=0"),
        ("grpo", "clip.low=0", "clip.high=0"),
    ),
    "CPPO with equal weights and a budget beyond reach is DPPO-TV": (
        ("cppo", "clip.delta=0.01", "clip.budget=1", "clip.last_weight=1"),
        (
            "dppo_tv",
            "clip.delta_low=0.01",
            "clip.delta_high=0.01",
            "advantage=mean",
            "aggregation=sequence_mean",
        ),
    ),
    "DRPO with a large epsilon is the unclipped IS": (
        ("drpo", "weight.epsilon=1e14"),
        ("rec_oneside_is", "clip=none", "aggregation=sequence_mean"),
    ),
    "ASPO with its ratio the right way is GRPO": (
        ("aspo", "weight.power=1", "weight.cap=null"),
        ("grpo",),
    ),
    "UP with the ratio of positives is GRPO without an upper bound": (
        ("up", "weight.power=1"),
        ("grpo", "clip.high=null"),
    ),
    "RIPO within GRPO's bounds is GRPO": (
        ("ripo", "clip.floor=0.8", "clip.ceiling=1.2"),
        ("grpo",),
    ),
    "μ-GRPO without its veto is GRPO with those bounds": (
        ("mu_grpo", "clip.trigger=0"),
        ("grpo", "clip.low=1", "clip.high=4"),
    ),
    "Clip-Cov that drops none is GRPO": (
        ("clip_cov", "clip.fraction=0"),
        ("grpo", "clip.low=1", "clip.high=1"),
    ),
    "KL-Cov without its penalty is GRPO without a clip": (
        ("kl_cov", "regularizer.beta=0"),
        ("grpo", "clip=none"),
    ),
    "A response that no set leaves out counts by what it adds": (
        ("max_at_k", "advantage.k=99"),
        ("max_at_k", "advantage.k=5"),  # the largest group
    ),
}


@pytest.mark.parametrize("identity", sorted(ALWAYS))
def test_identity(identity):
    for batch in (drawn(3, "near"), far()):
        same(*ALWAYS[identity], batch, rtol=1e-10)


@pytest.mark.parametrize("other", ["gspo", "gmpo"])
def test_one_token_per_sequence(other):
    alike = ("clip=log_bounds", "aggregation=sequence_token_mean")
    same((other, *alike), ("grpo", *alike), one_token_each())


@pytest.mark.parametrize("preset", ["decoupled_ppo", "ppo_ewma", "mix_ppg"])
def test_proximal_is_behavior(preset):
    batch = far()
    same((preset,), ("grpo",), dataclasses.replace(batch, proximal=batch.behavior))


def test_younger_than_the_lag():
    same(("a3po", f"proximal.lag={STEP}"), ("grpo",), far())
    same(("a3po",), ("grpo",), far(versions=np.full(13, STEP)))


@pytest.mark.parametrize(
    "method",
    [
        *((preset,) for preset in ("tis", "mis", "icepop", "geometric_tis", "kpop")),
        *(("grpo", f"correction={file.stem}") for file in (CONF / "correction").glob("*.yaml")),
    ],
    ids=" ".join,
)
def test_sampler_is_trainer(method):
    batch = far()
    same(method, ("grpo",), dataclasses.replace(batch, sampler=batch.behavior))


def test_ratio_to_the_sampler():
    batch = far()
    to_sampler = dataclasses.replace(batch, behavior=batch.sampler)
    found = worth(composed("tis", "clip=none", "correction.cap=1e8"), batch)
    expected = worth(composed("grpo", "clip=none"), to_sampler)
    np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-15)


def test_oapl():
    """V* tends to r̄; to first order it is r̄ + Var(r)/(2β)."""
    batch = far()
    hot = ("oapl", "advantage.temperature=1e8", "regularizer.tau=0.1")
    found = worth(composed(*hot), batch)
    expected = worth(composed("opmd", "aggregation=sequence_mean"), batch)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-7)


def test_kl_estimators_near_the_reference():
    """k2 and k3 have the gradient β·log π/π_ref there; that of k1 is β whatever the policy."""
    batch = far(rewards=np.zeros(13))
    near = dataclasses.replace(batch, reference=batch.logp + 1e-5)
    k1, k2, k3 = (worth(composed("grpo", f"regularizer=kl_{k}"), near) for k in ("k1", "k2", "k3"))
    np.testing.assert_allclose(k2, k3, rtol=1e-4, atol=1e-15)
    np.testing.assert_allclose(k2, -1e-5 * k1, rtol=1e-6, atol=1e-15)


def test_unbiased_kl_on_policy():
    """Its gradient is that of k2."""
    batch = far(rewards=np.zeros(13))
    batch = dataclasses.replace(batch, behavior=batch.logp)
    k2, unbiased = (("grpo", f"regularizer=kl_{kind}") for kind in ("k2", "unbiased"))
    same(unbiased, k2, batch)


BASES = {
    "sequence_mean": [
        "dr_grpo", "vespo", "rloo", "topr", "copg", "oapl", "maxrl", "max_at_k",
        "minirl", "drpo", "cppo",
    ],
    "sequence_token_mean": ["gspo", "gmpo", "sapo"],
    "token_mean": [
        "dapo", "cispo", "sppo", "decoupled_ppo", "ppo_ewma", "a3po", "tis", "mis", "icepop",
        "m2po", "dppo_tv", "dppo_kl", "mix_ppg", "grpo_kl", "bapo", "opsm", "ipo",
        "geometric_tis", "dis", "kpop", "vaco", "aspo", "up", "ripo", "mu_grpo",
        "kl_cov",
    ],
}  # fmt: skip


@pytest.mark.parametrize(
    ("aggregation", "preset"), [(mean, preset) for mean in BASES for preset in BASES[mean]]
)
def test_on_policy_is_reinforce(aggregation, preset):
    batch = far()
    names = ("logp", "behavior", "proximal", "reference", "sampler")
    on_policy = dataclasses.replace(batch, **dict.fromkeys(names, batch.behavior))
    algorithm = composed(preset)
    piece = algorithm.parts.advantage
    advantages = piece(torch.from_numpy(batch.rewards), torch.from_numpy(batch.groups))
    found = worth(algorithm, on_policy)
    plain = composed("reinforce", f"aggregation={aggregation}")
    expected = worth(plain, on_policy, rewards=None, advantages=advantages)
    np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-15)
