"""Paper 2: the weight of the distance terms in its lower bound (Figure 1), and the bound of Theorem
1 checked on random finite policies."""

import numpy as np
import pandas
from matplotlib.lines import Line2D

from rec_experiments.analysis.figures import bandit, style
from rec_experiments.analysis.figures.render import Drawing, page, styled, values

EPSILONS = (0.0, 1e-3, 1e-2, 1e-1)
COLORS = (style.BLACK, style.BLUE, style.VERMILION, style.GREEN)
CASES_PER_SIZE, SIZES, CASE_SEED = 4000, range(2, 11), 0
ROUNDING = 1e-9  # float64 sums of a few terms, with (1 − σ)/σ up to 1000


@styled
def distance_terms() -> Drawing:
    """(1 − σ_ε)/σ_ε of a Bernoulli reward against its success probability."""
    p = np.linspace(0.001, 0.999, 999)
    curves = {epsilon: bandit.whitened_scale(p * (1 - p), epsilon) for epsilon in EPSILONS}
    looks = list(zip(EPSILONS, COLORS, style.DASHES, strict=True))
    legend = [(Line2D([], [], color=color, ls=dash), f"ε = {e:g}") for e, color, dash in looks]
    figure = page(5.2, 2.8, "Paper 2, Figure 1: weight of the distance terms", legend)
    axes = figure.subplots()
    for epsilon, color, dash in looks:
        axes.plot(p, curves[epsilon], color=color, ls=dash)
    axes.set(yscale="log", xlabel="success probability p", ylabel="(1 − σ) / σ", xlim=(0, 1))
    axes.set_yticks([1, 2, 5, 10, 20], ["1", "2", "5", "10", "20"])
    axes.minorticks_off()
    table = (
        pandas.DataFrame(curves, p.round(6))
        .rename_axis("p")
        .reset_index()
        .melt("p", var_name="epsilon")
    )
    found = {f"ε = {e:g}": [float(v.min()), float(v.max())] for e, v in curves.items()}
    title = "Paper 2, Figure 1: least and greatest value"
    caption = (
        "(1 − σ)/σ with σ = √(p(1−p) + ε), for a reward that is 1 with probability p. It is "
        "large for prompts that are nearly always or never solved; ε bounds it."
    )
    return Drawing("paper2_fig1", title, figure, table, values(found), caption)


@styled
def theorem() -> Drawing:
    """Paper 2, Theorem 1, on random finite policies: true improvement against its lower bound."""
    rng = np.random.default_rng(CASE_SEED)
    parts = []
    for arms in SIZES:
        cases = bandit.random_cases(rng, CASES_PER_SIZE, arms)
        columns = {
            "arms": arms,
            "on_policy": (cases.current == cases.behavior).all(1).astype(int),
            "bound": bandit.improvement_bound(cases),
            "improvement": bandit.improvement(cases),
            "distance": bandit.total_variation(cases.policy, cases.behavior),
        }
        parts.append(pandas.DataFrame(columns))
    value = pandas.concat(parts, ignore_index=True)
    slack = value["improvement"] - value["bound"]
    found = {
        "cases": len(value),
        "violations": int((slack < -ROUNDING).sum()),
        "least slack": float(slack.min()),
        "median slack": float(slack.median()),
        "on-policy cases (Corollary 1)": int(value["on_policy"].sum()),
        "cases whose bound promises an improvement": int((value["bound"] > 0).sum()),
    }
    figure = page(8.6, 3.1, "Paper 2, Theorem 1 on random finite policies", [])
    left, right = figure.subplots(1, 2)
    for axes in (left, right):
        shown = axes.scatter(
            value["bound"], value["improvement"], c=value["distance"], cmap="viridis",
            vmin=0, vmax=1, s=3, lw=0, rasterized=True,
        )  # fmt: skip
        axes.plot([-1, 1], [-1, 1], color="black", lw=1)
        axes.set(xlabel="lower bound", ylabel=r"true improvement $J(\pi) - J(\pi_k)$")
    left.set_xscale("symlog", linthresh=1)
    left.set_xticks([-1000, -100, -10, -1, 0, 1])
    left.set_xlim(right=1.6)
    right.set(xlim=(-0.5, 0.5), ylim=(-0.5, 0.5))
    figure.colorbar(shown, ax=[left, right], label="TV(π, α)")
    caption = (
        f"{found['cases']} random triples of policies over "
        f"{SIZES[0]} to {SIZES[-1]} arms, {found['violations']} violations. A point below the "
        "diagonal would violate the bound. The colour is the total variation distance of the "
        "new policy to the one that drew the data. Left: all cases, linear between −1 and 1 "
        "and logarithmic beyond. Right: those near the diagonal."
    )
    title = "Paper 2, Theorem 1"
    return Drawing("theorem1", title, figure, value, values(found), caption)
