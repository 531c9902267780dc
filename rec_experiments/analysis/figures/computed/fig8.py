"""Figure 8: the probability ratios at which the masks keep the gradient."""

import numpy as np
import pandas
from matplotlib.patches import Patch

from rec_experiments.algo.clips import OneSide, Ring, TwoSide
from rec_experiments.algo.loss import Clip, tokens
from rec_experiments.analysis.figures import style
from rec_experiments.analysis.figures.render import Drawing, page, styled, values

MASKS: dict[str, Clip] = {  # Appendix B.3
    "REC-OneSide (0.2)": OneSide(low=0.2, high=0.2),
    "REC-TwoSide (0.2)": TwoSide(low=0.2, high=0.2),
    "REC-Ring (0.2) & (0.6, 2.0)": Ring(low=0.2, high=0.2, outer_low=0.6, outer_high=2.0),
}
RATIOS = np.linspace(0.0025, 3.6025, 1441)  # avoids the bounds, where rounding decides
SIGNS = {"A > 0": 1.0, "A < 0": -1.0}


@styled
def draw() -> Drawing:
    """The probability ratios at which each mask keeps the gradient."""
    colors = {"A > 0": style.BLUE, "A < 0": style.VERMILION}
    legend = [
        (Patch(facecolor=colors["A > 0"], alpha=0.35), r"active where A > 0: raises $\pi_\theta$"),
        (Patch(facecolor=colors["A < 0"], alpha=0.35), r"active where A < 0: lowers $\pi_\theta$"),
    ]
    figure = page(9.6, 1.9, "Figure 8: active gradient regions", legend)
    tables: list[pandas.DataFrame] = []
    found: dict[str, list[str]] = {}
    for axes, (name, clip) in zip(figure.subplots(1, 3), MASKS.items(), strict=True):
        bounds = set()
        for height, (sign, advantage) in zip((1, 0), SIGNS.items(), strict=True):
            active = active_ratios(clip, advantage)
            about = {"mask": name, "advantage": sign, "ratio": RATIOS.round(6)}
            tables.append(pandas.DataFrame({**about, "active": active.astype(int)}))
            found[f"{name}, {sign}"] = []
            for low, high in _stretches(active):
                axes.barh(height, high - low, 0.55, low, color=colors[sign], alpha=0.35, lw=0)
                tail, head = (low, high) if advantage > 0 else (high, low)
                axes.annotate(
                    "", (head, height), (tail, height),
                    arrowprops={"arrowstyle": "->", "color": colors[sign], "lw": 1.5},
                )  # fmt: skip
                bounds |= {low, high}
                end = f" ≤ {high:.2f}" if high < RATIOS[-1] else ""
                found[f"{name}, {sign}"].append(f"{low:.2f} ≤ ρ{end}")
        inner = sorted(bound for bound in bounds if RATIOS[0] < bound < RATIOS[-1])
        axes.axvline(1, color="0.4", lw=0.8, ls=":")
        axes.set_xticks([0, *inner], ["0", *[f"{bound:.1f}" for bound in inner]])
        axes.set_yticks([1, 0], list(SIGNS))
        axes.set(xlim=(0, RATIOS[-1]), ylim=(-0.5, 1.5), title=name)
        axes.set_xlabel(r"probability ratio $\rho = \pi_\theta\,/\,\pi_{old}$")
        axes.grid(axis="y", visible=False)
    caption = (
        "Arrows show where the gradient pushes the probability ratio; without a bar, the "
        "gradient is 0. A bar at the right edge is unbounded. Dotted: ρ = 1, where the policy "
        "has not moved yet."
    )
    title = "Figure 8: active regions"
    return Drawing("fig8", title, figure, pandas.concat(tables), values(found), caption)


def active_ratios(clip: Clip, advantage: float) -> np.ndarray:
    """For each of RATIOS, whether a token with that advantage keeps its gradient."""
    import torch

    log_ratio_BT = torch.from_numpy(np.log(RATIOS))[None, :]
    advantage_B = torch.tensor([advantage], dtype=torch.float64)
    return clip(log_ratio_BT, tokens(log_ratio_BT, advantage_B))[0].numpy()


def _stretches(active: np.ndarray) -> list[tuple[float, float]]:
    """The intervals of active RATIOS; each end is half-way to the inactive neighbour."""
    edges = np.flatnonzero(np.diff(np.concatenate([[0], active.astype(int), [0]])))
    half = (RATIOS[1] - RATIOS[0]) / 2
    return [
        (
            float(RATIOS[first] - half) if first else 0.0,
            float(RATIOS[last - 1] + half) if last < len(RATIOS) else float(RATIOS[-1]),
        )
        for first, last in edges.reshape(-1, 2)
    ]
