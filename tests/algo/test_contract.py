"""The protocols of an algorithm's pieces.

1. Every choice keeps to its protocol; a piece that does not is refused by name.
2. What a clip returns for tokens without an advantage does not matter.
"""

import dataclasses

import pytest
import torch
from omegaconf import OmegaConf
from pieces import compose
from test_field import composed, drawn, worth

from rec_experiments.algo import contract
from rec_experiments.algo.clips import OneSide
from rec_experiments.common.errors import UserError
from rec_experiments.common.pieces import Needs, Piece
from rec_experiments.config import schema
from rec_experiments.config.composition import composing
from rec_experiments.config.plugins import choices_by_group

SLOTS = [field.name for field in dataclasses.fields(compose())]
CHOICES = [f"{slot}/{name}" for slot in SLOTS for name in choices_by_group()[slot]]


@pytest.mark.parametrize("choice", CHOICES)
def test_own_pieces(choice):
    with composing() as compose_group:
        config = OmegaConf.to_container(compose_group(choice, []), resolve=True)
    pieces = {slot: schema.piece(slot, values) for slot, values in config.items()}
    algorithm = compose(**{"clip": OneSide(low=0.2, high=0.2), **pieces})
    contract.check(algorithm)
    assert algorithm.describe()


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


class Careless(OneSide):
    """A stranger's clip, which drops every token whose advantage is 0."""

    def __call__(self, log_ratio_BT, batch):
        return super().__call__(log_ratio_BT, batch) & (batch.advantage_B != 0)[:, None]


@pytest.mark.parametrize("kind", ["near", "far"])
def test_a_token_without_advantage_counts_as_kept_whatever_its_clip_says(kind):
    """Its gradient is 0 in any case; the share of clipped tokens must not count it."""
    batch, grpo = drawn(3, kind), composed("grpo")
    careless = dataclasses.replace(
        grpo, parts=dataclasses.replace(grpo.parts, clip=Careless(low=0.2, high=0.2))
    )
    assert (batch.rows().mean == 0).any()
    assert (worth(careless, batch) == worth(grpo, batch)).all()
    metrics = [algorithm(**batch.call()).metrics for algorithm in (careless, grpo)]
    assert metrics[0] == metrics[1]
    assert 0 <= metrics[0]["train/clip_fraction"] < 1
