"""The protocols of an algorithm's pieces, and reductions.

1. Every choice keeps to its protocol; a piece that does not is refused by name.
2. A composition that reduces to a simpler one prints it, and both have the same gradient.
"""

import dataclasses

import numpy as np
import pytest
import torch
from omegaconf import OmegaConf
from pieces import compose
from test_field import composed, drawn, worth

from rec_experiments.algo import contract, words
from rec_experiments.algo.aggregation import TokenMean
from rec_experiments.algo.clips import OneSide
from rec_experiments.algo.reductions import simplified
from rec_experiments.config import composition as configuration
from rec_experiments.config import schema
from rec_experiments.config.composition import choices_by_group, composing
from rec_experiments.errors import UserError
from rec_experiments.types import Needs, Piece

SLOTS = [field.name for field in dataclasses.fields(compose())]
CHOICES = [f"{slot}/{name}" for slot in SLOTS for name in choices_by_group()[slot]]


@pytest.mark.parametrize("choice", CHOICES)
def test_own_pieces(choice):
    with composing():
        config = OmegaConf.to_container(configuration.compose(choice, []), resolve=True)
    pieces = {slot: schema.piece(slot, values) for slot, values in config.items()}
    algorithm = compose(**{"clip": OneSide(low=0.2, high=0.2), **pieces})
    contract.check(algorithm)
    assert words.describe(algorithm)


class Wrong(Piece):
    """A piece of any slot that returns what it is made to."""

    result: object = None

    def __call__(self, *given):
        return self.result


ROWS = torch.zeros(6, 1)
LEAF = torch.zeros(6, 4, requires_grad=True)


@pytest.mark.parametrize(
    ("slot", "result", "message"),
    [
        (
            "advantage",
            torch.zeros(5),
            r"returned a tensor of shape \(5,\); .* \(6,\), by responses$",
        ),
        ("ratio", ROWS, r"returned a tensor of shape \(6, 1\)"),
        ("ratio", LEAF, "returned a tensor with a gradient"),
        ("clip", None, "returned NoneType"),
        ("clip", LEAF.detach(), "returned numbers of torch.float32; a clip returns a boolean mask"),
        ("clip", torch.ones(6, 4, dtype=torch.int64), "returned numbers of torch.int64"),
        ("correction", ROWS, r"returned a tensor of shape \(6, 1\)"),
        ("correction", LEAF, "returned a tensor with a gradient"),
        ("regularizer", ROWS, r"returned a tensor of shape \(6, 1\)"),
        ("aggregation", LEAF, r"must be a tensor of shape \(\)"),
    ],
)
def test_wrong_result(slot, result, message):
    with pytest.raises(UserError, match=f"^Wrong: .*{message}"):
        contract.check(compose(**{slot: Wrong(result=result)}))


def test_undeclared_dense():
    class Entropy(Piece):
        def __call__(self, batch):
            return batch.dense["entropy"]

    with pytest.raises(UserError, match=r"^Entropy: reads entropy, which its `needs` does not"):
        contract.check(compose(regularizer=Entropy()))
    Entropy.needs = Needs(dense=frozenset({"entropy"}))
    contract.check(compose(regularizer=Entropy()))


def test_lengths_need_every_response():
    message = r"^LengthWeighted: needs all responses of a group; data_weighting=drop_negatives"
    with pytest.raises(UserError, match=message):
        composed("grpo", "advantage=length_weighted", "data_weighting=drop_negatives")


# A composition, the composition that it reduces to, and the words for that.
REDUCTIONS = {
    "rec_ring clip.outer_low=0.2 clip.outer_high=0.2": (
        "rec_oneside_nois",
        "mask M reduces to: one-side, keeps ρ ≤ 1.2 where A > 0 and ρ ≥ 0.8 where A < 0",
    ),
    "rec_ring clip.outer_low=null clip.outer_high=null": (
        "rec_twoside_nois",
        "mask M reduces to: two-side, keeps 0.8 ≤ ρ ≤ 1.2",
    ),
    **{
        f"{preset} {bounds}": (f"{preset} clip=none", "mask M reduces to: none, keeps every token")
        for preset, bounds in (
            ("grpo", "clip.low=null clip.high=null"),
            ("grpo", "clip.low=1 clip.high=null"),
            ("rec_twoside_is", "clip.low=null clip.high=null"),
            ("rec_ring", "clip.low=null clip.high=null"),
            ("mix_ppg", "clip.low=null clip.high=null"),
            ("dppo_kl", "clip.delta_low=null clip.delta_high=null"),
            ("dppo_tv", "clip.delta_low=1 clip.delta_high=null"),
            ("ipo", "clip.delta=1"),
            ("vaco", "clip.bound=null"),
            ("mu_grpo", "clip.trigger=0 clip.high=null"),
        )
    },
    "gmpo clip.log_low=null clip.log_high=null": (
        "gmpo clip=none",
        "mask M reduces to: none, keeps every token",
    ),
    "m2po clip.threshold=0": (
        "grpo clip.low=0 clip.high=0",
        "mask M reduces to: one-side, keeps ρ ≤ 1 where A > 0 and ρ ≥ 1 where A < 0",
    ),
    "m2po clip=second_moment_bounds clip.threshold=0 clip.miniclip_high=0.5": (
        "grpo clip.low=0 clip.high=0.5",
        "mask M reduces to: one-side, keeps ρ ≤ 1.5 where A > 0 and ρ ≥ 1 where A < 0",
    ),
    **{
        f"bapo clip.{search}": (
            "grpo clip.low=0.4 clip.high=0.2",
            "mask M reduces to: one-side, keeps ρ ≤ 1.2 where A > 0 and ρ ≥ 0.6 where A < 0",
        )
        for search in ("target=0", "lower_end=0.6")
    },
    "cispo clip=two_side weight.cap=1.2": (
        "rec_twoside_is advantage=standard",
        "gradient reduces to: Σ M · ρ · ∇log π_θ · (r − r̄)/σ_r",
    ),
    "cispo weight=bounded weight.floor=0": (
        "cispo weight.cap=1.2",
        "gradient reduces to: Σ M · min(ρ, 1.2) · ∇log π_θ · (r − r̄)/σ_r",
    ),
    "cispo weight=capped_behavior weight.cap=2": (None, None),  # its words are those of a cap on ρ
    "copg regularizer.beta=0": ("rloo", "extra loss reduces to: none"),
    "opmd regularizer.tau=0": ("reinforce", "extra loss reduces to: none"),
    "red_weight data_weighting.temperature=inf": (
        "reinforce",
        "gradient reduces to: Σ M · ∇log π_θ · (r − r̄)",
    ),
    "pairwise data_weighting.temperature=inf": (
        "reinforce",
        "gradient reduces to: Σ M · ∇log π_θ · (r − r̄)",
    ),
    "max_at_k advantage.k=1": (
        "rloo advantage=plain",
        "gradient reduces to: Σ M · ∇log π_θ · 1·(r − 0)",
    ),
    "grpo advantage=whitened advantage.epsilon=0": (
        "grpo advantage.ddof=0 advantage.epsilon=0",
        "gradient reduces to: Σ M · ρ · ∇log π_θ · (r − r̄)/σ_r",
    ),
    "grpo correction=geometric correction.low=null correction.high=null": (
        "grpo",
        None,  # a factor of 1 has no words
    ),
    "grpo truncation=penalise truncation.penalty=0": ("grpo", "truncation reduces to: none"),
}


@pytest.mark.parametrize("composition", REDUCTIONS)
def test_reduction(composition):
    algorithm = composed(*composition.split())
    simple = dataclasses.replace(algorithm, parts=simplified(algorithm.parts))
    assert simple.parts != algorithm.parts
    other, words = REDUCTIONS[composition]
    said = [line for line in algorithm.describe().splitlines() if "reduces to" in line]
    assert said == ([words] if words else [])
    assert "reduces to" not in simple.describe()
    for kind in ("near", "far", "at"):
        batch = drawn(3, kind)
        expected = worth(algorithm, batch)
        np.testing.assert_allclose(worth(simple, batch), expected, rtol=1e-10, atol=1e-14)
        if other:
            found = worth(composed(*other.split()), batch)
            np.testing.assert_allclose(found, expected, rtol=1e-10, atol=1e-14)


@pytest.mark.parametrize("preset", choices_by_group()["algo"])
def test_no_preset_reduces(preset):
    parts = composed(preset).parts
    assert simplified(parts) == parts


def test_subclass_is_not_reduced():
    class Scaled(TokenMean):
        """Twice the mean."""

    class Other(OneSide):
        """Something else."""

    parts = compose(clip=Other(low=None, high=None), aggregation=Scaled())
    assert simplified(parts) == parts
    assert "normalised: Twice the mean" in words.describe(parts)
    assert "mask M: Something else (low=None, high=None)" in words.describe(parts)
