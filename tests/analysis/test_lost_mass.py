"""Where a policy lost probability: the shares are whole, and both policies score what was drawn."""

import importlib.util
from pathlib import Path

import numpy as np
import pandas
import pytest
from conftest import SMALL, run

SPEC = importlib.util.spec_from_file_location(
    "page", Path(__file__).parents[2] / "docs/lost_mass.py"
)
page = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(page)


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "run"
    run(folder, *SMALL, "algo=reinforce", "sync=interval20")
    return page.answered(folder, ["eval_samples=2"])


def test_tokens_are_scored_by_both_policies(table):
    assert (table[["old", "new"]] <= 0).all(axis=None)
    assert np.abs(table["old"] - table["new"]).max() > 1e-6
    assert (table.loc[table["old"] > np.log(0.5), "rank"] == 1).all()


def test_an_untrained_policy_lost_nothing(tmp_path):
    run(tmp_path / "run", *SMALL, "algo=reinforce", "optimizer.learning_rate=1e-20")
    table = page.answered(tmp_path / "run", [])
    np.testing.assert_allclose(table["new"], table["old"], rtol=0, atol=1e-5)


def test_kinds_of_tokens():
    assert [page.kind(text) for text in ("7", " 12", "three", " +", "", "a1")] == [
        "digits", "digits", "words", "signs and spaces", "signs and spaces", "words",
    ]  # fmt: skip


def test_shares_of_a_table_by_hand():
    table = pandas.DataFrame(
        {
            "text": ["1", "+", "a"], "right": [True, False, False], "old": [-0.01, -1.0, -2.0],
            "new": [-0.01, -3.0, -3.0], "rank": [1, 1, 7],
        }
    )  # fmt: skip
    lines = page.page(table).splitlines()
    assert "| all | 100.0% | -1.000 | 100.0% |" in lines
    assert "| digits | 33.3% | +0.000 | 0.0% |" in lines
    assert "| likeliest, with less | 33.3% | -2.000 | 80.0% |" in lines
    assert "| rank 6 and above | 33.3% | -1.000 | 20.0% |" in lines
    assert "| in right answers | 33.3% | +0.000 | 0.0% |" in lines
