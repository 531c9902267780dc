"""The statistics of a figure's runs, as plain values and as text."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas

from rec_experiments import sweeps
from rec_experiments.analysis.results.figure import FigureRuns, claim_seeds
from rec_experiments.analysis.results.formatting import text_table
from rec_experiments.analysis.results.measures import (
    BEST_POINTS,
    LAST_POINTS,
    STATISTICS,
    Measure,
    area,
    best,
    final,
    last,
)
from rec_experiments.analysis.results.seeds import CONFIDENCE, by_seed, interval_of_mean

EVALUATED = "eval/accuracy"
SUMMARISED = (EVALUATED, "train/reward")
SUMMARIES: dict[str, Measure] = {"final": final, "area": area, "best": best, "last": last}
assert set(sweeps.STATISTICS) <= set(STATISTICS)  # the choices of hydra.sweeper.statistics
INTERVAL = f"{100 * CONFIDENCE:.0f} % t interval over seeds"
NAMES_SHOWN = 6


def summary(data: FigureRuns) -> dict[str, Any]:
    """For each arm and column, over finished runs: the mean of each statistic with its interval,
    and the difference from the figure's first arm; also the evaluation statistics that the figure
    asks for.

    Partial and missing runs are listed and do not enter the means.
    """
    found: dict[str, Any] = {
        "figure": data.name,
        "title": data.title,
        "releases": releases_text(data.steps),
        "interval": INTERVAL,
        "final": f"{LAST_POINTS} of a run",
        "area": "area under the curve divided by its length",
        "best": BEST_POINTS,
        "paired": f"difference of the area from that of {data.arms[0]}, paired by seed",
        "rows": list(_summary_rows(data)),
        "partial": [*map(_progress, *_columns(data.partial, "state", "step"))],
        "missing": [*map(_name, *_columns(data.missing))],
    }
    if data.statistics:
        found["statistics"] = {name: STATISTICS[name].meaning for name in data.statistics}
        found["evaluations"] = list(_evaluation_rows(data))
    return found


def _summary_rows(data: FigureRuns) -> Iterator[dict[str, Any]]:
    for arm in data.arms:
        for column in data.columns:
            runs, first = data.select(arm, column), data.select(data.arms[0], column)
            for metric in dict.fromkeys([*SUMMARISED, *(panel.metric for panel in data.panels)]):
                found = {
                    name: by_seed(runs, measure, metric).values
                    for name, measure in SUMMARIES.items()
                }
                yield {
                    "arm": arm,
                    "column": column,
                    "metric": metric,
                    "seeds": len(found["final"]),
                    **{name: _mean([*values.values()]) for name, values in found.items()},
                    "paired": _difference(found["area"], by_seed(first, area, metric).values),
                }


def _evaluation_rows(data: FigureRuns) -> Iterator[dict[str, Any]]:
    for arm in data.arms:
        for column in data.columns:
            runs = data.select(arm, column)
            found = {
                name: [*by_seed(runs, STATISTICS[name].of, EVALUATED).values.values()]
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


def remarks(data: FigureRuns) -> list[str]:
    """What a reader of the figure must know: few seeds, partial and missing runs."""
    found = []
    seeds_run, needed = data.steps["seed"].nunique(), claim_seeds(data.scale)
    if needed and seeds_run < len(needed):
        seeds = "1 seed" if seeds_run == 1 else f"{seeds_run} seeds"
        found.append(f"A quick look at {seeds}; claims need {len(needed)}.")
    if partial := [*map(_progress, *_columns(data.partial, "state", "step"))]:
        found.append(f"Partial, drawn as far as they go: {_names(partial)}")
    missing = data.missing.groupby(["arm", "column"], sort=False)["seed"].agg(list)
    if len(missing):
        cells = [_missing(_cell_name(*cell), seeds) for cell, seeds in missing.items()]
        found.append(f"Missing: {_names(cells)}")
    return found


def _missing(cell: str, seeds: list[int]) -> str:
    """A column of a map holds several runs of one seed."""
    different = dict.fromkeys(seeds)
    runs = f" ({len(seeds)} runs)" if len(seeds) > len(different) else ""
    return f"{cell}, seed {', '.join(map(str, different))}{runs}"


def releases_text(steps: pandas.DataFrame) -> str:
    """Which releases made some runs, as in `Runs of releases 11 and 12.`; steps: their rows."""
    known = [str(release) for release in sorted(steps["release"].dropna().unique())]
    last = ["an earlier release"] if steps["release"].isna().any() else []
    names = [f"release{'s' if len(known) > 1 else ''} {_listed(known)}"] if known else []
    return f"Runs of {' and '.join(names + last)}." if len(steps) else ""


def _listed(words: list[str]) -> str:
    """As in `a, b and c`."""
    return " and ".join(filter(None, [", ".join(words[:-1]), words[-1]]))


def _names(names: list[str]) -> str:
    more = len(names) - NAMES_SHOWN
    return "; ".join(names[:NAMES_SHOWN]) + (f"; and {more} more." if more > 0 else ".")


def _columns(runs: pandas.DataFrame, *others: str) -> Iterator[list[Any]]:
    return (runs[name].tolist() for name in ("arm", "column", "seed", *others))


def _cell_name(arm: str, column: str) -> str:
    return ", ".join(filter(None, (arm, column)))


def _name(arm: str, column: str, seed: int) -> str:
    return f"{_cell_name(arm, column)}, seed {seed}"


def _progress(arm: str, column: str, seed: int, state: str, step: int) -> str:
    return f"{_name(arm, column, seed)} ({state}, step {step})"
