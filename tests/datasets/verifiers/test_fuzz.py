"""A short run of the fuzz (make test-verifiers runs all of it)."""

from fuzz import KINDS, cases

from rec_experiments.datasets.verifiers.math_answer import same_expression


def test_no_error():
    wrong = [
        (kind, gold, answer)
        for kind, gold, answer, is_equal in cases(20 * len(KINDS), seed=1)
        if same_expression(f"\\boxed{{{answer}}}", gold) is not is_equal
    ]
    assert wrong == []
