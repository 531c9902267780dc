"""Arms: the runs over which a row of a table is a mean."""

import functools
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from rec_experiments.analysis.regime.quantities import Lags, Series, lags_of, series
from rec_experiments.analysis.results.figure_data import FigureData
from rec_experiments.analysis.results.old_archive import is_archive
from rec_experiments.analysis.results.runs import Row, Run, read_run
from rec_experiments.config.identity import flat, identity
from rec_experiments.config.labels import methods
from rec_experiments.errors import UserError, first_line
from rec_experiments.runs.run_folder import CONFIG, RunFolder, read_config
from rec_experiments.tracking.trackers import schedule_name

Config = dict[str, Any]  # dotted keys


@dataclass(frozen=True, kw_only=True)
class Arm:
    """Runs that differ only in their seed. section: title of the arms to compare it with."""

    name: str
    section: str
    runs: list[Run]
    config: Config

    @functools.cached_property
    def lags(self) -> list[list[int | None]]:
        """The lag of each row of each run."""
        return [lags_of(run.rows) for run in self.runs]

    @functools.cached_property
    def _series(self) -> dict[str, list[Series]]:
        """The values of each run, by quantity: tables need the same ones at many lags."""
        return {}

    def mean(self, measure: Callable[[list[Row]], float | None]) -> float | None:
        """Mean of one number per run, over the runs that have it."""
        return _mean(measure(run.rows) for run in self.runs)

    def mean_of(
        self, quantity: str, lags: Lags | None = None, part: str | None = None
    ) -> float | None:
        """Mean of train/`quantity` at these lags and in this part of a run, over the runs that
        have it."""
        if quantity not in self._series:
            each = zip(self.runs, self.lags, strict=True)
            self._series[quantity] = [series(run.rows, quantity, found) for run, found in each]
        return _mean(one.mean(lags, part) for one in self._series[quantity])


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return float(np.mean(known)) if known else None


def arms_in(data: FigureData) -> list[Arm]:
    """The arms of a figure that have rows, column by column. An archive has no single steps, so its
    runs are left out."""
    return [
        Arm(name=name, section=column, runs=runs, config=flat(read_config(runs[0].path)))
        for column in data.columns
        for name in data.arms
        if (runs := [run for run in data.select(name, column) if not is_archive(run.path.parent)])
    ]


def arms_of(folders: list[Path]) -> list[Arm]:
    """The arms that run folders form, by schedule. Of several folders with the same run the first
    counts. Raises UserError for a folder that holds no run, or no step yet."""
    groups: dict[str, dict[int, tuple[Run, dict[str, Any]]]] = {}
    for folder in folders:
        if not (folder / "metrics.jsonl").exists():
            raise UserError(f"{folder}: is not a run folder, it has no metrics.jsonl")
        config = read_config(folder)
        try:
            method, schedule = str(config["algo"]["name"]), schedule_name(config["sync"])
            run = read_run(method, schedule, int(config["seed"]), folder)
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise UserError(
                f"run folder {folder}: its {CONFIG} was not written by a run "
                f"({type(error).__name__}: {first_line(error)})"
            ) from error
        if not run.rows:
            raise UserError(f"{folder}: has no rows yet")
        groups.setdefault(repr(_without_seed(config)), {}).setdefault(run.seed, (run, config))
    arms_by_seed = [list(group.values()) for group in groups.values()]
    firsts = [group[0] for group in arms_by_seed]
    names = methods([(config, RunFolder(run.path).command()) for run, config in firsts])
    arms = [
        Arm(name=name, section=run.column, runs=[each for each, _ in group], config=flat(config))
        for name, (run, config), group in zip(names, firsts, arms_by_seed, strict=True)
    ]
    sections = list(dict.fromkeys(arm.section for arm in arms))
    return sorted(arms, key=lambda arm: sections.index(arm.section))


def _without_seed(config: dict[str, Any]) -> Config:
    """The configuration that the runs of an arm share, sorted."""
    kept = flat(identity(config))
    return {key: kept[key] for key in sorted(kept.keys() - {"seed"})}
