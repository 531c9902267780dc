"""Runs as a pandas data frame."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas

from rec_experiments.analysis.results.runs import Row, leave_out, read_run, run_folders
from rec_experiments.config.labels import methods
from rec_experiments.errors import UserError, printable
from rec_experiments.runs.run_folder import CONFIG, RunFolder, read_config
from rec_experiments.tracking.trackers import schedule_name
from rec_experiments.types import class_name

# Columns of each run.
ABOUT = ("run", "path", "state", "method", "algo", "schedule", "dataset", "seed")


def load_runs(*folders: str | Path, keys: Sequence[str] = ()) -> pandas.DataFrame:
    """All runs in some folders, one row per gradient step. A folder may also be a run itself.

    Columns: run (the folder's name), path, state, method (the preset's name and what the run's
    command changed), algo (the preset's name alone), schedule, dataset, seed; then each of `keys`,
    dotted configuration keys such as optimizer.learning_rate; then `step` and the metrics,
    empty where not measured. Damaged runs are left out and reported on stderr.

    Raises UserError for a folder that does not exist, or an unknown key.
    """
    for folder in folders:
        if not Path(folder).is_dir():
            raise UserError(f"{folder}: no such folder")
    places = map(Path, folders)
    paths = [path for p in places for path in ([p] if (p / CONFIG).is_file() else run_folders([p]))]
    found = [each for path in paths for each in _read(path, keys)]
    names = methods([(config, command) for _, config, command, _ in found])
    rows = [
        {**about, "method": name, **row}
        for (about, _, _, own), name in zip(found, names, strict=True)
        for row in own
    ]
    return pandas.DataFrame(rows) if rows else pandas.DataFrame(columns=[*ABOUT, *keys, "step"])


def _read(
    path: Path, keys: Sequence[str]
) -> list[tuple[Row, dict[str, Any], list[str], list[Row]]]:
    """A run's columns besides its metrics, configuration, command and rows; [] if it is damaged."""
    try:
        config = read_config(path)
        run = read_run("", "", config["seed"], path)
        command = RunFolder(path).command()
        values: list[Any] = [
            path.name, str(path), printable(str(run.state)), "", config["algo"]["name"],
            schedule_name(config["sync"]), class_name(config["dataset"]), run.seed,
        ]  # fmt: skip
    except UserError as error:
        leave_out(str(error))
        return []
    except (KeyError, TypeError) as error:
        leave_out(f"run folder {path}: its {CONFIG} is not that of a run ({error!r})")
        return []
    about = {**dict(zip(ABOUT, values, strict=True)), **{key: _value(config, key) for key in keys}}
    return [(about, config, command, run.rows)]


def _value(config: dict[str, Any], key: str) -> Any:
    value: Any = config
    for part in key.split("."):
        if not isinstance(value, dict) or part not in value:
            raise UserError(f"keys={key}: no such key of a run")
        value = value[part]
    return value
