"""Accuracies of the language model on docs/language_model.md: `python docs/paired_accuracies.py`.

Reads docs/results/language_model_fig3.csv.xz, whose runs of several devices no single command
selects. Prints for each learning rate the mean of each method at step 60, differences between
methods, paired by seed, and how many runs fail: the area under the second half of their curve lies
below their first evaluation, as in docs/stability.md.
"""

from pathlib import Path

import numpy as np
import pandas

from rec_experiments.analysis.results.aggregate import interval_of_mean

FILE = Path(__file__).parent / "results" / "language_model_fig3.csv.xz"
METHODS = {
    "algo=reinforce": "REINFORCE", "algo=grpo": "GRPO", "algo=rec_oneside_nois": "NoIS (0.2)",
    "algo=rec_oneside_nois clip.high=null": "lower bound",
    "algo=rec_oneside_nois clip.low=null": "upper bound",
}  # fmt: skip
RATES = ("1.0e-5", "2.0e-5", "4.0e-5")
PAIRS = [
    ("REINFORCE", "NoIS (0.2)"), ("REINFORCE", "GRPO"), ("lower bound", "NoIS (0.2)"),
    ("upper bound", "REINFORCE"), ("upper bound", "NoIS (0.2)"), ("GRPO", "NoIS (0.2)"),
]  # fmt: skip


def accuracies(step: int, rate: str) -> pandas.DataFrame:
    """Seeds x (schedule, method)."""
    return pivoted(pandas.read_csv(FILE).query("step == @step"), rate)


def gains(rate: str) -> pandas.DataFrame:
    """The area under the second half of each curve minus its first evaluation; seeds x (schedule,
    method)."""
    rows = pandas.read_csv(FILE)
    second_half = rows.query("step >= 30").groupby("overrides")[["step", "eval/accuracy"]]
    areas = second_half.apply(lambda run: np.trapezoid(run["eval/accuracy"], run["step"]) / 30)
    first = rows.query("step == 0").set_index("overrides")["eval/accuracy"]
    return pivoted((areas - first).rename("eval/accuracy").reset_index(), rate)


def pivoted(rows: pandas.DataFrame, rate: str) -> pandas.DataFrame:
    """One value of each run at this learning rate as seeds x (schedule, method)."""
    rates = rows["overrides"].str.extract(r"learning_rate=(\S+)")[0].fillna(RATES[0])
    rows = rows[rates == rate]
    words = rows["overrides"].str.split()
    method = words.map(lambda w: " ".join(x for x in sorted(w) if x.startswith(("algo", "clip"))))
    return rows.assign(
        method=method.map(METHODS),
        seed=rows["overrides"].str.extract(r"seed=(\d+)")[0].fillna("0"),
        sync=rows["overrides"].str.extract(r"sync=(\w+)")[0],
    ).pivot_table(index="seed", columns=["sync", "method"], values="eval/accuracy")


def told(name: str, values: pandas.Series) -> str:
    found = values.dropna()
    low, high = interval_of_mean(found.tolist()) or (float("nan"), float("nan"))
    return f"{name:40} {found.mean():+.3f} [{low:+.3f}, {high:+.3f}], {len(found)} seeds"


if __name__ == "__main__":
    for rate in RATES:
        first, last = accuracies(0, rate), accuracies(60, rate)
        print(f"learning rate {rate}")
        for sync, method in last:
            print(told(f"{method}, {sync}", last[sync, method]))
        for one, other in PAIRS:
            stale = last["interval20"]
            if {one, other} <= {*stale}:
                print(told(f"{one} - {other}, interval20", stale[one] - stale[other]))
        if "REINFORCE" in first.get("on_policy", {}):
            fresh = last["on_policy"]["REINFORCE"]
            stale = last["interval20"]["REINFORCE"]
            print(told("REINFORCE, on_policy - interval20", fresh - stale))
            print(told("REINFORCE - its start, on_policy", fresh - first["on_policy"]["REINFORCE"]))
            if "GRPO" in last["on_policy"]:
                print(told("REINFORCE - GRPO, on_policy", fresh - last["on_policy"]["GRPO"]))
        for method in ("REINFORCE", "GRPO", "NoIS (0.2)"):
            rise = last["interval20"][method] - first["interval20"][method]
            print(told(f"{method} - its start, interval20", rise))
        for (sync, method), found in gains(rate).items():
            print(f"{method}, {sync}: {(found < 0).sum()} of {found.count()} runs fail")
