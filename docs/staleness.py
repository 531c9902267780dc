"""Writes docs/staleness.md from docs/staleness.template and docs/results: `make pages`.

A file of docs/results is the .json that `python -m rec_experiments figures staleness` writes. The
template quotes it as `{mini_chain | TOPR | interval 20}`: the set (its file less `staleness_`), the
method, the age.
"""

import json
import re
from pathlib import Path
from typing import Any

import yaml

from rec_experiments.analysis.results import staleness
from rec_experiments.config import schema

HERE = Path(__file__).parent
PAGE = HERE / "staleness.md"
SEEDS = range(10)  # those that claims are judged on
CORE_SECONDS = {"mini_chain": 9, "mini": 15}  # of a core for a run, two at a time
SWEEP = schema.CONF / "sweep" / "staleness.yaml"
QUOTE = re.compile(r"\{(\w+) \| ([^{}]+) \| ([^{}]+)\}")


def page() -> str:
    """The whole page. KeyError for a quote of what no set has."""
    files = sorted((HERE / "results").glob("staleness*.json"))
    sets = {file.stem: json.loads(file.read_text()) for file in files}
    sections = "\n\n".join(section(name, found) for name, found in sets.items())
    text = (HERE / "staleness.template").read_text()
    text = QUOTE.sub(lambda quote: quoted(sets[f"staleness_{quote[1]}"], quote[2], quote[3]), text)
    for name, value in {"results": sections, **counts()}.items():
        text = text.replace(f"{{{name}}}", value)
    return text


def quoted(found: dict[str, Any], method: str, age: str) -> str:
    """The accuracy of a method of a set at an age, as in `.684 ± .018`."""
    points = {
        staleness.age_name(form, point["age"]): point
        for form in found["ages"]
        for point in found["methods"][method].get(form, {"points": []})["points"]
    }
    return staleness.accuracy(points[age]).replace("0.", ".")


def counts() -> dict[str, str]:
    """What the benchmark is by count, and what it costs: by name, as the template has them."""
    sweep = yaml.safe_load(SWEEP.read_text())
    methods, schedules = len(sweep["arms"]), len(sweep["grid"]["sync"])
    rows = {
        "`staleness`": (schedules, len(SEEDS)),
        "`staleness_tuning`": (4, 3),
        "`staleness_rate`, at one age": (4, len(SEEDS)),
        "`staleness_noise`, at one age": (4, len(SEEDS)),
    }
    table = ["| sweep | runs, both tasks | core hours |", "| --- | --- | --- |"]
    for name, (columns, seeds) in rows.items():
        runs = methods * columns * seeds
        hours = runs * sum(CORE_SECONDS.values()) / 3600
        product = f"{methods} × {columns} × {seeds} × 2 = {2 * runs:,}"
        table.append(f"| {name} | {product} | {hours:.0f} |")
    one = methods * schedules * len(SEEDS) * CORE_SECONDS["mini_chain"] / 3600
    return {
        "methods": str(methods),
        "schedules": str(schedules),
        "costs": "\n".join(table),
        "chain_hours": f"{one / 2:.0f}",
    }


def section(name: str, found: dict[str, Any]) -> str:
    """One set of runs: how many they are, the picture, a table for each form of age."""
    seeds, claims = set(found["seeds"]), set(range(found["claim_seeds"]))
    methods, every = len(found["methods"]), len(yaml.safe_load(SWEEP.read_text())["arms"])
    judged = bool(seeds & claims)  # and not tuned on
    whole = (seeds == claims or not judged) and methods == every
    subset = "" if whole else ", **a subset**"
    named = f"seeds {', '.join(map(str, sorted(seeds)))}"
    counted = f"{len(seeds)} of {len(claims)} seeds" if judged else named
    lines = [
        f"### {found['title']}: {ages(found)}",
        "",
        f"`scale={found['scale']}`{subset}: {counted}, {methods} of {every} "
        f"methods, {found['finished']} finished runs. "
        f"Accuracy before training: {found['start']:.3f}. "
        f"{found['releases']}",
    ]
    if any(len(each) > 1 for each in found["ages"].values()):
        lines += ["", f"![{found['title']}](figures/{name}.png)"]
    for form in staleness.shown(found):
        lines += ["", *markdown(staleness.table(found, form))]
    return "\n".join(lines)


def ages(found: dict[str, Any]) -> str:
    """The ages, as in `offset 0, 10; interval 1, 20, offline`."""
    return "; ".join(
        ", ".join([staleness.age_name(form, first), *map(str, others)])
        for form in staleness.shown(found)
        for first, *others in [found["ages"][form]]
    )


def markdown(table: list[list[str]]) -> list[str]:
    head, *rows = table
    return ["| " + " | ".join(row) + " |" for row in [head, ["---"] * len(head), *rows]]


if __name__ == "__main__":
    PAGE.write_text(page())
