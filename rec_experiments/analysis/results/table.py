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
"""

import functools
import math
import shlex
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas

from rec_experiments import sweeps
from rec_experiments.analysis.results.archive import read_archive
from rec_experiments.analysis.results.statistics import ACCURACY
from rec_experiments.common.errors import UserError, first_line, printable
from rec_experiments.common.files import ARCHIVE
from rec_experiments.common.pieces import TARGET
from rec_experiments.config.identity import flat
from rec_experiments.config.labels import Named, methods, run_label, schedule_name, shown
from rec_experiments.config.settings import below, experiment, seed, settings, words_of
from rec_experiments.runs import provenance
from rec_experiments.runs.reading import Stamp, read_rows, stamp, unreadable
from rec_experiments.runs.run_folder import CONFIG, RunFolder, read_config

LABELS = ["figure", "arm", "column", "seed"]
FOUND = [*LABELS, "run", "path", "overrides", "experiment"]
STATE = ["state", "step", "release", "note"]
PROGRAM = "rec_experiments"
NO_METHOD = ("seed", "sync")  # overrides that the label of an archived run leaves out


def runs(places: Iterable[Path]) -> pandas.DataFrame:
    """The runs in some folders of run folders, run folders and archives.

    If a run is in several places, one copy counts: a finished one, then the one of the newest
    release, then the longest. Damaged runs are reported on stderr. Raises UserError for a damaged
    manifest or archive.
    """
    found = find(places)
    copies = with_content(found.drop_duplicates("path")).drop_duplicates("run")
    listed = found[found["figure"] != ""]
    unlisted = copies[~copies["run"].isin(listed["run"])]
    labels = pandas.concat([listed, unlisted]).sort_index()[[*LABELS, "run"]].drop_duplicates()
    return labels.merge(copies.drop(columns=LABELS), on="run")


def table(runs: pandas.DataFrame, columns: Sequence[str] = ()) -> pandas.DataFrame:
    """A row for each recorded step of the runs, in their order. columns: more columns of `runs` to
    repeat in every row."""
    about = runs[[*LABELS, "run", "state", "release", *columns]].reset_index(drop=True)
    parts = {-1: NOTHING.rows}  # concat needs one
    for at, (path, state) in enumerate(zip(runs["path"], runs["state"], strict=True)):
        if state not in ("missing", "unreadable"):
            parts[at] = content(path).rows
    return about.join(pandas.concat(parts).droplevel(1), how="inner").reset_index(drop=True)


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
    values = [
        flat(read_config(path)) if path.is_dir() else settings(overrides)
        for path, overrides in zip(found["path"], found["overrides"], strict=True)
    ]
    for key in keys:
        if values and not any(key in each for each in values):
            raise UserError(f"keys={key}: no such key of a run")
        found[key] = [each.get(key) for each in values]
    return table(found, ["path", *keys])


# Where runs are -----------------------------------------------------------------------------------


def find(places: Iterable[Path]) -> pandas.DataFrame:
    """Where runs are, with the columns up to `experiment`; their metrics are not read."""
    found, unlisted = [], []
    for place in places:
        if place.name.endswith(ARCHIVE):
            overrides = read_archive(place)["overrides"].groupby(level=0).first()
            found += [_in_archive(place / run, line) for run, line in overrides.items()]
            continue
        listed = set()
        for file in sorted(place.glob("manifests/*.csv")):
            for line in sweeps.read_manifest(file):
                listed.add(line.run)
                labels = [line.figure, line.arm, line.column, line.seed]
                words = words_of(shlex.split(line.overrides))
                found.append(_line(labels, place / line.run, shlex.join(words)))
        folders = [place] if (place / CONFIG).is_file() else run_folders(place)
        unlisted += [path for path in folders if path.name not in listed]
    return pandas.DataFrame([*found, *_without_manifest(unlisted)], columns=FOUND)


def _line(labels: list[Any], path: Path, overrides: str | None) -> list[Any]:
    """overrides: None if they are not known."""
    known = "" if overrides is None else experiment(overrides)
    return [*labels, path.name, path, overrides or "", known]


def run_folders(folder: Path) -> list[Path]:
    """The run folders directly in a folder, sorted."""
    return sorted(file.parent for file in folder.glob("*/status.json"))


def _in_archive(path: Path, overrides: str) -> list[Any]:
    """A run of an archive, labelled by its overrides, the method first."""
    words = [word for word in shlex.split(overrides) if word.split("=")[0] not in NO_METHOD]
    words.sort(key=lambda word: not word.startswith("algo="))
    sync = below("sync", settings(overrides))
    try:
        schedule = schedule_name(sync)
    except (KeyError, TypeError):  # of a package that is not installed
        schedule = str(sync.get(TARGET, ""))
    return _line(["", shown(words), schedule, seed(overrides)], path, overrides)


def _without_manifest(paths: Iterable[Path]) -> Iterator[list[Any]]:
    """Run folders, labelled by method and schedule."""
    known = configurations(paths)
    arms = methods([*known.values()])
    for arm, (path, (config, command)) in zip(arms, known.items(), strict=True):
        started = any(Path(word).name.replace("-", "_") == PROGRAM for word in command)
        labels = ["", arm, schedule_name(config["sync"]), config["seed"]]
        yield _line(labels, path, shlex.join(words_of(command)) if started else None)


def configurations(paths: Iterable[Path]) -> dict[Path, Named]:
    """The configuration and the command of run folders. Damaged folders are left out and reported
    on stderr."""
    found: dict[Path, Named] = {}
    for path in paths:
        try:
            of_run = read_config(path), RunFolder(path).command()
            run_label(*of_run)
            found[path] = of_run
        except UserError as error:
            leave_out(str(error))
        except (KeyError, TypeError):
            leave_out(str(unreadable(path / CONFIG, "it is not that of a run")))
    return found


# What is in them ----------------------------------------------------------------------------------


class Content(NamedTuple):
    """What is in a run folder, or in an archive of a run. rows: `step` and the metrics."""

    state: str
    step: int
    release: int | None
    note: str
    rows: pandas.DataFrame


NOTHING = Content("missing", 0, None, "", pandas.DataFrame({"step": np.zeros(0, dtype=int)}))


def with_content(found: pandas.DataFrame) -> pandas.DataFrame:
    """The runs that were found with their states: finished ones first, then those of the newest
    release, then the longest."""
    about = pandas.DataFrame(
        [content(path)[:4] for path in found["path"]], columns=STATE, index=found.index
    ).astype({"release": "Int64"})
    order = about.assign(done=about["state"] == "done", begun=about["state"] != "missing")
    keys = ["done", "release", "step", "begun"]
    order = order.sort_values(keys, ascending=False, kind="stable", na_position="last")
    return found.join(about).loc[order.index]


def content(path: Path) -> Content:
    """The state and the rows of a run folder, or of ARCHIVE/RUN. A damaged run is reported on
    stderr; it is unreadable and has no rows."""
    try:
        archived = path.parent.name.endswith(ARCHIVE)
        found = _archived(path) if archived else _folder(path, stamp(path))
        for name in {*found.rows}.intersection([*FOUND, *STATE]) - {"step"}:
            raise UserError(f"run folder {path}: {name} is no metric")
        return found
    except UserError as error:
        leave_out(str(error))
        return NOTHING._replace(state="unreadable", note=str(error))


def _archived(path: Path) -> Content:
    """path: ARCHIVE/RUN. Raises UserError for a damaged archive."""
    rows = read_archive(path.parent).loc[[path.name]]
    release = rows["release"].iloc[0]
    newest = None if pandas.isna(release) else int(release)
    metrics = rows.drop(columns=["overrides", "release"])
    return Content("done", int(rows["step"].iloc[-1]), newest, "", metrics)


@functools.lru_cache(maxsize=4096)
def _folder(path: Path, now: Stamp) -> Content:
    """now: sizes and times of the files, as the cache's key. Raises UserError for a damaged one."""
    folder = RunFolder(path)
    state = str(folder.status().get("state", "missing"))
    if state == "missing":
        return NOTHING
    releases = [each.get("release") for each in provenance.starts(folder.provenance())]
    rows = _rows(path / "metrics.jsonl", state == "done")
    step = int(rows["step"].iloc[-1]) if len(rows) else 0
    return Content(state, step, max(filter(None, releases), default=None), "", rows)


def _rows(file: Path, done: bool) -> pandas.DataFrame:
    """The rows of metrics.jsonl. Recorded values that are not finite become inf or -inf.

    Raises UserError unless a finished run has each step once, in order, and an evaluation at the
    end.
    """
    recorded = [
        {
            key: math.inf if isinstance(value, float) and math.isnan(value) else value
            for key, value in row.items()
        }
        for _, row in read_rows(file)
    ]
    try:
        rows = pandas.DataFrame(recorded or NOTHING.rows).astype(float).astype({"step": int})
    except (TypeError, ValueError, OverflowError) as error:
        raise unreadable(file, first_line(error)) from None
    odd = np.flatnonzero(rows["step"] != np.arange(len(rows)))
    if done and len(odd):
        raise unreadable(file, f"it has step {rows['step'][odd[0]]} in place of step {odd[0]}")
    if done and not (len(rows) and ACCURACY in rows and rows[ACCURACY].notna().iloc[-1]):
        raise unreadable(file, "it has no evaluation at the end")
    return rows


@functools.cache  # once per reason
def leave_out(reason: str) -> None:
    """Print on stderr why a run is left out."""
    print(f"left out: {printable(reason)}", file=sys.stderr)
