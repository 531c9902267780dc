"""A short run of the fuzz (make test-verifiers runs all of it)."""

import pytest
from fuzz import KINDS, cases

from rec_experiments.datasets.verifiers.math_answer import same_expression

COUNT = 20 * len(KINDS)


@pytest.mark.parametrize("kind", [kind.__name__ for kind in KINDS])
def test_no_error(kind: str) -> None:
    for name, gold, answer, is_equal in cases(COUNT, seed=1):
        if name == kind:
            assert same_expression(f"\\boxed{{{answer}}}", gold) is is_equal, (gold, answer)
