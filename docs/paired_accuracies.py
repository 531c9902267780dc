"""Print the numbers of docs/language_model.md: `python docs/paired_accuracies.py`.

Reads docs/results/language_model_fig3.csv.xz, whose runs of several devices no single command
selects. For each learning rate: final accuracies under interval 20 and on fresh data, differences
paired by seed, and how many runs fail as docs/stability.md defines it.
"""

from pathlib import Path

import numpy as np
import pandas
from scipy import stats

FILE = Path(__file__).parent / "results" / "language_model_fig3.csv.xz"
METHODS = {
    "algo=reinforce": "REINFORCE",
    "algo=grpo": "GRPO",
    "algo=rec_oneside_nois": "NoIS (0.2)",
    "algo=rec_oneside_nois clip.high=null": "lower bound",
    "algo=rec_oneside_nois clip.low=null": "upper bound",
}
PAIRS = [
    ("REINFORCE", "NoIS (0.2)"),
    ("REINFORCE", "GRPO"),
    ("lower bound", "NoIS (0.2)"),
    ("upper bound", "REINFORCE"),
    ("GRPO", "NoIS (0.2)"),
]


def runs() -> pandas.DataFrame:
    """Return a row for each run: rate, sync, method, seed, and its first, last and gain."""
    rows = pandas.read_csv(FILE).sort_values("step")
    rows["accuracy"] = rows["eval/accuracy"]
    found = pandas.DataFrame(
        {
            "first": rows.groupby("overrides")["accuracy"].first(),
            "last": rows.groupby("overrides")["accuracy"].last(),
            "second_half": rows.query("step >= 30")
            .groupby("overrides")[["step", "accuracy"]]
            .apply(lambda half: np.trapezoid(half["accuracy"], half["step"]) / 30),
        }
    ).reset_index()
    words = found["overrides"].str
    pieces = words.split().map(lambda all: sorted(w for w in all if w.startswith(("algo", "clip"))))
    return found.assign(
        method=pieces.str.join(" ").map(METHODS),
        rate=words.extract(r"learning_rate=(\S+)", expand=False).fillna("1.0e-5"),
        seed=words.extract(r"seed=(\d+)", expand=False).fillna("0"),
        sync=words.extract(r"sync=(\w+)", expand=False),
        gain=found["second_half"] - found["first"],
    )


def told(values: pandas.Series) -> str:
    """Return the mean over seeds with its 95 % t interval."""
    found = values.dropna()
    mean, half = found.mean(), stats.t.ppf(0.975, len(found) - 1) * found.sem()
    return f"{mean:+.3f} [{mean - half:+.3f}, {mean + half:+.3f}], {len(found)} seeds"


if __name__ == "__main__":
    for (rate, sync), cell in runs().groupby(["rate", "sync"]):
        print(f"learning rate {rate}, {sync}")
        last = cell.pivot_table(index="seed", columns="method", values="last")
        for method, own in cell.groupby("method"):
            rise, failed = told(own["last"] - own["first"]), (own["gain"] < 0).sum()
            print(f"  {method}: {told(own['last'])}; rise {rise}; {failed} runs fail")
        for one, other in PAIRS:
            if {one, other} <= {*last}:
                print(f"  {one} - {other}: {told(last[one] - last[other])}")
