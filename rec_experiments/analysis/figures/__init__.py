"""Figures of runs, maps of runs, and figures that are computed without runs."""

COMPUTED = {  # by name: the function of `computed` that draws it
    "fig1": "three_arms:one_step",
    "fig2": "fig2:draw",
    "fig8": "fig8:draw",
    "bandit": "three_arms:pitfall",
    "paper2_fig1": "paper2:distance_terms",
    "theorem1": "paper2:theorem",
}
