"""Writes docs/language_model.md and its picture: `make pages` or `python docs/language_model.py`.

The runs are those of docs/results/language_model_runs.csv.xz, SmolLM2 on two kinds of devices.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
import pandas
import yaml
from archived_runs import LANGUAGE_MODEL, runs
from forecasts import exponential, schedule_of, shown, span, unpaired
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from published import short, written

from rec_experiments.analysis.figures.style import looks
from rec_experiments.analysis.results import stability
from rec_experiments.analysis.results.formatting import markdown_table
from rec_experiments.analysis.results.stability import RATE
from rec_experiments.analysis.results.statistics import interval_of_mean

HERE = Path(__file__).parent
PICTURE = HERE / "figures" / "language_model_gains.png"
BASE, GRPO, CLIP = "REINFORCE", "GRPO", "REC-OneSide-NoIS (0.2)"
LOWER, UPPER = "REC-OneSide-NoIS, lower bound", "REC-OneSide-NoIS, upper bound"
NAMES = {CLIP: "NoIS (0.2)", LOWER: "lower bound alone", UPPER: "upper bound alone"}
SCHEDULES = {"interval 1": "fresh data"}
CELLS = [
    *((arm, "interval 20") for arm in (BASE, UPPER, GRPO, CLIP, LOWER)),
    *((BASE, sync) for sync in ("interval 1", "interval 5", "offline")),
    (GRPO, "interval 1"),
]
COMPARED = ("interval 20", "interval 5")  # their ages are the same in the miniature
Cell = tuple[str, str]  # method and schedule
Ratio = Callable[[pandas.DataFrame, pandas.DataFrame], stability.Mean | None]
STALE, FRESH = (BASE, "interval 20"), (BASE, "interval 1")
AT = ("interval 20", 2.0e-5)
DIFFERENCES = [
    (BASE, GRPO, "interval 20", 1.0e-5),
    (BASE, GRPO, *AT),
    (GRPO, CLIP, *AT),
    (LOWER, CLIP, *AT),
    (UPPER, BASE, *AT),
    (BASE, GRPO, "interval 1", 2.0e-5),
]  # one method minus another, in final accuracy
HEAD = ["", "fails at", "seeds", "forecast (p)", "÷ REINFORCE's", "reduction", "chain"]


def cell(table: pandas.DataFrame, arm: str, sync: str) -> pandas.DataFrame:
    return table[(table["arm"] == arm) & (table["sync"] == sync)]


def name(arm: str, sync: str) -> str:
    return f"{NAMES.get(arm, arm)}, {SCHEDULES.get(sync, sync)}"


def told(values: Sequence[float]) -> str:
    """The mean over seeds, with its 95 % t interval if there are several."""
    ends = interval_of_mean(values)
    mean = short(sum(values) / len(values))
    return f"{mean} [{short(ends[0])}, {short(ends[1])}]" if ends else mean


def accuracies(table: pandas.DataFrame) -> list[str]:
    """Final accuracy of each method and schedule at each rate, and how many of the runs fail."""
    rates = sorted(table[RATE].unique())
    rows = []
    for arm, sync in CELLS:
        own = cell(table, arm, sync)
        by_rate = [own[own[RATE] == rate] for rate in rates]
        failed = [f"{(each['gain'] < 0).sum()} of {len(each)}" for each in by_rate]
        texts = [
            f"{told([*each['final']])}; {of}" if len(each) else ""
            for each, of in zip(by_rate, failed, strict=True)
        ]
        if any(texts):
            rows.append([name(arm, sync), *texts])
    return markdown_table(["", *map(written, rates)], rows)


def edges(table: pandas.DataFrame, forecasts: dict[tuple[str, str], Any]) -> list[str]:
    """Where each method fails, its forecast, and the multiples here and in the miniature."""
    rows = []
    for arm, sync in CELLS:
        own = stability.edges(cell(table, arm, sync))
        if own.empty or arm == UPPER:
            continue
        said = forecasts.get((arm, sync))
        rows.append([
            name(arm, sync), shown(exponential(stability.mean(own["log2"], own["side"]))),
            f"{len(own)}",
            f"{span(*map(float, said['between']))} ({said['p']:g})" if said else "",
            multiple(table, (arm, sync)),
            *(in_miniature(task, (arm, sync)) if sync in COMPARED else ""
              for task in ("reduction", "chain")),
        ])  # fmt: skip
    return markdown_table(HEAD, rows)


def multiple(table: pandas.DataFrame, of: Cell, base: Cell = STALE, ratio: Ratio = unpaired) -> str:
    """The edge of a cell ÷ that of another; as in `14 [9.0, 24]`. Empty for the cell itself."""
    found = ratio(*(stability.edges(cell(table, *each)) for each in (of, base)))
    if found is None or of == base:
        return ""
    ends = found.interval and f" [{2 ** found.interval[0]:.2g}, {2 ** found.interval[1]:.2g}]"
    return f"{found.bound} {2**found.mean:.2g}{ends or ''}".strip()


def in_miniature(task: str, of: Cell, base: Cell = STALE) -> str:
    """The multiple in the stability map, paired by seed."""
    table = runs("stability")
    chosen = table[(table["task"] == task) & table["seed"].isin((0, 1, 2))]
    return multiple(chosen, of, base, stability.multiple)


def differences(table: pandas.DataFrame) -> list[str]:
    """Final accuracy of one method minus another's, paired by seed."""
    rows = []
    for one, other, sync, rate in DIFFERENCES:
        at = table[(table["sync"] == sync) & (table[RATE] == rate)]
        last = at.pivot_table(index="seed", columns="arm", values="final")
        pairs = (last[one] - last[other]).dropna()
        names = f"{NAMES.get(one, one)} − {NAMES.get(other, other)}"
        where = f"{SCHEDULES.get(sync, sync)}, {written(rate)}"
        rows.append([names, where, f"{len(pairs)}", told([*pairs])])
    return markdown_table(["", "at", "seeds", "difference"], rows)


def gains(axes: Axes, table: pandas.DataFrame, cells: dict[str, tuple[str, str]]) -> None:
    """The gain of every run against its rate, with the mean of each cell; failures are crosses."""
    axes.axhline(0, color="grey", linewidth=1)
    for key, look in looks([*cells]).items():
        own = cell(table, *cells[key])
        if own.empty:
            continue
        label = NAMES.get(key) or SCHEDULES.get(key, key)
        mean = own.groupby(RATE)["gain"].mean()
        axes.plot(mean.index, mean, color=look.color, linewidth=2.2, label=label)
        failed = own["gain"] < 0
        for rows, marker in ((own[~failed], look.marker), (own[failed], "x")):
            axes.plot(rows[RATE], rows["gain"], marker, color=look.color, markersize=7)
    axes.set(xscale="log", xlabel="learning rate", ylim=(-0.25, 0.5))
    axes.minorticks_off()
    axes.legend(fontsize=11, frameon=False, loc="upper right", ncols=2)


def picture(table: pandas.DataFrame) -> None:
    mpl.use("Agg")
    plt.rcParams.update({"font.size": 13, "axes.spines.top": False, "axes.spines.right": False})
    figure, both = plt.subplots(
        1, 2, figsize=(10, 4.4), sharex=True, sharey=True, layout="constrained"
    )
    gains(both[0], table, {arm: (arm, "interval 20") for arm in (BASE, GRPO, CLIP, LOWER)})
    gains(both[1], table, {sync: (arm, sync) for arm, sync in CELLS if arm == BASE})
    both[0].set(title="four methods, interval 20", ylabel="gain")
    both[1].set(title="REINFORCE, by schedule")
    for axes in both:
        rates = sorted(table[RATE].unique())
        axes.set_xticks(rates, [*map(written, rates)], rotation=40)
    figure.savefig(PICTURE, dpi=110)


def page() -> str:
    table = runs(LANGUAGE_MODEL)
    topics = yaml.safe_load((HERE / "forecasts.yaml").read_text())
    [own] = [topic["forecasts"] for topic in topics if topic["archive"] == LANGUAGE_MODEL]
    said = {(of["edge"]["arm"], schedule_of(of["edge"])): of for of in own if "edge" in of}
    blocks = {
        "accuracies": accuracies(table),
        "edges": edges(table, said),
        "grpo_multiple": [multiple(table, (GRPO, "interval 20"))],
        "clip_over_grpo": [multiple(table, (CLIP, "interval 20"), (GRPO, "interval 20"))],
        "lower_over_grpo": [multiple(table, (LOWER, "interval 20"), (GRPO, "interval 20"))],
        "grpo_over_fresh": [multiple(table, (GRPO, "interval 20"), FRESH)],
        "small_grpo_over_fresh": [in_miniature("reduction", (GRPO, "interval 20"), FRESH)],
        "fresh_over_5": [multiple(table, FRESH, (BASE, "interval 5"))],
        "fresh_multiple": [multiple(table, FRESH)],
        "small_fresh_multiple": [in_miniature("reduction", FRESH)],
        "offline_multiple": [multiple(table, (BASE, "offline"))],
        "differences": differences(table),
    }
    text = (HERE / "language_model.template").read_text()
    return text.format(**{key: "\n".join(lines) for key, lines in blocks.items()})


if __name__ == "__main__":
    picture(runs(LANGUAGE_MODEL))
    (HERE / "language_model.md").write_text(page())
