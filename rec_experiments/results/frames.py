"""Runs as a data frame, for people who ask their own questions."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pandas

from rec_experiments.errors import UserError
from rec_experiments.records.tracking import schedule_name
from rec_experiments.results.collect import run_folders
from rec_experiments.results.runs import read_config, read_run


def load_runs(*folders: str | Path, keys: Sequence[str] = ()) -> pandas.DataFrame:
    """All runs in some folders, a row for each gradient step.

    Columns: run (the folder's name), path, state, algo, schedule, dataset, seed; then each of
    `keys`, dotted keys of the configuration such as optimizer.learning_rate; then `step` and the
    metrics, empty where they were not measured.

    Raises UserError for a folder that is not there, a run that cannot be read, or an unknown key.
    """
    for folder in folders:
        if not Path(folder).is_dir():
            raise UserError(f"{folder}: no such folder")
    places = [path for same in run_folders(map(Path, folders)).values() for path in same]
    return pandas.DataFrame([row for path in places for row in _rows(path, keys)])


def _rows(path: Path, keys: Sequence[str]) -> Iterator[dict[str, Any]]:
    config = read_config(path)
    run = read_run("", "", config["seed"], path)
    about = {
        "run": path.name,
        "path": str(path),
        "state": run.state,
        "algo": config["algo"]["name"],
        "schedule": schedule_name(config["sync"]),
        "dataset": config["dataset"]["kind"],
        "seed": run.seed,
        **{key: _value(config, key) for key in keys},
    }
    return ({**about, **row} for row in run.rows)


def _value(config: dict[str, Any], key: str) -> Any:
    value: Any = config
    for part in key.split("."):
        if not isinstance(value, dict) or part not in value:
            raise UserError(f"keys={key}: no such key of a run")
        value = value[part]
    return value
