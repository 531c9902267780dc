"""Paper 2, Figure 1: the weight of the distance terms in its lower bound."""

import numpy as np
import pandas
from matplotlib.lines import Line2D

from rec_experiments.analysis.figures import bandit, style
from rec_experiments.analysis.figures.computed.shared import values
from rec_experiments.analysis.figures.render import Drawing, page, styled

EPSILONS = (0.0, 1e-3, 1e-2, 1e-1)


@styled
def draw() -> Drawing:
    """(1 − σ_ε)/σ_ε of a Bernoulli reward against its success probability."""
    probabilities = np.linspace(0.001, 0.999, 999)
    curves = {
        epsilon: bandit.whitened_scale(probabilities * (1 - probabilities), epsilon)
        for epsilon in EPSILONS
    }
    colors = (style.BLACK, style.BLUE, style.VERMILION, style.GREEN)
    legend = [
        (Line2D([], [], color=color, ls=dash), f"ε = {epsilon:g}")
        for epsilon, color, dash in zip(EPSILONS, colors, style.DASHES, strict=True)
    ]
    figure, panels = page(5.2, 2.8, "Paper 2, Figure 1: weight of the distance terms", legend)
    axes = panels.subplots()
    for curve, color, dash in zip(curves.values(), colors, style.DASHES, strict=True):
        axes.plot(probabilities, curve, color=color, ls=dash)
    axes.set(yscale="log", xlabel="success probability p", ylabel="(1 − σ) / σ", xlim=(0, 1))
    axes.set_yticks([1, 2, 5, 10, 20], ["1", "2", "5", "10", "20"])
    axes.minorticks_off()
    rows = [
        {"epsilon": epsilon, "p": p, "value": value}
        for epsilon, curve in curves.items()
        for p, value in zip(probabilities.round(6).tolist(), curve.tolist(), strict=True)
    ]
    found = {f"ε = {e:g}": [float(v.min()), float(v.max())] for e, v in curves.items()}
    title = "Paper 2, Figure 1: least and greatest value"
    caption = (
        "(1 − σ)/σ with σ = √(p(1−p) + ε), for a reward that is 1 with probability p. It is "
        "large for prompts that are nearly always or never solved; ε bounds it."
    )
    return Drawing("paper2_fig1", title, figure, pandas.DataFrame(rows), values(found), caption)
