"""Which runs a row of a table is the mean of."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from rec_experiments.errors import UserError
from rec_experiments.records.identity import flat, identity
from rec_experiments.records.tracking import schedule_name
from rec_experiments.results.runs import FigureData, Row, Run, read_config, read_run

Config = dict[str, Any]  # dotted keys


@dataclass(frozen=True, kw_only=True, slots=True)
class Arm:
    """Runs that differ in their seed alone. section: the arms that are read side by side."""

    name: str
    section: str
    runs: list[Run]
    config: Config

    def mean(self, measure: Callable[[list[Row]], float | None]) -> float | None:
        """Of a number of each run, over the runs that have it."""
        values = [value for run in self.runs if (value := measure(run.rows)) is not None]
        return float(np.mean(values)) if values else None


def arms_in(data: FigureData) -> list[Arm]:
    """Those of a figure that have rows, column by column."""
    return [
        Arm(name=name, section=column, runs=runs, config=flat(read_config(runs[0].path)))
        for column in data.columns
        for name in data.arms
        if (runs := data.select(name, column))
    ]


def arms_of(folders: list[Path]) -> list[Arm]:
    """Those that run folders make up, by schedule. Where two share a name, the keys that tell them
    apart are added. Of several folders with the same run the first counts. Raises UserError for
    what is no run folder, or has no step yet."""
    groups: dict[str, dict[int, tuple[Run, Config]]] = {}
    for folder in folders:
        if not (folder / "metrics.jsonl").exists():
            raise UserError(f"{folder}: is no run folder, it has no metrics.jsonl")
        config = read_config(folder)
        run = read_run(
            config["algo"]["name"], schedule_name(config["sync"]), config["seed"], folder
        )
        if not run.rows:
            raise UserError(f"{folder}: holds no row of a run yet")
        groups.setdefault(repr(_without_seed(config)), {}).setdefault(run.seed, (run, config))
    arms_by_seed = [list(group.values()) for group in groups.values()]
    namesakes: dict[str, list[Config]] = {}
    for [(run, config), *_] in arms_by_seed:
        namesakes.setdefault(run.cell, []).append(_without_seed(config))
    arms = [
        Arm(
            name=", ".join([first.arm, *_apart(_without_seed(config), namesakes[first.cell])]),
            section=first.column,
            runs=[run for run, _ in group],
            config=flat(config),
        )
        for group in arms_by_seed
        for first, config in group[:1]
    ]
    sections = list(dict.fromkeys(arm.section for arm in arms))
    return sorted(arms, key=lambda arm: sections.index(arm.section))


def _without_seed(config: dict[str, Any]) -> Config:
    """What the runs of an arm share, in one order."""
    kept = flat(identity(config))
    return {key: kept[key] for key in sorted(kept.keys() - {"seed"})}


def _apart(config: Config, namesakes: list[Config]) -> list[str]:
    """The keys that tell an arm from its namesakes, with their values."""
    return [
        f"{key}={value}"
        for key, value in config.items()
        if any(other.get(key) != value for other in namesakes)
    ]
