"""Draws the gains of docs/stability.md: `make pages` or `python docs/gains.py`.

1. The gain at each method's best rate, against the age of its oldest data.
2. Every preset at one rate: what it gains under interval 20 and offline.
3. What a clip drops, and of which tokens: sweep=mechanism on both tasks.
"""

from pathlib import Path

import matplotlib as mpl
import pandas
from archived_runs import runs
from matplotlib import pyplot as plt
from matplotlib.axes import Axes

from rec_experiments import sweeps
from rec_experiments.analysis.figures.style import looks
from rec_experiments.analysis.results.stability import RATE

FIGURES = Path(__file__).parent / "figures"
SEEDS = (0, 1, 2)
DRAWN = {
    "REINFORCE": "REINFORCE",
    "GRPO": "GRPO",
    "REC-OneSide-NoIS, lower bound": "lower bound alone",
    "OPMD": "OPMD",
    "RED-Weight": "RED-Weight",
}
NAMED = (
    "REINFORCE", "GRPO", "CoPG", "AsymRE", "RED-Weight", "TOPR", "GMPO", "Decoupled PPO", "SAPO",
    "CISPO", "M2PO", "DRPO", "REC-OneSide-NoIS, lower bound", "REC-TwoSide-NoIS (0.2)",
)  # fmt: skip
LEFT = (
    "TOPR",
    "M2PO",
    "GRPO",
    "SAPO",
    "REC-TwoSide-NoIS (0.2)",
)  # labels to the left of their point
PRESETS_RATE = 1.2e-4


def best_gains(axes: Axes, task: str) -> None:
    table = runs("stability")
    table = table[(table["task"] == task) & table["seed"].isin(SEEDS) & (table["age"] > 0)]
    mean = table.groupby(["arm", "age", RATE])["gain"].mean()
    best = mean.groupby(["arm", "age"]).max()
    for arm, look in looks([*DRAWN]).items():
        axes.plot(best[arm].index, best[arm], color=look.color, marker=look.marker, linewidth=2.2,
                  markersize=8, label=DRAWN[arm])  # fmt: skip
    axes.set(title=task if task == "reduction" else "chain arithmetic", xscale="log",
             xlabel="age of the oldest data", ylim=(0, 0.6))  # fmt: skip
    axes.set_xticks([4, 19, 49, 149], ["4", "19", "49", "149"])
    axes.minorticks_off()


def presets(axes: Axes) -> None:
    table = pandas.concat([runs("stability"), runs("presets")])
    table = table[(table["task"] == "reduction") & table["seed"].isin(SEEDS)]
    table = table[table[RATE] == PRESETS_RATE].drop_duplicates(["arm", "sync", "seed"])
    gains = table.pivot_table(index="arm", columns="sync", values="gain")
    gains = gains[["interval 20", "offline"]].dropna()
    axes.axhline(0, color="grey", linewidth=1)
    axes.axvline(0, color="grey", linewidth=1)
    for arm, row in gains.iterrows():
        named = arm in NAMED
        axes.plot(
            *row, "o", color="black" if named else "lightgrey", markersize=7, zorder=1 + named
        )
        if named:
            axes.annotate(DRAWN.get(arm, arm.removesuffix("-NoIS (0.2)").removeprefix("REC-")), row,
                          (-7, -4) if arm in LEFT else (7, -4), textcoords="offset points",
                          fontsize=11.5, ha="right" if arm in LEFT else "left")  # fmt: skip
    axes.set(xlabel="gain under interval 20", ylabel="gain offline", xlim=(-0.3, 0.5))


def mechanism(axes: Axes, task: str) -> None:
    """The gain of every seed of every arm, in the order of the sweep from top to bottom."""
    arms = [*sweeps.load_figure("mechanism", []).arms]
    table = runs("mechanism")
    table = table[table["task"] == task]
    axes.axvline(0, color="grey", linewidth=1)
    axes.scatter(table["gain"], table["arm"].map(arms.index), color=table["gain"].map(_color))
    axes.set(title=task if task == "reduction" else "chain arithmetic", xlabel="gain")
    axes.set_yticks(range(len(arms)), arms)
    axes.set_ylim(len(arms) - 0.5, -0.5)
    axes.grid(axis="y", alpha=0.3)


def _color(gain: float) -> str:
    return "tab:red" if gain < 0 else "tab:blue"


if __name__ == "__main__":
    mpl.use("Agg")
    plt.rcParams.update({"font.size": 13, "axes.spines.top": False, "axes.spines.right": False})
    figure, both = plt.subplots(1, 2, figsize=(9.5, 4.4), sharey=True, layout="constrained")
    for axes, task in zip(both, ("reduction", "chain"), strict=True):
        best_gains(axes, task)
    both[0].set_ylabel("gain at the best rate")
    both[1].legend(fontsize=11, frameon=False, loc="lower left")
    figure.savefig(FIGURES / "gain_at_best_rate.png", dpi=110)
    figure, axes = plt.subplots(figsize=(8.5, 6), layout="constrained")
    presets(axes)
    figure.savefig(FIGURES / "presets.png", dpi=110)
    figure, both = plt.subplots(
        1, 2, figsize=(9.5, 5.2), sharex=True, sharey=True, layout="constrained"
    )
    for axes, task in zip(both, ("reduction", "chain"), strict=True):
        mechanism(axes, task)
    figure.savefig(FIGURES / "mechanism.png", dpi=110)
