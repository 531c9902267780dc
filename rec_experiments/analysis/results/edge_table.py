"""The stability map as a table: the collapse rate of each method at each age, and its law."""

from collections.abc import Iterator, Sequence
from typing import Any

import pandas

from rec_experiments.analysis.results import stability
from rec_experiments.analysis.results.figure import FigureRuns
from rec_experiments.analysis.results.formatting import text_table

# An edge is written as a multiple of the edge of BASE and of the best rate of BEST.
BASE, BEST = "REINFORCE", "GRPO"


def summary(data: FigureRuns, table: pandas.DataFrame) -> dict[str, Any]:
    """Edges, the largest age survived at GRPO's best on-policy rate, and how the edge falls with
    age, as plain values."""
    edges = stability.edges(table)
    arms = [arm for arm in data.arms if arm in set(table["arm"])]
    ages = sorted(table[stability.AGE].unique().tolist())
    has_best = bool(((table["arm"] == BEST) & (table[stability.AGE] == stability.ON_POLICY)).any())
    best = stability.best_rate(table, BEST) if has_best else None
    law = stability.law(edges, arms)
    return {
        "figure": data.name,
        "title": data.title,
        "seeds": sorted(table["seed"].unique().tolist()),
        "runs": len(table),
        "best_rate": best,
        "edges": [row for arm in arms for age in ages for row in _rows(edges, arm, age, best)],
        "survives": {arm: stability.age_survived(table, arm, best) for arm in arms} if best else {},
        "pooled_factors": {
            age: factor for age in ages if (factor := stability.pooled_factor(edges, age))
        },
        "law": law and law._asdict(),
        "slopes": {
            arm: {"slope": of_arm.slope, "cells": of_arm.cells}
            for arm in arms
            if (of_arm := stability.law(edges, [arm]))
        },
        "explained": stability.explained(table) if sum(age > 0 for age in ages) > 1 else {},
    }


def _rows(
    edges: pandas.DataFrame, arm: str, age: int, best: float | None
) -> Iterator[dict[str, Any]]:
    """The row of one cell, if it has an edge."""
    of_age = edges[edges[stability.AGE] == age]
    of_arm, base = of_age[of_age["arm"] == arm], of_age[of_age["arm"] == BASE]
    if len(of_arm):
        edge = stability.mean(of_arm["log2"], of_arm["side"])
        multiple = stability.multiple(of_arm, base)
        yield {
            "arm": arm,
            "age": age,
            "seeds": len(of_arm),
            "rate": 2.0**edge.mean,
            "interval": _powers(edge.interval),
            "bound": edge.bound,
            "of_base": multiple
            and (multiple.bound, 2.0**multiple.mean, _powers(multiple.interval)),
            "of_best_rate": 2.0**edge.mean / best if best else None,
        }


def _powers(log2: tuple[float, float] | None) -> list[float] | None:
    return [2.0**end for end in log2] if log2 else None


def text(found: dict[str, Any]) -> str:
    """The summary as text: a table of edges, then the sentences below it."""
    ages = sorted({row["age"] for row in found["edges"]})
    cells = {(row["arm"], row["age"]): row for row in found["edges"]}
    arms = list(dict.fromkeys(row["arm"] for row in found["edges"]))
    head = ["method", *(f"age {age}" for age in ages), f"survives at {BEST}'s best rate"]
    body = [
        [arm, *(_cell(cells.get((arm, age))) for age in ages), _age(found["survives"], arm)]
        for arm in arms
    ]
    return "\n".join([found["title"], "", *text_table([head, *body]), "", *sentences(found)]) + "\n"


def sentences(found: dict[str, Any]) -> list[str]:
    """What the table shows beyond its cells."""
    seeds = ", ".join(map(str, found["seeds"]))
    lines = [
        f"{found['runs']} runs, seeds {seeds}. Cells: the collapse rate, and in round brackets its "
        f"multiple of {BASE}'s at the same age, paired by seed; both with their 95 % t interval "
        "over seeds. ≥ and ≤ mark bounds, where the edge of a seed is outside the grid."
    ]
    if found["pooled_factors"]:
        factors = ", ".join(f"{f:.2f} (age {age})" for age, f in found["pooled_factors"].items())
        lines.append(
            "If all methods have the same variance, the interval of every multiple reaches this "
            f"factor either way: {factors}."
        )
    if found["best_rate"]:
        lines.append(f"{BEST} ends highest on-policy at a rate of {found['best_rate']:.2g}.")
    if law := found["law"]:
        ends = f" [{law['interval'][0]:.2f}, {law['interval'][1]:.2f}]" if law["interval"] else ""
        lines.append(
            f"Collapse rate ∝ age^{law['slope']:.2f}{ends}, over {law['cells']} cells; if it fell "
            "as 1/age, the exponent would be −1. Cells beyond the grid are left out."
        )
        slopes = sorted(found["slopes"].items(), key=lambda each: each[1]["slope"])
        lines.append(
            "Exponent of each method, with its number of cells in brackets: "
            + ", ".join(f"{arm} {each['slope']:.2f} ({each['cells']})" for arm, each in slopes)
            + "."
        )
    if found["explained"]:
        shares = ", ".join(f"{value:.2f} by {name}" for name, value in found["explained"].items())
        lines.append(
            "Share of the variance of the gain that one falling curve per method explains: "
            f"{shares}."
        )
    return lines


def _cell(row: dict[str, Any] | None) -> str:
    if row is None:
        return "–"
    text = f"{row['bound']}{row['rate']:.2g}"
    if row["interval"]:
        text += _interval(row["interval"])
    if row["of_base"] and row["arm"] != BASE:
        bound, multiple, ends = row["of_base"]
        text += f" ({bound}{_times(multiple)}×"
        text += f" [{_times(ends[0])}, {_times(ends[1])}])" if ends else ")"
    return text


def _times(multiple: float) -> str:
    return f"{multiple:.0f}" if multiple >= 10 else f"{multiple:.1f}"


def _interval(ends: Sequence[float]) -> str:
    return f" [{ends[0]:.2g}, {ends[1]:.2g}]"


def _age(survived: dict[str, int | None], arm: str) -> str:
    """`–` if GRPO's best rate is not known."""
    return "–" if arm not in survived else "none" if survived[arm] is None else str(survived[arm])
