"""Writes docs/staleness.md and its picture: `make pages` or `python docs/staleness.py`.

Which method at which staleness, and which property of the data's ages orders the edges: those of
sweep=stability rise and fall, those of sweep=constant_lags and of the claims are constant.
"""

import functools
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import early_warning
import language_model
import matplotlib as mpl
import numpy as np
import pandas
from archived_runs import LANGUAGE_MODEL, runs
from matplotlib import pyplot as plt
from published import short, written

from rec_experiments.analysis.figures.style import looks
from rec_experiments.analysis.results import stability
from rec_experiments.analysis.results.formatting import markdown_table

HERE = Path(__file__).parent
PICTURE = HERE / "figures" / "edges.png"
BASE, LOWER = "REINFORCE", "REC-OneSide-NoIS, lower bound"
DRAWN = {BASE: BASE, "GRPO": "GRPO", LOWER: "lower bound alone"}
METHODS = (
    BASE, "REC-TwoSide-NoIS (0.2)", "GRPO", "REC-OneSide-NoIS (0.2)", "REC-OneSide-NoIS (0.6, 2.0)",
    LOWER, "OPMD", "AsymRE", "RED-Weight",
)  # fmt: skip
SAWTOOTHS = ("interval 5", "interval 20", "interval 50", "offline")
LAG, LAG_RATE = "constant lag 10", 1.0e-4
SCHEDULES = ("interval 5", "interval 20", LAG, "interval 50", "constant lag 50", "offline")
COMPARED = {"GRPO": "GRPO", "OPMD": "OPMD", LOWER: "lower bound alone"}
QUANTITIES = {
    "maximum": max,
    "root mean square": lambda ages: float(np.sqrt(np.mean(np.square(ages)))),
    "mean": lambda ages: float(np.mean(ages)),
    "geometric mean of age + 1": lambda ages: float(np.exp(np.log1p(ages).mean())),
    "steps between synchronisations": lambda ages: len(ages) / len({*_versions(ages)}),
}


def _versions(ages: Sequence[int]) -> list[int]:
    return [step - age for step, age in enumerate(ages)]


# Edges against age --------------------------------------------------------------------------------


@functools.cache
def edges() -> pandas.DataFrame:
    """The edge of each method on stale data of reduction, mean over seeds.

    Columns: arm, sync, edge, low and high (its 95 % interval), bound, ages of the data.
    """
    seeds = {"stability": (0, 1, 2), "constant_lags": (0, 1, 2), "claims": range(10, 20)}
    found = []
    for archive, chosen in seeds.items():
        table = runs(archive)
        stale = table[(table["task"] == "reduction") & (table["age"] > 0)]
        if archive == "claims":
            stale = stale[stale["sync"] == LAG]
        ages = dict(zip(stale["sync"], stale["ages"], strict=True))
        logs = stability.edges(stale[stale["seed"].isin(chosen)])
        for (arm, sync), mean in stability.means(logs).items():
            low, high = mean.interval or (np.nan, np.nan)
            if archive != "claims" or mean.bound != "≥":  # of two rates; no upper tier fails there
                found.append((arm, sync, 2**mean.mean, 2**low, 2**high, mean.bound, ages[sync]))
    columns = ["arm", "sync", "edge", "low", "high", "bound", "ages"]
    return pandas.DataFrame(found, columns=columns).drop_duplicates(["arm", "sync"])


def laws(found: pandas.DataFrame) -> list[list[str]]:
    """For each quantity of the ages: the exponent of REINFORCE's edge, fitted to the sawtooths, how
    far they lie from the fit, and measured ÷ predicted at each constant lag."""
    base = found[(found["arm"] == BASE) & (found["bound"] != "?")]
    saw = base[base["sync"].isin(SAWTOOTHS)]
    lags = base[~base["sync"].isin(SAWTOOTHS)].sort_values("edge", ascending=False)
    rows = []
    for name, quantity in QUANTITIES.items():
        x = np.log([quantity(ages) for ages in saw["ages"]])
        slope, constant = np.polyfit(x, np.log(saw["edge"]), 1)
        left = np.log(saw["edge"]) - constant - slope * x
        at = np.log([quantity(ages) for ages in lags["ages"]])
        off = lags["edge"] / np.exp(constant + slope * at)
        marks = [f"{b}{value:.2f}" for b, value in zip(lags["bound"], off, strict=True)]
        rows.append([name, f"{slope:.2f}", f"{np.exp(np.abs(left).max()):.2f}", *marks])
    return markdown_table(["ages by their", "exponent", "worst fit", *lags["sync"]], rows)


def lag_edges(found: pandas.DataFrame) -> list[str]:
    """Where REINFORCE fails at constant lags, as parts of its best rate on fresh data: as in `at
    lags of 2, 5 it fails at 0.80, 0.36`."""
    lags = found[(found["arm"] == BASE) & (found["bound"] == "")].copy()
    lags = lags[lags["sync"].str.startswith("constant lag")]
    lags["lag"] = lags["sync"].str.rpartition(" ")[2].astype(int)
    lags = lags.sort_values("lag")
    fresh = best(runs("stability"), BASE, "interval 1", "reduction").rate
    parts = ", ".join(f"{edge / fresh:.2f}" for edge in lags["edge"])
    return [f"at lags of {', '.join(map(str, lags['lag']))} it fails at {parts}"]


def multiples() -> list[str]:
    """The edges of methods as multiples of REINFORCE's at the same schedule, paired by seed."""
    table = pandas.concat([runs("stability"), runs("constant_lags")])
    chosen = (table["task"] == "reduction") & table["seed"].isin((0, 1, 2)) & (table["age"] > 0)
    found = stability.edges(table[chosen])
    rows = []
    for sync in SCHEDULES[1:-1]:
        base, *others = (
            found[(found["arm"] == arm) & (found["sync"] == sync)] for arm in (BASE, *COMPARED)
        )
        of_base = [stability.multiple(other, base) for other in others]
        rows.append([sync, *(_times(each) for each in of_base)])
    return markdown_table(["edge ÷ REINFORCE's", *COMPARED.values()], rows)


def _times(found: stability.Mean | None) -> str:
    if found is None:
        return ""
    ends = found.interval
    span = f" [{2 ** ends[0]:.0f}, {2 ** ends[1]:.0f}]" if ends else ""
    return f"{found.bound}{2**found.mean:.0f}{span}"


def paired() -> list[str]:
    """The edge of REINFORCE under the constant lag ÷ that under interval 20, paired over the seeds
    of the claims, as in `at most 0.61`."""
    table = runs("claims")
    both = table["sync"].isin((LAG, "interval 20")) & table[stability.RATE].isin((3.0e-5, LAG_RATE))
    found = stability.edges(table[(table["task"] == "reduction") & (table["arm"] == BASE) & both])
    lag, saw = (found[found["sync"] == sync] for sync in (LAG, "interval 20"))
    ratio = stability.multiple(lag, saw)
    return [f"{'at most ' if ratio.bound else ''}{2**ratio.mean:.2f}"]


def lag_ratios() -> list[str]:
    """The edges of REINFORCE and GRPO under the constant lag ÷ those under interval 20, paired by
    seed, as in `.54 [.48, .61] and .63 [.42, .95]`."""
    table = pandas.concat([runs("stability"), runs("constant_lags")])
    chosen = (table["task"] == "reduction") & table["seed"].isin((0, 1, 2))
    found = stability.edges(table[chosen & table["sync"].isin((LAG, "interval 20"))])
    ratios = []
    for arm in (BASE, "GRPO"):
        lag, saw = (
            found[(found["arm"] == arm) & (found["sync"] == sync)] for sync in (LAG, "interval 20")
        )
        of = stability.multiple(lag, saw)
        low, high = np.exp2(of.interval)
        ratios.append(f"{short(2**of.mean)} [{short(low)}, {short(high)}]")
    return [" and ".join(ratios)]


def picture(found: pandas.DataFrame) -> None:
    """Edges against the mean age, on logarithmic axes: sawtooths filled and joined, lags open."""
    mpl.use("Agg")
    plt.rcParams.update({"font.size": 13, "axes.spines.top": False, "axes.spines.right": False})
    figure, axes = plt.subplots(figsize=(8, 4.6), layout="constrained")
    for arm, look in looks([*DRAWN]).items():
        of_arm = found[found["arm"] == arm].assign(x=found["ages"].map(np.mean)).sort_values("x")
        saw = of_arm["sync"].isin(SAWTOOTHS)
        for rows, line, face in ((of_arm[saw], "-", look.color), (of_arm[~saw], "", "white")):
            axes.errorbar(
                rows["x"], rows["edge"], [rows["edge"] - rows["low"], rows["high"] - rows["edge"]],
                color=look.color, linestyle=line, marker=look.marker, markersize=9,
                markerfacecolor=face, markeredgewidth=2, linewidth=2,
            )  # fmt: skip
            for _, row in rows[rows["bound"] != ""].iterrows():
                text, shift = ("↑", 9) if row["bound"] == "≥" else ("↓", -22)
                axes.annotate(text, (row["x"], row["edge"]), (0, shift), ha="center",
                              textcoords="offset points", color=look.color)  # fmt: skip
        last = of_arm[saw].iloc[-1]
        axes.annotate(DRAWN[arm], (last["x"], last["edge"]), (12, -4),
                      textcoords="offset points", color=look.color)  # fmt: skip
    axes.set(xscale="log", yscale="log", xlabel="mean age of the data, in gradient steps",
             ylabel="rate at which it fails", xlim=(1.5, 300))  # fmt: skip
    axes.set_xticks([2, 5, 10, 20, 50, 75], ["2", "5", "10", "20", "50", "75"])
    axes.minorticks_off()
    figure.savefig(PICTURE, dpi=110)


# Which method -------------------------------------------------------------------------------------


def methods() -> list[str]:
    """For each method and schedule of reduction: its best rate ÷ its best rate on fresh data, and
    the gain there ÷ the gain on fresh data; then the gains at the best rates on chain arithmetic.
    + and − mark a best rate that is the highest or the lowest one tried."""
    table = runs("stability")
    table = table[table["seed"].isin((0, 1, 2))]
    lags = pandas.concat([runs("claims"), runs("constant_lags")])
    rows = []
    for arm in METHODS:
        source = BASE if arm.startswith("REC-") else arm  # on fresh data the clips do not act
        fresh = best(table, source, "interval 1", "reduction")
        cells = [
            best(table if sync in SAWTOOTHS else lags, arm, sync, "reduction") for sync in SCHEDULES
        ]
        chain = [best(table, arm, sync, "chain") for sync in ("interval 20", "offline")]
        rows.append([
            arm, written(fresh.rate), *(shares(each, fresh) for each in cells),
            *(f"{each.gain:.2f}" for each in chain if each),
        ])  # fmt: skip
    head = ["method", "best fresh rate", *SCHEDULES, "chain, interval 20", "chain, offline"]
    return markdown_table(head, rows)


def on_language_model(sync: str, arms: Sequence[str]) -> list[str]:
    """The gains of a language model at the best rates, as in `REINFORCE .18 (at 1e-5−)`."""
    table = runs(LANGUAGE_MODEL)
    found = {DRAWN[arm]: best(table, arm, sync, "language model") for arm in arms}
    texts = [
        f"{name} {short(of.gain)} (at {written(of.rate)}{of.end})" for name, of in found.items()
    ]
    return [", ".join(texts)]


class Best(NamedTuple):
    """The rate with the highest gain, mean over seeds; + or − if no higher or lower was tried."""

    rate: float
    gain: float
    end: str


def best(table: pandas.DataFrame, arm: str, sync: str, task: str) -> Best | None:
    """None if there are no runs."""
    chosen = table[(table["arm"] == arm) & (table["sync"] == sync) & (table["task"] == task)]
    gains = chosen.groupby(stability.RATE)["gain"].mean()
    if gains.empty:
        return None
    at = gains.argmax()
    end = "+" if at == len(gains) - 1 else "−" if at == 0 else ""
    return Best(float(gains.index[at]), float(gains.max()), end)


def shares(of: Best | None, fresh: Best) -> str:
    """As in `1/4 · 56%`; rates are rounded to steps of two."""
    if of is None:
        return ""
    power = round(np.log2(of.rate / fresh.rate))
    rate = f"{2**power}" if power >= 0 else f"1/{2**-power}"
    return f"{rate}{of.end} · {max(of.gain, 0) / fresh.gain:.0%}"


def page() -> str:
    blocks = {
        "laws": laws(edges()),
        "methods": methods(),
        "paired": paired(),
        "lag_ratios": lag_ratios(),
        "lag_edges": lag_edges(edges()),
        "multiples": multiples(),
        "model_stale": on_language_model("interval 20", [*DRAWN]),
        "model_fresh": on_language_model("interval 1", [BASE]),
        "model_grpo": [language_model.multiple(runs(LANGUAGE_MODEL), ("GRPO", "interval 20"))],
        "model_fall": [language_model.multiple(runs(LANGUAGE_MODEL), language_model.FRESH)],
        "warning": early_warning.table(),
    }
    text = (HERE / "staleness.template").read_text()
    return text.format(**{name: "\n".join(lines) for name, lines in blocks.items()})


if __name__ == "__main__":
    picture(edges())
    (HERE / "staleness.md").write_text(page())
