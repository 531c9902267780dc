"""The numbers of docs/staleness.md.

1. All quantities of constant ages are that age; of a sawtooth they have their closed forms.
2. Where edges follow a law in one quantity, that quantity has the exponent and predicts the lags.
3. Shares are rounded to a grid with steps of two, and a best rate at its end is marked.
"""

import numpy as np
import pandas
import pytest
import staleness

SAWTOOTHS = {"interval 5": 5, "interval 20": 20, "interval 50": 50}


def ages(sync: str) -> list[int]:
    if sync in SAWTOOTHS:
        return [step % SAWTOOTHS[sync] for step in range(100)]
    return [min(step, 10) for step in range(100)]


def test_quantities_of_ages():
    found = {name: of([7] * 40) for name, of in staleness.QUANTITIES.items()}
    assert found.pop("geometric mean of age + 1") == pytest.approx(8)
    assert found.pop("steps between synchronisations") == 1
    assert [*found.values()] == pytest.approx([7, 7, 7])
    saw = {name: of(ages("interval 20")) for name, of in staleness.QUANTITIES.items()}
    assert (saw["maximum"], saw["mean"], saw["steps between synchronisations"]) == (19, 9.5, 20)
    assert saw["root mean square"] == pytest.approx(np.sqrt(19 * 39 / 6))


@pytest.mark.parametrize("name", ["maximum", "mean", "geometric mean of age + 1"])
def test_the_quantity_of_a_law_predicts_the_lags(name):
    of = staleness.QUANTITIES[name]
    rows = [
        {"arm": "REINFORCE", "sync": sync, "edge": of(ages(sync)) ** -0.8, "bound": "",
         "ages": ages(sync)}
        for sync in (*SAWTOOTHS, "constant lag 10")
    ]  # fmt: skip
    lines = staleness.laws(pandas.DataFrame(rows))
    cells = {line.split(" | ")[0].strip("| "): line.split(" | ")[1:] for line in lines}
    assert cells[name] == ["-0.80", "1.00", "1.00 |"]
    assert [*cells.values()].count(cells[name]) == 1


def test_shares():
    fresh = staleness.Best(2.4e-4, 0.5, end="")
    assert staleness.shares(staleness.Best(4.8e-4, 0.5, end=""), fresh) == "2 · 100%"
    assert staleness.shares(staleness.Best(1.0e-4, 0.25, end="+"), fresh) == "1/2+ · 50%"
    assert staleness.shares(staleness.Best(1.5e-5, -0.1, end=""), fresh) == "1/16 · 0%"
    assert staleness.shares(None, fresh) == ""
