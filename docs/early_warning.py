"""Fits the early warning of `watch` and judges it: `python docs/early_warning.py` prints the table
of docs/staleness.md; `--write` also writes the coefficients.

Fitted on stale runs of some methods on one task, judged on other methods, the other task and a
language model. The alarm that it is compared with is that of alarms.yaml which archives can answer:
a mean KL to the initial model above .1 by the same step. Effective sample size, gradient norm and
the alignment of gradients are not archived.
"""

import functools
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas
from archived_runs import ACCURACY, LANGUAGE_MODEL, RESULTS, runs
from scipy.optimize import minimize
from scipy.stats import rankdata

from rec_experiments.analysis import alarms
from rec_experiments.analysis.alarms import EARLY_WARNING, Coefficients, Signs
from rec_experiments.analysis.results.formatting import markdown_table

ARCHIVES = ("stability", "presets", "clip_anatomy", "claims", LANGUAGE_MODEL)
FITTED = (
    "REINFORCE", "GRPO", "REC-OneSide-NoIS (0.2)", "REC-TwoSide-NoIS (0.2)", "OPMD", "RED-Weight",
)  # fmt: skip
SETTINGS_STEPS = {"reduction": 150, "chain": 150, "language model": 60}
AT_LEAST = 0.5
KL = 0.1  # nats per token, as in alarms.yaml
WRITTEN = """\
# The logit of the chance that a run on stale data fails is constant + lost x (share of the first
# accuracy that is lost) + log_drift x log10(mean of (log ρ)²), after a fifth of the run's steps.
# Fitted by docs/early_warning.py to {runs} runs of six methods on reduction.
constant: {constant:.2f}
lost: {lost:.2f}
log_drift: {log_drift:.2f}
at_least: {at_least}   # chance from which on `watch` warns
"""


@functools.cache
def stale_runs() -> pandas.DataFrame:
    """Each stale run once, with its signs, whether it fails, its KL by then, and the step at which
    it has lost half of its first accuracy."""
    parts = []
    for archive in ARCHIVES:
        table = pandas.read_csv(RESULTS / f"{archive}.csv.xz")
        found = runs(archive).set_index("run")
        found = found[(found["age"] > 0) & found["task"].isin(SETTINGS_STEPS)]
        for name, rows in table.groupby("run"):
            if name in found.index:
                run = found.loc[name]
                signs = alarms.signs(rows, SETTINGS_STEPS[run["task"]])
                if signs:
                    early = rows[rows["step"] <= signs.step]
                    kl = early["train/kl"].max() if "train/kl" in early else np.nan
                    parts.append({
                        "run": name, "arm": run["arm"], "task": run["task"], **signs._asdict(),
                        "fails": run["gain"] < 0, "kl": kl, "halved": run["halved"],
                        "kept": early[ACCURACY].iloc[-1] >= early[ACCURACY].iloc[0],
                        "fitted": archive == "stability" and run["task"] == "reduction"
                        and run["arm"] in FITTED,
                    })  # fmt: skip
    return pandas.DataFrame(parts).drop_duplicates("run")


def fit(found: pandas.DataFrame) -> Coefficients:
    """Maximum likelihood, with a penalty of half the squared standardised coefficients."""
    values, fails = found[["lost", "log_drift"]].to_numpy(), found["fails"].to_numpy()
    centre, spread = values.mean(0), values.std(0)
    terms = np.column_stack([np.ones(len(values)), (values - centre) / spread])

    def loss(weights: np.ndarray) -> float:
        signed = np.where(fails, 1, -1) * (terms @ weights)
        return float(np.logaddexp(0, -signed).sum() + (weights[1:] ** 2).sum() / 2)

    weights = minimize(loss, np.zeros(3)).x
    slopes = weights[1:] / spread
    return Coefficients(float(weights[0] - slopes @ centre), *map(float, slopes), AT_LEAST)


def auc(values: pandas.Series, fails: pandas.Series) -> float:
    """The chance that of two runs, one of which fails, the one that fails has the larger value."""
    positive, negative = int(fails.sum()), int((~fails).sum())
    ranks = rankdata(values)[fails.to_numpy()]
    return float((ranks.sum() - positive * (positive + 1) / 2) / (positive * negative))


def table() -> list[str]:
    """How the written coefficients judge each group of runs."""
    found = stale_runs()
    chance = [EARLY_WARNING.chance(signs) for signs in map(_signs, found.itertuples())]
    found = found.assign(
        chance=chance, warns=np.array(chance) >= EARLY_WARNING.at_least, alarm=found["kl"] > KL
    )
    reduction = found["task"] == "reduction"
    groups = {
        "fitted: six methods, reduction": found["fitted"],
        "other methods, reduction": reduction & ~found["arm"].isin(FITTED),
        "chain arithmetic": found["task"] == "chain",
        "language model": found["task"] == "language model",
        "all but the fitted, accuracy not yet below its start":
            found["kept"] & ~found["fitted"],
    }  # fmt: skip
    head = ["runs", "number", "fail", "AUC", "recall", "false alarms", "steps ahead",
            "KL: AUC", "recall", "false alarms"]  # fmt: skip
    return markdown_table(head, [_row(name, found[of]) for name, of in groups.items()])


def _signs(run: Any) -> Signs:
    return Signs(run.step, run.lost, run.log_drift)


def _row(name: str, found: pandas.DataFrame) -> list[str]:
    """Steps ahead: of runs that fail and are warned of, the median until half of the accuracy is
    lost, of those that have not yet lost it."""
    fails = found["fails"].astype(bool)
    caught = found[fails & found["warns"] & (found["halved"] > found["step"])]
    ahead = (caught["halved"] - caught["step"]).replace(np.inf, np.nan).median()
    ours = judged(found["chance"], found["warns"], fails)
    known = found[found["kl"].notna()]
    theirs = judged(known["kl"], known["alarm"], fails[known.index]) if len(known) else [""] * 3
    steps = "" if np.isnan(ahead) else f"{ahead:.0f}"
    return [name, f"{len(found)}", f"{fails.sum()}", *ours, steps, *theirs]


def judged(values: pandas.Series, warns: pandas.Series, fails: pandas.Series) -> list[str]:
    """AUC, recall and the share of false alarms among the runs that do not fail."""
    return [
        f"{auc(values, fails):.2f}",
        f"{warns[fails].mean():.0%}",
        f"{warns[~fails].mean():.1%}",
    ]


if __name__ == "__main__":
    fitted = stale_runs()[stale_runs()["fitted"]]
    found = fit(fitted)
    if "--write" in sys.argv:
        text = WRITTEN.format(runs=len(fitted), **found._asdict())
        Path(alarms.__file__).with_name("early_warning.yaml").write_text(text, encoding="utf-8")
    print("\n".join(table()))
