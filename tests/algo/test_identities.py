"""Identities between methods, at limits of their parameters and of the batch: where two objectives
are one, so are their gradients."""

import dataclasses

import numpy as np
import pytest
from test_field import STEP, Batch, composed, drawn, worth


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
    "Quadrants without their inward bounds are one-sided": (
        ("grpo", "clip=quadrants"),
        ("grpo",),
    ),
    "Quadrants with all four bounds are two-sided": (
        ("rec_twoside_is", "clip=quadrants", "clip.fallen=0.2", "clip.risen=0.2"),
        ("rec_twoside_is",),
    ),
    "Quadrants that act on no token are unclipped": (
        ("grpo", "clip=quadrants", "clip.rarest=1"),
        ("grpo", "clip=none"),
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
    **{
        f"{preset} at an infinite temperature is REINFORCE": (
            (preset, "data_weighting.temperature=inf"),
            ("reinforce",),
        )
        for preset in ("red_weight", "pairwise")
    },
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
    "A total variation of 1 is no bound": (
        ("dppo_tv", "clip.delta_low=1", "clip.delta_high=1", "weight.cap=1e8"),
        ("grpo", "clip=none"),
    ),
    "A dual clip beyond reach is the one-side clip": (
        ("grpo", "clip=dual", "clip.ceiling=1e8"),
        ("grpo",),
    ),
    "OPSM without a bound on the drift is GRPO": (("opsm", "clip.drift=null"), ("grpo",)),
    "VACO without room keeps what has not moved outwards": (
        ("vaco", "clip.bound=0"),
        ("grpo", "clip.low=0", "clip.high=0"),
    ),
    "ASPO with its ratio the right way is GRPO": (
        ("aspo", "weight.power=1", "weight.cap=null"),
        ("grpo",),
    ),
    "UP with the ratio of positives is GRPO without an upper bound": (
        ("up", "weight.power=1"),
        ("grpo", "clip.high=null"),
    ),
    "μ-GRPO without its veto is GRPO with those bounds": (
        ("mu_grpo", "clip.trigger=0"),
        ("grpo", "clip.low=1", "clip.high=4"),
    ),
    "Clip-Cov that drops none is GRPO": (
        ("clip_cov", "clip.fraction=0"),
        ("grpo", "clip.low=1", "clip.high=1"),
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


def test_younger_than_the_lag():
    same(("a3po", f"proximal.lag={STEP}"), ("grpo",), far())
    same(("a3po",), ("grpo",), far(versions=np.full(13, STEP)))


def test_ratio_to_the_sampler():
    batch = far()
    to_sampler = dataclasses.replace(batch, behavior=batch.sampler)
    found = worth(composed("tis", "clip=none", "correction.cap=1e8"), batch)
    expected = worth(composed("grpo", "clip=none"), to_sampler)
    np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-15)
