"""Results for people (text) and for programs (plain values)."""

import json
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from rec_experiments import sweeps
from rec_experiments.analysis.results.learning_curve import FORM, PARAMETERS, fit
from rec_experiments.analysis.results.over_seeds import CONFIDENCE, interval_of_mean, of_finished
from rec_experiments.analysis.results.runs import FigureData, Row, Run
from rec_experiments.analysis.results.statistics import (
    BEST_POINTS,
    LAST_POINTS,
    Measure,
    Statistic,
    area_under_curve,
    best,
    final,
    highest,
    last,
    lowest,
    mean,
    median,
)

EVALUATED = "eval/accuracy"
SUMMARISED = (EVALUATED, "train/reward")
SUMMARIES: dict[str, Measure] = {
    "final": final,
    "area": area_under_curve,
    "best": best,
    "last": last,
}
# What hydra.sweeper.statistics may name.
STATISTICS = {
    "lowest": Statistic("Min", "lowest of a run's evaluations, the one at step 0 included", lowest),
    "highest": Statistic("Max", "highest of them", highest),
    "median": Statistic("Median", "median of them", median),
    "mean": Statistic("Mean", "mean of them", mean),
}
assert set(STATISTICS) == set(sweeps.STATISTICS)
INTERVAL = f"{100 * CONFIDENCE:.0f} % t interval over seeds"
NAMES_SHOWN = 6


def summary(data: FigureData) -> dict[str, Any]:
    """Per arm and column, over finished runs: mean of each statistic with its interval, and the
    fitted learning curve; of the evaluations, the statistics that the figure names.

    Partial and missing runs are named, and are not in the means.
    """
    found: dict[str, Any] = {
        "figure": data.name,
        "title": data.title,
        "interval": INTERVAL,
        "final": f"{LAST_POINTS} of a run",
        "area": "area under the curve divided by its length",
        "best": BEST_POINTS,
        "curve": f"{FORM}, R0 the first point",
        "rows": list(_summary_rows(data)),
        "partial": [_describe(run) for run in data.partial],
        "missing": [run.name for run in data.missing],
    }
    if data.statistics:
        found["statistics"] = {name: STATISTICS[name].meaning for name in data.statistics}
        found["evaluations"] = list(_evaluation_rows(data))
    return found


def _summary_rows(data: FigureData) -> Iterator[Row]:
    for arm in data.arms:
        for column in data.columns:
            runs = data.select(arm, column)
            for metric in SUMMARISED:
                found = {
                    name: of_finished(runs, measure, metric) for name, measure in SUMMARIES.items()
                }
                yield {
                    "arm": arm,
                    "column": column,
                    "metric": metric,
                    "seeds": len(found["final"].values),
                    **{name: _mean(list(each.values.values())) for name, each in found.items()},
                    "curve": _curve(runs, metric),
                }


def _evaluation_rows(data: FigureData) -> Iterator[Row]:
    for arm in data.arms:
        for column in data.columns:
            runs = data.select(arm, column)
            found = {
                name: list(of_finished(runs, STATISTICS[name].of, EVALUATED).values.values())
                for name in data.statistics
            }
            yield {
                "arm": arm,
                "column": column,
                "seeds": min(map(len, found.values())),
                **{name: _mean(values) for name, values in found.items()},
            }


def _curve(runs: list[Run], metric: str) -> dict[str, Any]:
    """Means over the seeds whose curve could be fitted. without: why not, with the seeds."""
    found = of_finished(runs, fit, metric)
    curves = list(found.values.values())
    return {
        "seeds": len(curves),
        "without": dict(Counter(found.without.values())),
        **{name: _mean([getattr(curve, name) for curve in curves]) for name in PARAMETERS},
    }


def _mean(values: list[float]) -> dict[str, Any] | None:
    if not values:
        return None
    interval = interval_of_mean(values)
    return {"mean": float(np.mean(values)), "interval": list(interval) if interval else None}


def summary_text(found: dict[str, Any]) -> str:
    """The summary of a figure as text: the statistics and the fitted curves, one line an arm,
    column and metric, and the table of the evaluations if there is one."""
    cells = [[row["arm"], row["column"], row["metric"]] for row in found["rows"]]
    head = ["arm", "column", "metric", "seeds"]
    body = [
        [*cell, str(row["seeds"]), *(_cell(row[name]) for name in SUMMARIES)]
        for cell, row in zip(cells, found["rows"], strict=True)
    ]
    curves = [
        [*cell, str(curve["seeds"]), *(_cell(curve[name]) for name in PARAMETERS), _without(curve)]
        for cell, row in zip(cells, found["rows"], strict=True)
        for curve in [row["curve"]]
        if row["seeds"]
    ]
    lines = [
        found["title"],
        "",
        *columns_of_text([[*head, *SUMMARIES], *body]),
        "",
        *columns_of_text([[*head, *PARAMETERS, "seeds without a curve"], *curves]),
        "",
        f"[ ]    {found['interval']}; none with one seed",
        *(f"{name:<6} {found[name]}" for name in ("final", "area", "best", "curve")),
    ]
    for word in ("partial", "missing"):
        lines += [f"{word}  {name}" for name in found[word]]
    if "evaluations" in found:
        lines += ["", *_evaluations_text(found)]
    return "\n".join(lines) + "\n"


def _evaluations_text(found: dict[str, Any]) -> list[str]:
    """The statistics of the evaluations, one line an arm and column."""
    names = {name: STATISTICS[name].name for name in found["statistics"]}
    body = [
        [row["arm"], row["column"], str(row["seeds"]), *(_half(row[name]) for name in names)]
        for row in found["evaluations"]
    ]
    return [
        *columns_of_text([["arm", "column", "seeds", *names.values()], *body]),
        "",
        f"±      half of the {found['interval']}; none with one seed",
        *(f"{head:<6} {found['statistics'][name]}" for name, head in names.items()),
    ]


def _half(value: dict[str, Any] | None) -> str:
    """A mean ± half of its interval."""
    if value is None:
        return "-"
    low_high = value["interval"]
    half = f" ± {(low_high[1] - low_high[0]) / 2:.4f}" if low_high else ""
    return f"{value['mean']:.4f}{half}"


def _cell(value: dict[str, Any] | None) -> str:
    if value is None:
        return "-"
    low_high = value["interval"]
    interval = f" [{low_high[0]:.3f}, {low_high[1]:.3f}]" if low_high else ""
    return f"{value['mean']:.3f}{interval}"


def _without(curve: dict[str, Any]) -> str:
    return "; ".join(f"{count}: {why}" for why, count in curve["without"].items())


def remarks(data: FigureData) -> list[str]:
    """What a reader of the figure must know: of few seeds, of runs not whole, or not alone."""
    found = []
    seeds_at_hand = {run.seed for run in data.runs if run.rows}
    if data.claim_seeds and len(seeds_at_hand) < data.claim_seeds:
        found.append(
            f"A quick look at {count_of_seeds(len(seeds_at_hand))}; claims need {data.claim_seeds}."
        )
    if data.partial:
        found.append("Partial, drawn as far as they go: " + _names(map(_describe, data.partial)))
    seeds: dict[str, list[str]] = {}
    for run in data.missing:
        seeds.setdefault(run.cell, []).append(str(run.seed))
    if seeds:
        found.append(
            "Missing: " + _names(f"{cell}, seed {', '.join(each)}" for cell, each in seeds.items())
        )
    return found + origins(data.runs)


def origins(runs: Iterable[Run]) -> list[str]:
    """Sentences on runs that are in several folders, and on those that other code made."""
    runs = list(runs)
    copied = {run.path: f"{run.name}, from {run.path.parent.name}" for run in runs if run.copies}
    differ = {run.path: copied[run.path] for run in runs if run.they_differ}
    found = [
        f"{words}: {_names(names.values())}"
        for words, names in (
            ("In several folders, counted once", copied),
            ("With other numbers in another folder", differ),
        )
        if names
    ]
    return found + makers(runs)


def makers(runs: Iterable[Run]) -> list[str]:
    """A sentence on each that made runs and is not this code."""
    names: dict[str, dict[Path, str]] = {}
    for run in runs:
        if run.made_by:
            names.setdefault(run.made_by, {}).setdefault(run.path, run.name)
    return [f"Made by {maker}: " + _names(each.values()) for maker, each in names.items()]


def _names(names: Iterable[str]) -> str:
    names = list(names)
    more = len(names) - NAMES_SHOWN
    return "; ".join(names[:NAMES_SHOWN]) + (f"; and {more} more." if more > 0 else ".")


def count_of_seeds(count: int) -> str:
    """In words."""
    return "1 seed" if count == 1 else f"{count} seeds"


def _describe(run: Run) -> str:
    return f"{run.name} ({run.state}, step {run.last_step})"


def columns_of_text(table: list[list[str]]) -> list[str]:
    """Rows of cells as lines, each column as wide as its widest cell."""
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in table
    ]


def to_json(value: Any) -> bytes:
    """As a file holds it. Raises ValueError for a number that is not finite."""
    return (json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n").encode()
