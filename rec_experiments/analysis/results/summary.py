"""The statistics of a figure's runs, as plain values and as text."""

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from rec_experiments import sweeps
from rec_experiments.analysis.results.aggregate import CONFIDENCE, finished_values, interval_of_mean
from rec_experiments.analysis.results.figure_data import FigureData
from rec_experiments.analysis.results.formatting import text_table
from rec_experiments.analysis.results.runs import Row, Run, releases_text
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
# The choices of hydra.sweeper.statistics.
STATISTICS = {
    "lowest": Statistic("Min", "lowest evaluation of a run, step 0 included", lowest),
    "highest": Statistic("Max", "highest evaluation of a run", highest),
    "median": Statistic("Median", "median evaluation of a run", median),
    "mean": Statistic("Mean", "mean evaluation of a run", mean),
}
assert set(STATISTICS) == set(sweeps.STATISTICS)
INTERVAL = f"{100 * CONFIDENCE:.0f} % t interval over seeds"
NAMES_SHOWN = 6


def summary(data: FigureData) -> dict[str, Any]:
    """For each arm and column, over finished runs: the mean of each statistic with its interval,
    and the difference from the figure's first arm; also the evaluation statistics that the figure
    asks for.

    Partial and missing runs are listed and do not enter the means.
    """
    found: dict[str, Any] = {
        "figure": data.name,
        "title": data.title,
        "releases": releases_text(data.runs),
        "interval": INTERVAL,
        "final": f"{LAST_POINTS} of a run",
        "area": "area under the curve divided by its length",
        "best": BEST_POINTS,
        "paired": f"difference of the area from that of {data.arms[0]}, paired by seed",
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
            runs, first = data.select(arm, column), data.select(data.arms[0], column)
            for metric in dict.fromkeys([*SUMMARISED, *(panel.metric for panel in data.panels)]):
                found = {
                    name: finished_values(runs, measure, metric)
                    for name, measure in SUMMARIES.items()
                }
                yield {
                    "arm": arm,
                    "column": column,
                    "metric": metric,
                    "seeds": len(found["final"].values),
                    **{name: _mean([*each.values.values()]) for name, each in found.items()},
                    "paired": _difference(
                        found["area"].values,
                        finished_values(first, area_under_curve, metric).values,
                    ),
                }


def _evaluation_rows(data: FigureData) -> Iterator[Row]:
    for arm in data.arms:
        for column in data.columns:
            runs = data.select(arm, column)
            found = {
                name: [*finished_values(runs, STATISTICS[name].of, EVALUATED).values.values()]
                for name in data.statistics
            }
            yield {
                "arm": arm,
                "column": column,
                "seeds": min(map(len, found.values())),
                **{name: _mean(values) for name, values in found.items()},
            }


def _difference(values: dict[int, float], others: dict[int, float]) -> dict[str, Any] | None:
    """The mean difference over the seeds that both have; None if they are the same values."""
    if values == others:
        return None
    return _mean([values[seed] - others[seed] for seed in values.keys() & others.keys()])


def _mean(values: list[float]) -> dict[str, Any] | None:
    if not values:
        return None
    interval = interval_of_mean(values)
    return {"mean": float(np.mean(values)), "interval": list(interval) if interval else None}


def summary_text(found: dict[str, Any]) -> str:
    """The summary of a figure as text: a table of statistics, with a line for each arm, column and
    metric, and the table of evaluation statistics, if any."""
    names, values = ["arm", "column", "metric"], [*SUMMARIES, "paired"]
    body = [
        [*(row[name] for name in names), str(row["seeds"]), *(_cell(row[name]) for name in values)]
        for row in found["rows"]
    ]
    lines = [
        found["title"],
        found["releases"],
        "",
        *text_table([[*names, "seeds", *values], *body]),
        "",
        f"[ ]    {found['interval']}; none for a single seed",
        *(f"{name:<6} {found[name]}" for name in ("final", "area", "best", "paired")),
    ]
    for word in ("partial", "missing"):
        lines += [f"{word}  {name}" for name in found[word]]
    if "evaluations" in found:
        lines += ["", *_evaluations_text(found)]
    return "\n".join(lines) + "\n"


def _evaluations_text(found: dict[str, Any]) -> list[str]:
    """The evaluation statistics, one line for each arm and column."""
    names = {name: STATISTICS[name].name for name in found["statistics"]}
    body = [
        [row["arm"], row["column"], str(row["seeds"]), *(_half(row[name]) for name in names)]
        for row in found["evaluations"]
    ]
    return [
        *text_table([["arm", "column", "seeds", *names.values()], *body]),
        "",
        f"±      half of the {found['interval']}; none for a single seed",
        *(f"{head:<6} {found['statistics'][name]}" for name, head in names.items()),
    ]


def _half(value: dict[str, Any] | None) -> str:
    """Mean ± half of its interval."""
    if value is None:
        return "-"
    ends = value["interval"]
    half = f" ± {(ends[1] - ends[0]) / 2:.4f}" if ends else ""
    return f"{value['mean']:.4f}{half}"


def _cell(value: dict[str, Any] | None) -> str:
    if value is None:
        return "-"
    ends = value["interval"]
    interval = f" [{ends[0]:.3f}, {ends[1]:.3f}]" if ends else ""
    return f"{value['mean']:.3f}{interval}"


def remarks(data: FigureData) -> list[str]:
    """What a reader of the figure must know: few seeds, partial, missing and duplicate runs."""
    found = []
    seeds_run = {run.seed for run in data.runs if run.rows}
    if data.claim_seeds and len(seeds_run) < len(data.claim_seeds):
        seeds = "1 seed" if len(seeds_run) == 1 else f"{len(seeds_run)} seeds"
        found.append(f"A quick look at {seeds}; claims need {len(data.claim_seeds)}.")
    if data.partial:
        found.append("Partial, drawn as far as they go: " + _names(map(_describe, data.partial)))
    missing: dict[str, list[int]] = {}
    for run in data.missing:
        missing.setdefault(run.cell, []).append(run.seed)
    if missing:
        found.append("Missing: " + _names(map(_missing, missing, missing.values())))
    return found + duplicates(data.runs)


def _missing(cell: str, seeds: list[int]) -> str:
    """A column of a map holds several runs of one seed."""
    different = dict.fromkeys(seeds)
    runs = f" ({len(seeds)} runs)" if len(seeds) > len(different) else ""
    return f"{cell}, seed {', '.join(map(str, different))}{runs}"


def duplicates(runs: Iterable[Run]) -> list[str]:
    """Sentences that name the runs found in several folders."""
    copied = {run.path: run for run in runs if run.copies}.values()
    return [
        f"{words}: {_names(f'{run.name}, from {run.path.parent.name}' for run in found)}"
        for words, found in (
            ("In several folders, counted once", copied),
            ("With different numbers in another folder", [r for r in copied if r.they_differ]),
        )
        if found
    ]


def _names(names: Iterable[str]) -> str:
    names = list(names)
    more = len(names) - NAMES_SHOWN
    return "; ".join(names[:NAMES_SHOWN]) + (f"; and {more} more." if more > 0 else ".")


def _describe(run: Run) -> str:
    return f"{run.name} ({run.state}, step {run.last_step})"
