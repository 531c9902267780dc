"""Figures that need no run: each is computed from the functions that training itself uses."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import matplotlib
import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch, Rectangle

from rec_experiments.algo.clips import Clip, OneSide, Ring, TwoSide
from rec_experiments.figures import bandit, style
from rec_experiments.figures.bandit import BEHAVIOR, REWARDS, Array
from rec_experiments.figures.curves import Row, columns_of_text
from rec_experiments.figures.render import Drawing, page
from rec_experiments.sync import Phase, Schedule

ARMS = [f"arm {j + 1}, reward {reward:g}" for j, reward in enumerate(REWARDS)]
CORNERS = np.array([[0.0, 0.0], [1.0, 0.0], [0.5, np.sqrt(0.75)]])  # of the simplex of policies


# Figure 1 ------------------------------------------------------------------------------------

START = np.array([0.5, 0.3, 0.2])  # π of θₜ
TAUS = (0.25, 1.0, 4.0)
RATE = 4.0  # large, so that one gradient step can be seen


def fig1() -> Drawing:
    """One gradient step of the surrogate, its argmin and the optimum, on the 3-arm bandit."""
    start = np.log(START)
    sources = {
        "drawn by π of θₜ": (START, style.BLUE),
        "drawn by π_b = (0.3, 0.6, 0.1)": (BEHAVIOR, style.VERMILION),
    }
    purple = style.DARK_PURPLE
    legend = [
        (_dot("black", "o"), "θₜ"),
        *[(_dot(color, "o", "-"), f"θₜ₊₁, data {name}") for name, (_, color) in sources.items()],
        (_dot(purple, "D", "--"), "θ̃ₜ₊₁, argmin of the surrogate loss"),
        (_dot("black", "*"), "θ*, always arm 3"),
    ]
    rows: list[Row] = []
    with matplotlib.rc_context(style.RC):
        figure, panels = page(
            9.4,
            2.75,
            "Figure 1: one REINFORCE step on the surrogate (3-arm bandit)",
            legend,
            "Computed. A point is a policy over three arms: the nearer a corner, the "
            "likelier its arm. Grey: level lines of the surrogate loss (Eq. 6) for data drawn by "
            "π of θₜ. Dashed: where its argmin (Eq. 4) lies as τ falls from infinity to 0, from θₜ "
            f"to the optimum θ*. A gradient step (Eq. 7, learning rate {RATE:g}) may fall short of "
            "the argmin or go past it, and need not point at it, least of all with data from "
            "another policy.",
        )
        for axes, tau in zip(panels.subplots(1, len(TAUS)), TAUS, strict=True):
            argmin = bandit.surrogate_argmin(start, REWARDS, tau)
            _simplex(axes, f"τ = {tau:g}")
            _level_lines(axes, start, tau)
            ray = start + np.linspace(0, 40, 2000)[:, None] * REWARDS
            axes.plot(*_flat(bandit.policy(ray)), "--", color=purple, lw=1)
            stations = {"start": start, "argmin": argmin}
            for name, (data, color) in sources.items():
                step = RATE * bandit.surrogate_step(start, data, REWARDS, tau)
                stations[f"step, data {name}"] = start + step
                axes.annotate(
                    "",
                    _flat(bandit.policy(start + step)),
                    _flat(START),
                    arrowprops={"arrowstyle": "->", "color": color, "lw": 1.6, "shrinkA": 0},
                )
                axes.plot(*_flat(bandit.policy(start + step)), "o", color=color, ms=4)
            axes.plot(*_flat(START), "o", color="black")
            axes.plot(*_flat(bandit.policy(argmin)), "D", color=purple)
            axes.plot(*CORNERS[2], "*", color="black", ms=10, clip_on=False)
            rows += [
                {
                    "tau": tau,
                    "point": name,
                    **_arms(bandit.policy(theta)),
                    "surrogate_loss": bandit.surrogate_loss(theta, start, START, REWARDS, tau),
                    "objective": bandit.objective(theta, start, REWARDS, tau),
                }
                for name, theta in stations.items()
            ]
    # The argmin moves along one ray from θₜ and the step along another, whatever τ is.
    found: dict[str, Any] = {
        "learning rate": RATE,
        **{
            f"cosine of step and way to the argmin, data {name}": bandit.cosine(
                bandit.surrogate_step(start, data, REWARDS, 1.0), REWARDS
            )
            for name, (data, _) in sources.items()
        },
        **{f"2τ/(1+τ)² at τ = {tau:g}": 2 * tau / (1 + tau) ** 2 for tau in TAUS},
    }
    return _drawing("fig1", "Figure 1", figure, rows, found)


def _level_lines(axes: Axes, start: Array, tau: float) -> None:
    grid = np.linspace(0.004, 0.992, 160)
    first, second = np.meshgrid(grid, grid)
    third = 1 - first - second
    inside = third > 0.003
    points = np.stack([first, second, third], -1)[inside]
    loss = bandit.surrogate_loss(np.log(points), start, START, REWARDS, tau)
    levels = np.quantile(loss, np.linspace(0.04, 0.9, 9))
    axes.tricontour(*_flat(points), loss, levels=levels, colors="0.78", linewidths=0.6)


# Figure 2 ------------------------------------------------------------------------------------

SCHEDULES = (Schedule(interval=4, offset=0, phase=Phase.paper),
             Schedule(interval=1, offset=4, phase=Phase.paper))  # fmt: skip
BATCHES = 8


@dataclass(frozen=True, slots=True)
class Slot:
    """When a batch is drawn and consumed, each taking one unit of time."""

    batch: int
    drawn: float
    trained: float


def timeline(schedule: Schedule, batches: int) -> list[Slot]:
    """Earliest times at which batches can be drawn and trained on under a schedule.

    A batch is drawn once its policy version exists. Training waits until `offset` batches lie in
    the buffer, as Appendix B.2 has it, and keeps that lead.
    """
    lead = max(0, schedule.offset - 1)
    drawn: list[float] = []
    trained: list[float] = []
    for batch in range(batches + lead):
        version = schedule.version(batch)
        free = drawn[-1] + 1 if drawn else 0.0
        drawn.append(max(free, trained[version - 1] + 1 if version else 0.0))
        if batch >= lead:
            free = trained[-1] + 1 if trained else 0.0
            trained.append(max(free, drawn[-1] + 1))
    return [Slot(batch, drawn[batch], trained[batch]) for batch in range(batches)]


def fig2() -> Drawing:
    """Rollout, buffer and training of two schedules; versions and staleness from `Schedule`."""
    worst = max(s.staleness(batch) for s in SCHEDULES for batch in range(BATCHES))
    legend = [
        *[
            (Patch(facecolor=_freshness(stale, worst), edgecolor="0.3"), f"staleness {stale}")
            for stale in range(worst + 1)
        ],
        (Patch(facecolor=style.SKY, alpha=0.6), "weights synchronised"),
    ]
    rows: list[Row] = []
    with matplotlib.rc_context(style.RC):
        figure, panels = page(
            9.6,
            2.3,
            "Figure 2: rollout and training under two schedules",
            legend,
            "Computed from the schedule's own functions, where a batch takes one unit of "
            "time to draw and one to train on, and everything starts as early as it may. A number "
            "is a batch; each batch feeds one gradient step. A lighter training block is staler: "
            "more gradient steps lie between drawing and training.",
        )
        for axes, schedule in zip(panels.subplots(1, len(SCHEDULES)), SCHEDULES, strict=True):
            slots = timeline(schedule, BATCHES)
            _lanes(axes, schedule, slots, worst)
            rows += [
                {
                    "interval": schedule.interval,
                    "offset": schedule.offset,
                    "batch": slot.batch,
                    "version": schedule.version(slot.batch),
                    "staleness": schedule.staleness(slot.batch),
                    "drawn": slot.drawn,
                    "trained": slot.trained,
                }
                for slot in slots
            ]
    found = {s.describe(): [s.staleness(batch) for batch in range(BATCHES)] for s in SCHEDULES}
    return _drawing("fig2", "Figure 2: staleness of each batch", figure, rows, found)


def _lanes(axes: Axes, schedule: Schedule, slots: list[Slot], worst: int) -> None:
    for slot in slots:
        shade = _freshness(schedule.staleness(slot.batch), worst)
        for x, y, color in ((slot.drawn, 2, "0.88"), (slot.trained, 0, shade)):
            axes.add_patch(Rectangle((x + 0.04, y), 0.92, 0.6, facecolor=color, edgecolor="0.3"))
            dark = sum(to_rgb(color)) < 1.7
            axes.text(
                x + 0.5, y + 0.28, str(slot.batch), ha="center", va="center",
                color="white" if dark else "black",
            )  # fmt: skip
        axes.annotate(
            "", (slot.trained + 0.06, 0.62), (slot.drawn + 0.94, 1.98),
            arrowprops={"arrowstyle": "->", "color": style.DARK_ORANGE, "lw": 0.9},
        )  # fmt: skip
        if any(schedule.version(other.batch) == slot.batch + 1 for other in slots):
            axes.bar(slot.trained + 1, 2.9, 0.13, -0.15, color=style.SKY, alpha=0.6, zorder=0)
    end = max(slot.trained for slot in slots) + 1
    axes.add_patch(Rectangle((0, 1.1), end, 0.4, color=style.YELLOW, alpha=0.35, lw=0))
    axes.set(xlim=(-0.1, end + 0.1), ylim=(-0.2, 2.85), xlabel="time (batches)")
    axes.set_yticks([0.3, 1.3, 2.3], ["training", "buffer", "rollout"])
    axes.set_title(f"interval {schedule.interval}, offset {schedule.offset}")
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
    axes.grid(False)


def _freshness(staleness: int, worst: int) -> tuple[float, float, float]:
    """Blue for fresh data, paler with staleness."""
    share = 0.85 * staleness / worst
    red, green, blue = (channel + (1 - channel) * share for channel in to_rgb(style.BLUE))
    return red, green, blue


# Figure 8 ------------------------------------------------------------------------------------

MASKS: dict[str, Clip] = {  # Appendix B.3
    "REC-OneSide (0.2)": OneSide(low=0.2, high=0.2),
    "REC-TwoSide (0.2)": TwoSide(low=0.2, high=0.2),
    "REC-Ring (0.2) & (0.6, 2.0)": Ring(low=0.2, high=0.2, outer_low=0.6, outer_high=2.0),
}
RATIOS = np.linspace(0.0025, 3.6025, 1441)  # no grid point on a bound, where rounding decides
SIGNS = {"A > 0": 1.0, "A < 0": -1.0}


def fig8() -> Drawing:
    """Where each mask lets the gradient through, found by evaluating the masks."""
    colors = {"A > 0": style.BLUE, "A < 0": style.VERMILION}
    rows: list[Row] = []
    found: dict[str, Any] = {}
    legend = [
        (Patch(facecolor=colors["A > 0"], alpha=0.35), r"active where A > 0: raises $\pi_\theta$"),
        (Patch(facecolor=colors["A < 0"], alpha=0.35), r"active where A < 0: lowers $\pi_\theta$"),
    ]
    with matplotlib.rc_context(style.RC):
        figure, panels = page(
            9.6,
            1.9,
            "Figure 8: active gradient regions",
            legend,
            "Computed by evaluating the masks at each probability ratio. Arrows point "
            "where the gradient pushes the ratio; where there is no bar, the gradient is 0. A bar "
            "that touches the right edge goes on without end. Dotted: ρ = 1, where no policy has "
            "moved yet.",
        )
        for axes, (name, clip) in zip(panels.subplots(1, 3), MASKS.items(), strict=True):
            for height, (sign, advantage) in zip((1, 0), SIGNS.items(), strict=True):
                active = active_ratios(clip, advantage)
                for low, high in _stretches(active):
                    axes.barh(height, high - low, 0.55, low, color=colors[sign], alpha=0.35, lw=0)
                    tail, head = (low, high) if advantage > 0 else (high, low)
                    axes.annotate(
                        "", (head, height), (tail, height),
                        arrowprops={"arrowstyle": "->", "color": colors[sign], "lw": 1.5},
                    )  # fmt: skip
                found[f"{name}, {sign}"] = [
                    f"{low:.2f} ≤ ρ" + (f" ≤ {high:.2f}" if high < RATIOS[-1] else "")
                    for low, high in _stretches(active)
                ]
                rows += [
                    {"mask": name, "advantage": sign, "ratio": ratio, "active": int(on)}
                    for ratio, on in zip(RATIOS.round(6).tolist(), active.tolist(), strict=True)
                ]
            bounds = {end for sign in SIGNS.values() for stretch in
                      _stretches(active_ratios(clip, sign)) for end in stretch}  # fmt: skip
            inner = sorted(b for b in bounds if RATIOS[0] < b < RATIOS[-1])
            axes.axvline(1, color="0.4", lw=0.8, ls=":")
            axes.set_xticks([0, *inner], ["0", *[f"{bound:.1f}" for bound in inner]])
            axes.set_yticks([1, 0], list(SIGNS))
            axes.set(xlim=(0, RATIOS[-1]), ylim=(-0.5, 1.5), title=name)
            axes.set_xlabel(r"probability ratio $\rho = \pi_\theta\,/\,\pi_{old}$")
            axes.grid(axis="y", visible=False)
    return _drawing("fig8", "Figure 8: active regions", figure, rows, found)


def active_ratios(clip: Clip, advantage: float) -> np.ndarray:
    """Boolean, one for each of RATIOS: whether a token of that advantage keeps its gradient."""
    log_ratio_BT = torch.from_numpy(np.log(RATIOS))[None, :]
    advantage_B = torch.tensor([advantage], dtype=torch.float64)
    mask_BT = torch.ones_like(log_ratio_BT, dtype=torch.bool)
    return clip(log_ratio_BT, advantage_B, mask_BT)[0].numpy()


def _stretches(active: np.ndarray) -> list[tuple[float, float]]:
    """Stretches of RATIOS without a gap, each end half-way to its inactive neighbour."""
    edges = np.flatnonzero(np.diff(np.concatenate([[0], active.astype(int), [0]])))
    half = (RATIOS[1] - RATIOS[0]) / 2
    return [
        (
            float(RATIOS[first] - half) if first else 0.0,
            float(RATIOS[last - 1] + half) if last < len(RATIOS) else float(RATIOS[-1]),
        )
        for first, last in edges.reshape(-1, 2)
    ]


# Section 3 -----------------------------------------------------------------------------------

STEPS, BANDIT_RATE, TAU = 2000, 1.0, 0.1
NARROW, WIDE = OneSide(low=0.2, high=0.2), OneSide(low=0.6, high=2.0)
METHODS: dict[str, Callable[[Array], Array]] = {
    "REINFORCE": lambda theta: bandit.reinforce(BEHAVIOR, REWARDS),
    "REC-OneSide-NoIS (0.2)": lambda theta: bandit.clipped(theta, BEHAVIOR, REWARDS, NARROW),
    "REC-OneSide-NoIS (0.6, 2.0)": lambda theta: bandit.clipped(theta, BEHAVIOR, REWARDS, WIDE),
    "OPMD (0.1)": lambda theta: bandit.opmd(theta, BEHAVIOR, REWARDS, TAU),
    "AsymRE (-0.1)": lambda theta: bandit.reinforce(BEHAVIOR, REWARDS, -TAU),
}
ON_POLICY = "REINFORCE, on-policy"


def bandit_pitfall() -> Drawing:
    """Section 3: where REINFORCE goes on fixed data of π_b, and where regularised methods stay."""
    start = np.log(BEHAVIOR)
    methods = {
        **METHODS,
        ON_POLICY: lambda theta: bandit.reinforce(bandit.policy(theta), REWARDS),
    }
    looks = style.looks(list(methods))
    paths = {
        name: bandit.policy(bandit.trajectory(coefficient, start, BANDIT_RATE, STEPS))
        for name, coefficient in methods.items()
    }
    legend = [
        (Line2D([], [], color=look.color, ls=look.dash, marker=look.marker), name)
        for name, look in looks.items()
    ]
    with matplotlib.rc_context(style.RC):
        figure, panels = page(
            9.6,
            3.1,
            "Section 3: the pitfall of REINFORCE on off-policy data (3-arm bandit)",
            legend,
            "Computed: rewards (0, 0.8, 1), exact expectations, learning rate "
            f"{BANDIT_RATE:g}. All start at π_b = (0.3, 0.6, 0.1) and, but for the on-policy one, "
            "learn from data of π_b alone. Each mark in the triangle is where a method ends. "
            "REINFORCE converges to arm 2, which pays less than arm 3. Clipping and OPMD's "
            "penalty bound the update: the policy comes to rest with arm 3 still alive. A shift of "
            "the baseline by 0.1 (AsymRE) is too small for that here.",
        )
        simplex, second, third = panels.subplots(1, 3)
        _simplex(simplex, "")
        for name, path in paths.items():
            look = looks[name]
            simplex.plot(*_flat(path), color=look.color, ls=look.dash)
            simplex.plot(*_flat(path[-1]), look.marker, color=look.color, clip_on=False, ms=6)
            for axes, arm in ((second, 1), (third, 2)):
                axes.plot(
                    np.arange(1, STEPS + 1), path[1:, arm], color=look.color, ls=look.dash,
                    marker=look.marker, markevery=(0.02, 0.15),
                )  # fmt: skip
        simplex.plot(*_flat(BEHAVIOR), "o", mfc="white", mec="black", zorder=5)
        simplex.annotate(r"$\pi_b$", _flat(BEHAVIOR), xytext=(-17, 2), textcoords="offset points")
        for axes, arm in ((second, 1), (third, 2)):
            axes.set(xscale="log", xlabel="gradient steps", ylim=(-0.03, 1.03))
            axes.set_ylabel(f"probability of arm {arm + 1}")
    ends = {name: _arms(path[-1]) for name, path in paths.items()}
    rows = [
        {"method": name, "step": step, **_arms(path[step])}
        for name, path in paths.items()
        for step in sorted({*range(0, 101), *range(100, STEPS + 1, 20)})
    ]
    rewards = {name: float(path[-1] @ REWARDS) for name, path in paths.items()}
    lines = [["method", *ends["REINFORCE"], "expected reward"]] + [
        [name, *(f"{p:.3f}" for p in ends[name].values()), f"{rewards[name]:.3f}"] for name in ends
    ]
    return Drawing(
        name="bandit",
        figure=figure,
        table=rows,
        statistics={"figure": "bandit", "final policy": ends, "final expected reward": rewards},
        summary="\n".join([f"Section 3: after {STEPS} steps", "", *columns_of_text(lines)]) + "\n",
    )


# Paper 2 -------------------------------------------------------------------------------------

EPSILONS = (0.0, 1e-3, 1e-2, 1e-1)


def paper2_fig1() -> Drawing:
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
    with matplotlib.rc_context(style.RC):
        figure, panels = page(
            5.2,
            2.8,
            "Paper 2, Figure 1: weight of the distance terms",
            legend,
            "Computed: (1 − σ)/σ with σ = √(p(1−p) + ε), for a reward that is 1 "
            "with probability p. It explodes where a prompt is nearly always or never solved; ε "
            "bounds it.",
        )
        axes = panels.subplots()
        for values, color, dash in zip(curves.values(), colors, style.DASHES, strict=True):
            axes.plot(probabilities, values, color=color, ls=dash)
        axes.set(yscale="log", xlabel="success probability p", ylabel="(1 − σ) / σ", xlim=(0, 1))
        axes.set_yticks([1, 2, 5, 10, 20], ["1", "2", "5", "10", "20"])
        axes.minorticks_off()
    rows = [
        {"epsilon": epsilon, "p": p, "value": value}
        for epsilon, values in curves.items()
        for p, value in zip(probabilities.round(6).tolist(), values.tolist(), strict=True)
    ]
    found = {f"ε = {e:g}": [float(v.min()), float(v.max())] for e, v in curves.items()}
    title = "Paper 2, Figure 1: least and greatest value"
    return _drawing("paper2_fig1", title, figure, rows, found)


CASES_PER_SIZE, SIZES, CASE_SEED = 4000, range(2, 11), 0
ROUNDING = 1e-9  # float64 sums of a few terms, with (1 − σ)/σ up to 1000


def theorem1() -> Drawing:
    """Paper 2, Theorem 1, on random finite policies: true improvement against its lower bound."""
    rng = np.random.default_rng(CASE_SEED)
    rows: list[Row] = []
    for arms in SIZES:
        cases = bandit.random_cases(rng, CASES_PER_SIZE, arms)
        columns = {
            "bound": bandit.improvement_bound(cases),
            "bound_constant_1": bandit.improvement_bound(cases, constant=1.0),
            "improvement": bandit.improvement(cases),
            "distance": bandit.total_variation(cases.policy, cases.behavior),
        }
        on_policy = (cases.current == cases.behavior).all(1)
        rows += [
            {"arms": arms, "on_policy": int(on), **dict(zip(columns, values, strict=True))}
            for on, *values in zip(
                on_policy.tolist(), *(each.tolist() for each in columns.values()), strict=True
            )
        ]
    value = {key: np.array([row[key] for row in rows]) for key in rows[0]}
    slack = value["improvement"] - value["bound"]
    found: dict[str, Any] = {
        "cases": len(rows),
        "violations": int((slack < -ROUNDING).sum()),
        "least slack": float(slack.min()),
        "median slack": float(np.median(slack)),
        "on-policy cases (Corollary 1)": int(value["on_policy"].sum()),
        "cases whose bound promises an improvement": int((value["bound"] > 0).sum()),
        "violations with the constant 2 replaced by 1": int(
            (value["improvement"] - value["bound_constant_1"] < -ROUNDING).sum()
        ),
    }
    with matplotlib.rc_context(style.RC):
        figure, panels = page(
            8.6,
            3.1,
            "Paper 2, Theorem 1 on random finite policies",
            [],
            f"Checked: {found['cases']} random triples of policies over "
            f"{SIZES[0]} to {SIZES[-1]} arms, {found['violations']} violations. A point below the "
            "diagonal would violate the bound. The colour is the total variation distance of the "
            "new policy to the one that drew the data. Left: all cases, linear between −1 and 1 "
            "and logarithmic beyond. Right: those near the diagonal.",
        )
        left, right = panels.subplots(1, 2)
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
        panels.colorbar(shown, ax=[left, right], label="TV(π, α)")
    return _drawing("theorem1", "Paper 2, Theorem 1", figure, rows, found)


COMPUTED: dict[str, Callable[[], Drawing]] = {
    "fig1": fig1,
    "fig2": fig2,
    "fig8": fig8,
    "bandit": bandit_pitfall,
    "paper2_fig1": paper2_fig1,
    "theorem1": theorem1,
}


# Shared --------------------------------------------------------------------------------------


def _simplex(axes: Axes, title: str) -> None:
    """A triangle whose corners are the policies that take one arm always."""
    axes.plot(*CORNERS[[0, 1, 2, 0]].T, color="0.4", lw=0.8)
    for corner, (name, offset) in enumerate(zip(ARMS, ((0, -11), (0, -11), (0, 8)), strict=True)):
        axes.annotate(
            name, CORNERS[corner], xytext=offset, textcoords="offset points", ha="center",
            va="center", fontsize=8, annotation_clip=False,
        )  # fmt: skip
    axes.set_title(title, pad=16)
    axes.set(aspect="equal", xlim=(-0.06, 1.06), ylim=(-0.1, 0.9))
    axes.set_axis_off()


def _flat(policy: Array) -> Array:
    """Policies ... x 3 as points x, y of the triangle, 2 x ..."""
    return np.moveaxis(policy @ CORNERS, -1, 0)


def _arms(policy: Array) -> dict[str, float]:
    return {f"arm {j + 1}": float(p) for j, p in enumerate(policy)}


def _dot(color: str, marker: str, line: str = "") -> Line2D:
    return Line2D([], [], color=color, marker=marker, linestyle=line)


def _drawing(
    name: str, title: str, figure: Figure, rows: list[Row], found: dict[str, Any]
) -> Drawing:
    lines = [title, "", *(f"{key}: {value}" for key, value in found.items())]
    return Drawing(name, figure, rows, {"figure": name, **found}, "\n".join(lines) + "\n")
