"""Writes docs/forecasts.md, the score of the forecasts: `make pages` or `python docs/forecasts.py`.

`forecasts.yaml` and `orderings.yaml` were committed before the runs and the scores. A forecast
without its runs is open.
"""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import collapse_times
import numpy as np
import pandas
import yaml
from archived_runs import LANGUAGE_MODEL, runs, schedule
from orderings import Scored, orderings
from published import written
from scipy.stats import ttest_ind

from rec_experiments.analysis.results import stability
from rec_experiments.analysis.results.formatting import markdown_table
from rec_experiments.analysis.results.statistics import CONFIDENCE

HERE = Path(__file__).parent
HEAD = ["forecast", "between", "p", "measured", "happened"]
SCORE = ["topic", "forecasts", "decided", "happened", "Brier score", "of .5", "of the base rate"]


# Forecasts of runs that were not yet made ---------------------------------------------------------


def cell(table: pandas.DataFrame, of: dict[str, Any]) -> pandas.DataFrame:
    """The runs of a method under a schedule, and at a rate if one is named."""
    chosen = table[(table["arm"] == of["arm"]) & (table["sync"] == schedule_of(of))]
    return chosen[chosen[stability.RATE] == of["rate"]] if "rate" in of else chosen


def schedule_of(of: dict[str, Any]) -> str:
    return schedule(**{key: of[key] for key in ("interval", "offset") if key in of})


def measured(entry: dict[str, Any], forecast: dict[str, Any]) -> stability.Mean | None:
    """What a forecast of a topic speaks of: an edge, a ratio of two edges, or a difference of two
    gains."""
    table = runs(entry["archive"])
    if "gain" in forecast:
        one, other = (cell(table, forecast[key]).set_index("seed") for key in ("gain", "minus"))
        paired = (one["gain"] - other["gain"]).dropna().astype(float)
        return stability.mean(paired, paired * 0) if len(paired) else None
    if "ratio" in forecast:
        one, other = (stability.edges(cell(table, forecast[key])) for key in ("ratio", "of"))
        ratio = unpaired if entry["archive"] == LANGUAGE_MODEL else stability.multiple
        found = ratio(one, other)
    else:
        one = stability.edges(cell(table, forecast["edge"]))
        found = stability.mean(one["log2"], one["side"]) if len(one) else None
    return found and exponential(found)


def unpaired(one: pandas.DataFrame, other: pandas.DataFrame) -> stability.Mean | None:
    """As stability.multiple, with Welch's interval: the language model's runs of one seed are from
    two kinds of devices, so they share no noise."""
    found = stability.multiple(one, other)
    if found is None or found.interval is None:
        return found
    pairs = one.merge(other, on="seed", suffixes=("", "_of_other"))
    test = ttest_ind(pairs["log2"], pairs["log2_of_other"], equal_var=False)
    return found._replace(interval=tuple(test.confidence_interval(CONFIDENCE)))


def exponential(found: stability.Mean) -> stability.Mean:
    """2 to the power of a mean of log2, and of its interval."""
    ends = found.interval and (2.0 ** found.interval[0], 2.0 ** found.interval[1])
    return stability.Mean(2.0**found.mean, ends, found.bound)


def happened(found: stability.Mean | None, low: float, high: float) -> bool | None:
    """Whether the mean lies in the range; None if a bound does not tell."""
    if found is None or found.bound == "?":
        return None
    first = -math.inf if found.bound == "≤" else found.mean
    last = math.inf if found.bound == "≥" else found.mean
    if low <= first and last <= high:
        return True
    return False if last < low or first > high else None


def sentence(forecast: dict[str, Any]) -> str:
    """As in `edge: GRPO, constant lag 10 ÷ REINFORCE, constant lag 10`."""
    parts = [forecast[key] for key in ("edge", "ratio", "of", "gain", "minus") if key in forecast]
    sign = " − " if "gain" in forecast else " ÷ "
    rates = [f" at {written(of['rate'])}" if "rate" in of else "" for of in parts]
    names = [f"{of['arm']}, {schedule_of(of)}" for of in parts]
    words = sign.join(name + rate for name, rate in zip(names, rates, strict=True))
    return f"{'gain' if 'gain' in forecast else 'edge'}: {words}"


def topic(entry: dict[str, Any]) -> tuple[list[str], list[Scored], list[bool]]:
    """The section of a topic, its scores, and whether each edge lies within a factor of two of the
    middle of its range."""
    rows, scores, close = [], [], []
    for forecast in entry["forecasts"]:
        low, high = map(float, forecast["between"])
        found = measured(entry, forecast)
        scores.append(Scored(forecast["p"], happened(found, low, high)))
        said = {True: "yes", False: "**no**", None: "open"}[scores[-1].happened]
        p = f"{forecast['p']:g}"
        rows.append([sentence(forecast), span(low, high), p, shown(found), said])
        if "edge" in forecast and found and high < math.inf:
            middle = math.sqrt(low * high)
            near = happened(found, middle / 2, middle * 2)
            close += [near] if near is not None else []
    known = f"Known before: {entry['known'].strip()}"
    lines = [f"## {entry['topic']}", "", known, "", *markdown_table(HEAD, rows), ""]
    return lines, scores, close


def number(value: float) -> str:
    return written(value) if 0 < abs(value) < 0.01 else f"{value:.3g}"


def span(low: float, high: float) -> str:
    if high == math.inf:
        return f"≥ {number(low)}"
    return f"≤ {number(high)}" if low == -math.inf else f"{number(low)} to {number(high)}"


def shown(found: stability.Mean | None) -> str:
    if found is None:
        return ""
    ends = f" [{number(found.interval[0])}, {number(found.interval[1])}]" if found.interval else ""
    return f"{found.bound} {number(found.mean)}{ends}".strip()


# Scores -------------------------------------------------------------------------------------------


def score(name: str, scores: Sequence[Scored]) -> list[str]:
    """A row of the table of scores. Brier score: mean of (p − outcome)², the lower the better."""
    known = [each for each in scores if each.happened is not None]
    if not known:
        return [name, f"{len(scores)}", "0", "", "", "", ""]
    p, outcome = (np.array([each[at] for each in known], float) for at in (0, 1))
    weights = np.array([each.weight for each in known])
    base = np.average(outcome, weights=weights)
    brier = [np.average((guess - outcome) ** 2, weights=weights) for guess in (p, 0.5, base)]
    return [
        name,
        f"{len(scores)}",
        f"{len(known)}",
        f"{outcome.sum():.0f}",
        *(f"{x:.3f}" for x in brier),
    ]


def share_right(scores: Sequence[Scored]) -> str:
    """As in `61 of 92`: on how many decided forecasts the likelier side came true."""
    known = [each for each in scores if each.happened is not None and each.p != 0.5]
    return f"{sum((each.p > 0.5) == each.happened for each in known)} of {len(known)}"


def page() -> str:
    topics = yaml.safe_load((HERE / "forecasts.yaml").read_text())
    found = [topic(entry) for entry in topics]
    rows, published = orderings(yaml.safe_load((HERE / "orderings.yaml").read_text()))
    scores = {entry["topic"]: of for entry, (_, of, _) in zip(topics, found, strict=True)}
    scores |= {f"Published orderings: {kind}": of for kind, of in published.items()}
    every = [each for of in published.values() for each in of]
    scores["Published orderings: all"] = every
    near = {"own": [0, 0], "model": [0, 0]}
    for entry, (_, _, close) in zip(topics, found, strict=True):
        counts = near["model" if entry["archive"] == LANGUAGE_MODEL else "own"]
        counts[0] += sum(close)
        counts[1] += len(close)
    times = ["runs", "within a factor of two", "measured ÷ predicted", "M · S · η"]
    blocks = {
        "scores": markdown_table(SCORE, [score(*each) for each in scores.items()]),
        "topics": [line for lines, _, _ in found for line in lines],
        "orderings": markdown_table(["comparison", "published so", "our runs", "p"], rows),
        "times": markdown_table(times, collapse_times.table()),
        **{f"{name}_edges": ["{} of {}".format(*of)] for name, of in near.items()},
        "right": [share_right(every)],
    }
    text = (HERE / "forecasts.template").read_text()
    return text.format(**{name: "\n".join(lines) for name, lines in blocks.items()})


if __name__ == "__main__":
    (HERE / "forecasts.md").write_text(page())
