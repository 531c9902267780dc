"""The stability map's numbers against synthetic gains whose edges are known in closed form."""

import math

import numpy as np
import pandas
import pytest

from rec_experiments.analysis.results import stability

RATES = [1e-5 * 2**i for i in range(8)]
AGES = [0, 4, 19, 49, 149]


def synthetic(edge_of, seeds=range(5), rates=RATES, ages=AGES, arms=("GRPO", "REINFORCE")):
    """Gains that are linear in log2 of the rate: 0 at the edge, and rising to it from low rates."""
    rows = []
    for arm in arms:
        for age in ages:
            for seed in seeds:
                edge = math.log2(edge_of(arm, age, seed))
                for rate in rates:
                    gain = min(0.1, 0.1 * (edge - math.log2(rate)))
                    rows.append((arm, age, rate, seed, gain))
    columns = ["arm", stability.AGE, stability.RATE, "seed", "gain"]
    return pandas.DataFrame(rows, columns=columns)


def pair(edges):
    """The edges of both arms at age 19."""
    at = edges[edges[stability.AGE] == 19]
    return at[at["arm"] == "GRPO"], at[at["arm"] == "REINFORCE"]


@pytest.mark.parametrize(
    ("gains", "log2"),
    [
        ([0.1, 0.2, 0.1, -0.1], 2.5),
        ([0.2, 0.3, -0.1, -0.2], 1.75),  # at once
        ([-0.01, 0.2, 0.1, -0.1], 2.5),  # learning nothing at the lowest rate is no failure
        ([0.1, 0.2, 0.3, 0.4], math.inf),
        ([-0.1, -0.2, -0.3, -0.4], -math.inf),
    ],
)
def test_crossing_interpolates_in_log2_from_the_best_rate_on(gains, log2):
    assert stability.crossing([1, 2, 4, 8], gains) == pytest.approx(log2)


def test_edge_is_the_mean_over_seeds():
    factors = [0.9, 0.95, 1.0, 1.05, 1.1]
    table = synthetic(lambda arm, age, seed: 1.3e-4 * factors[seed], arms=("GRPO",), ages=[19])
    edge = stability.means(stability.edges(table))["GRPO", 19]
    logs = np.log2(np.array(factors) * 1.3e-4)
    assert edge.mean == pytest.approx(logs.mean())
    half = 2.7764451 * logs.std(ddof=1) / math.sqrt(5)
    assert edge.interval == pytest.approx((logs.mean() - half, logs.mean() + half))


def test_edge_outside_the_grid_has_no_interval():
    table = synthetic(lambda arm, age, seed: 1.0 if seed == 0 else 1e-4, arms=("GRPO",), ages=[19])
    edges = stability.edges(table)
    assert edges["side"].tolist() == [1, 0, 0, 0, 0]
    edge = stability.means(edges)["GRPO", 19]
    assert (edge.bound, edge.interval) == ("≥", None)


def test_seed_without_all_rates_is_left_out():
    table = synthetic(lambda arm, age, seed: 1e-4, arms=("GRPO",), ages=[19])
    table = table.drop(table[(table["seed"] == 3) & (table[stability.RATE] == RATES[2])].index)
    assert stability.edges(table)["seed"].tolist() == [0, 1, 2, 4]


def test_multiple_is_paired_by_seed():
    base = [1.0, 1.5, 0.8, 1.2, 0.7]
    table = synthetic(lambda arm, age, seed: 1e-4 * base[seed] * (2 if arm == "GRPO" else 1))
    edges = stability.edges(table)
    mean, interval, bound = stability.multiple(*pair(edges))
    assert (bound, mean) == ("", pytest.approx(1))  # log2
    assert interval == pytest.approx((1, 1))


@pytest.mark.parametrize(
    ("edge", "base", "bound"),
    [(1, 1e-4, "≥"), (1e-9, 1e-4, "≤"), (1e-4, 1, "≤"), (1, 1e-9, "≥"), (1, 1, None)],
)
def test_multiple_of_edges_outside_the_grid_is_a_bound(edge, base, bound):
    table = synthetic(lambda arm, age, seed: edge if arm == "GRPO" else base, ages=[19])
    edges = stability.edges(table)
    found = stability.multiple(*pair(edges))
    assert (found and (found.bound, found.interval)) == (bound and (bound, None))
    shown = stability.edge_table(edges).set_index(["arm", "age"]).loc["GRPO", 19]
    assert math.isfinite(shown["multiple"]) == bool(bound)
    assert shown["multiple is"] == (bound or "=")


def test_only_the_seeds_of_a_pair_bound_a_multiple():
    """One seed of GRPO lies above the grid, another below; REINFORCE has other seeds."""
    far = {0: 1.0, 1: 1e-9}
    table = synthetic(lambda arm, age, seed: far.get(seed, 2e-4) if arm == "GRPO" else 1e-4)
    paired = table[(table["arm"] == "GRPO") | (table["seed"] > 1)]
    for rows, known in ((table, False), (paired, True)):
        edges = stability.edges(rows)
        assert stability.means(edges)["GRPO", 19].bound == "?"
        found = stability.multiple(*pair(edges))
        assert bool(found) == known
        assert not found or found.bound == ""


def test_pooled_factor_of_two_methods_is_that_of_their_paired_differences():
    factors = [[0.9, 1.0, 1.2, 0.95, 1.1], [3.1, 2.9, 3.0, 2.7, 3.3]]
    arms = ("GRPO", "REINFORCE")
    table = synthetic(lambda arm, age, seed: 1e-4 * factors[arms.index(arm)][seed], ages=[19])
    edges = stability.edges(table)
    middle, ends, _ = stability.multiple(*pair(edges))
    assert stability.pooled_factor(edges, 19) == pytest.approx(2 ** (ends[1] - middle))
    assert stability.pooled_factor(edges, 4) is None


def test_kept_is_a_share_of_the_on_policy_gain():
    table = synthetic(lambda arm, age, seed: 1e-3 if age == 0 else 4e-5 * 2**0.5)
    kept = stability.kept(table, 0.05).set_index(["arm", stability.AGE, stability.RATE])["kept"]
    assert kept["GRPO", 0, RATES[0]] == pytest.approx(1)
    assert kept["GRPO", 19, RATES[2]] == pytest.approx(0.5)
    assert math.isnan(kept["GRPO", 19, RATES[7]])  # on-policy it does not learn either


def test_on_policy_runs_are_shared():
    table = synthetic(lambda arm, age, seed: 1e-4, arms=("REINFORCE", "REC-Ring"))
    without = table.drop(table[(table["arm"] == "REC-Ring") & (table[stability.AGE] == 0)].index)
    shared = stability.with_on_policy(without, {"REC-*": "REINFORCE"})
    assert len(shared) == len(table)
    assert set(shared[shared[stability.AGE] == 0]["arm"]) == {"REINFORCE", "REC-Ring"}
