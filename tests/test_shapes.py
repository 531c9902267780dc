"""The checker of shapes refuses wrong calls. Every letter of the package is in one table."""

import ast
import re
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from shapes import ShapeError, checked, suffix, watch_methods

import rec_experiments
from rec_experiments.algo.advantages import group_sum
from rec_experiments.algo.clips import OneSide
from rec_experiments.algo.inputs import Advantages, LossInput, Totals
from rec_experiments.common import batch
from rec_experiments.common.batch import StepIndex
from rec_experiments.policy.logprobs import Head

B, T = 3, 5


def zeros(*shape: int) -> torch.Tensor:
    return torch.zeros(shape)


def loss_input(**changed: object) -> LossInput:
    mask_BT = zeros(B, T).bool()
    whole = {
        "logp_BT": zeros(B, T),
        "logps": {},
        "advantages": Advantages(zeros(B), mask_BT, zeros(B), zeros(B), Totals(1, 1)),
        "groups_B": zeros(B),
        "version_BX": zeros(B, 1),
        "index": StepIndex(0, 0, 0, 0),
    }
    return LossInput(**{**whole, **changed})


def narrow() -> Advantages:
    return Advantages(zeros(B), zeros(B, T - 1).bool(), zeros(B), zeros(B), Totals(1, 1))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: group_sum(zeros(B, 1), zeros(B)),
            r"advantages\.group_sum: values_B has shape \(3, 1\), not B",
        ),
        (
            lambda: group_sum(zeros(B), groups_B=zeros(4)),
            r"advantages\.group_sum: groups_B has shape \(4,\), but B is 3 by values_B",
        ),
        (
            lambda: OneSide(low=0.2, high=0.2)(zeros(B, T - 1), loss_input()),
            r"OneSide\.__call__: batch\.logp_BT has shape \(3, 5\), but T is 4 by log_ratio_BT",
        ),
        (lambda: loss_input(groups_B=zeros(B, 1)), r"groups_B has shape \(3, 1\), not B$"),
        (lambda: loss_input(advantages=narrow()), r"advantages\.mask_BT has shape \(3, 4\)"),
        (lambda: Head(zeros(7, 2), zeros(9, 3), None), r"weight_VD has shape .* but D is 2"),
    ],
)
def test_a_wrong_call_is_refused(call, message):
    with pytest.raises(ShapeError, match=message):
        call()


def test_a_function_is_held_to_its_own_name():
    def transposed_BT(x_TB: torch.Tensor) -> torch.Tensor:
        return x_TB

    with pytest.raises(ShapeError, match=r"transposed_BT has shape \(3, 5\), but B is 5 by x_TB"):
        checked(transposed_BT)(zeros(3, 5))


def test_a_property_is_held_to_its_object():
    class Row(NamedTuple):
        x_BT: torch.Tensor

        @property
        def sum_B(self) -> torch.Tensor:
            return self.x_BT.sum(0)

    watch_methods(Row)
    assert Row(zeros(3, 3)).sum_B.shape == (3,)
    with pytest.raises(ShapeError, match=r"sum_B has shape \(5,\), but B is 3 by self.x_BT"):
        _ = Row(zeros(3, 5)).sum_B


def test_a_letter_twice_and_a_one():
    square = checked(lambda same_BB, x_B1=None: None)
    square(zeros(3, 3), zeros(3, 1))
    with pytest.raises(ShapeError, match="but B is 3"):
        square(zeros(3, 4))
    with pytest.raises(ShapeError, match="but 1 is 1 by the name"):
        square(zeros(3, 3), zeros(3, 2))


def letters_of(source: str) -> set[str]:
    """Of all suffixes of the names in a file."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        for attribute in ("id", "arg", "attr", "name"):
            name = getattr(node, attribute, None)
            names |= {name} if isinstance(name, str) else set()
    return set("".join(map(suffix, names))) - set("0123456789")


def test_the_table_has_exactly_the_letters_in_use():
    table = re.findall(r"^    ([A-Z])  \S", batch.__doc__, re.MULTILINE)
    assert len(table) == len(set(table))
    package = Path(rec_experiments.__file__).parent
    used = set().union(*(letters_of(file.read_text()) for file in package.rglob("*.py")))
    assert used == set(table)
