"""One table of runs, from run folders and archives.

Claims, figures and reports are functions of it.

`runs(places)` has a row for each run. A run that several figures show has a row for each of them.

    figure     the sweep that launched it; "" for a run that no sweep launched
    arm        its legend label; without a sweep, its method with what its command changed
    column     the title of its column; without a sweep, its schedule
    seed
    run        the name of the run folder. Folders with equal names hold the same experiment
    path       the run folder, or ARCHIVE/RUN
    overrides  the words of its command that may change a number, quoted as for a shell
    experiment a digest, equal for runs of one experiment; "" if the command is not known
    state      done, running, failed, interrupted, missing (not begun) or unreadable
    step       the last recorded gradient step
    release    the newest release of the package that computed steps, NA if it recorded none
    note       why it is unreadable

`table(runs)` has a row for each recorded step of these runs: the columns above except `path`,
`overrides` and `note`, then `step` and a column for each metric of metrics.jsonl. NaN means "not
measured"; a measured number that is not finite is inf or -inf. Select and group as usual:

    steps = table(runs([Path("runs")]))
    done = steps[steps["state"] == "done"]
    done.groupby(["arm", "column", "seed"])["eval/accuracy"].last()

`figure.figure_runs` has the same two tables of one figure, with the labels of its sweep;
`measures` has the statistics of a run, `seeds` those of several seeds, and `settings.settings` the
values of an experiment from its overrides.
"""

import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas

from rec_experiments import sweeps
from rec_experiments.analysis.results.content import (
    ACCURACY,
    NOTHING,
    Content,
    archived_overrides,
    content,
    leave_out,
)
from rec_experiments.analysis.results.settings import experiment, seed, settings, words_of
from rec_experiments.common.errors import UserError
from rec_experiments.common.files import ARCHIVE
from rec_experiments.config.identity import flat
from rec_experiments.config.labels import methods, schedule_name
from rec_experiments.runs.run_folder import CONFIG, RunFolder, read_config

LABELS = ["figure", "arm", "column", "seed"]
FOUND = [*LABELS, "run", "path", "overrides", "experiment"]
STATE = [*Content._fields[:4]]
PROGRAM = "rec_experiments"
NO_METHOD = ("seed", "setting", "sync")  # overrides that the label of an archived run leaves out


def runs(places: Iterable[Path]) -> pandas.DataFrame:
    """The runs in some folders of run folders, run folders and archives.

    If a run is in several places, one copy counts: a finished one, then the one of the newest
    release, then the longest. Damaged runs, and finished copies with other evaluations, are
    reported on stderr. Raises UserError for a damaged manifest or archive.
    """
    found = with_content(find(places))
    listed = found["figure"] != ""
    return _labelled(found[listed | ~found["run"].isin(found["run"][listed])].copy())


def table(runs: pandas.DataFrame, columns: Sequence[str] = ()) -> pandas.DataFrame:
    """A row for each recorded step of the runs, in their order. columns: more columns of `runs` to
    repeat in every row."""
    parts = [
        NOTHING.rows if state in ("missing", "unreadable") else content(Path(path)).rows
        for path, state in zip(runs["path"], runs["state"], strict=True)
    ]
    about = runs[[*LABELS, "run", "state", "release", *columns]].reset_index(drop=True)
    repeated = about.loc[about.index.repeat([len(part) for part in parts])]
    rows = pandas.concat([NOTHING.rows, *parts], ignore_index=True)
    return pandas.concat([repeated.reset_index(drop=True), rows], axis=1)


def load_runs(*places: str | Path, keys: Sequence[str] = ()) -> pandas.DataFrame:
    """All runs in some folders, run folders or archives, one row per recorded gradient step.

    Columns: figure, arm, column, seed, run, path, state and release of each run, as `runs` explains
    them; then each of `keys`, dotted configuration keys such as optimizer.learning_rate; then
    `step` and the metrics, NaN where not measured. A run that several figures show is here once.
    Damaged runs are left out and reported on stderr.

    Raises UserError for a place that does not exist, or a key that no run has.
    """
    for place in places:
        if not Path(place).exists():
            raise UserError(f"{place}: no such folder")
    found = runs(map(Path, places)).drop_duplicates("run")
    found = found[~found["state"].isin(["missing", "unreadable"])]
    values = [*map(_values, found["path"], found["overrides"])]
    for key in keys:
        if values and not any(key in each for each in values):
            raise UserError(f"keys={key}: no such key of a run")
        found[key] = [each.get(key) for each in values]
    return table(found, ["path", *keys])


def _values(path: Path, overrides: str) -> Mapping[str, Any]:
    """The values of a run's configuration by dotted key."""
    return flat(read_config(path)) if path.is_dir() else settings(overrides)


def find(places: Iterable[Path]) -> pandas.DataFrame:
    """Where runs are, with the columns up to `overrides`; none is read."""
    found = [line for place in places for line in _found_in(place)]
    return pandas.DataFrame(found, columns=FOUND)


def _found_in(place: Path) -> Iterator[list[Any]]:
    if place.name.endswith(ARCHIVE):
        for run, overrides in archived_overrides(place).items():
            yield _without_manifest(place / run, overrides)
        return
    listed = set()
    for file in sorted(place.glob("manifests/*.csv")):
        for line in sweeps.read_manifest(file):
            listed.add(line.run)
            overrides = shlex.join(words_of(shlex.split(line.overrides)))
            about = [line.figure, line.arm, line.column, line.seed, Path(line.run).name]
            yield [*about, place / line.run, overrides, experiment(overrides)]
    for path in [place] if (place / CONFIG).is_file() else run_folders([place]):
        if path.name not in listed:
            yield _without_manifest(path, _overrides(path))


def run_folders(folders: Iterable[Path]) -> list[Path]:
    """The run folders directly in some folders, sorted."""
    return sorted(file.parent for folder in folders for file in folder.glob("*/status.json"))


def _without_manifest(path: Path, overrides: str | None) -> list[Any]:
    """overrides: None if they are not known."""
    line = overrides or ""
    words = [word for word in shlex.split(line) if word.split("=")[0] not in NO_METHOD]
    sync = {key.partition(".")[2]: value for key, value in settings(line).items()}
    about = ["", " ".join(words), schedule_name(sync), seed(line), path.name, path, line]
    return [*about, "" if overrides is None else experiment(line)]


def _overrides(path: Path) -> str | None:
    """What the run's command overrides; None if the command line did not start it."""
    try:
        command = RunFolder(path).command()
    except UserError:  # reported when the run is read
        return None
    started = any(Path(word).name.replace("-", "_") == PROGRAM for word in command)
    return shlex.join(words_of(command)) if started else None


def _labelled(runs: pandas.DataFrame) -> pandas.DataFrame:
    """The runs, with method and schedule as labels of those that no manifest lists."""
    configs, rows = [], []
    for row, path in runs.loc[runs["figure"] == "", "path"].items():
        try:
            config = read_config(path)
            labels = row, schedule_name(config["sync"]), config["seed"]
            configs.append((config, RunFolder(path).command()))
            rows.append(labels)
        except (UserError, KeyError, TypeError):
            continue
    for (row, *schedule_and_seed), method in zip(rows, methods(configs), strict=True):
        runs.loc[row, ["arm", "column", "seed"]] = method, *schedule_and_seed
    return runs


def with_content(found: pandas.DataFrame) -> pandas.DataFrame:
    """The runs that were found with all columns, each once for each of its labels."""
    paths = found["run"].map(_best_copies(found)).fillna(found["path"])
    found = found.assign(path=paths).drop_duplicates([*LABELS, "run"])
    states = [content(path)[: len(STATE)] for path in found["path"]]
    about = pandas.DataFrame(states, columns=STATE, index=found.index)
    about["release"] = about["release"].astype("Int64")
    return pandas.concat([found, about], axis=1).reset_index(drop=True)


def _best_copies(found: pandas.DataFrame) -> dict[str, Path]:
    """The copy that counts of each run that is in several places."""
    best, differ = {}, []
    for run, paths in found.groupby("run")["path"].unique().items():
        if len(paths) > 1:
            read = {path: content(path) for path in paths}
            best[str(run)] = chosen = max(paths, key=lambda path: _rank(read[path]))
            differ += [
                f"{path}, of which {chosen} counts"
                for path, other in read.items()
                if other.state == read[chosen].state == "done"
                and not _same(other.rows, read[chosen].rows)
            ]
    if differ:
        leave_out(f"{len(differ)} copies of runs with other evaluations, as {differ[0]}")
    return best


def _rank(copy: Content) -> tuple[bool, int, int, bool]:
    return copy.state == "done", copy.release or 0, copy.step, copy.state != "missing"


def _same(one: pandas.DataFrame, other: pandas.DataFrame) -> bool:
    """Whether two copies have the same evaluations, to the digits of an archive."""
    first, second = (each.set_index("step")[ACCURACY].dropna() for each in (one, other))
    return first.index.equals(second.index) and bool(np.allclose(first, second, rtol=1e-3))
