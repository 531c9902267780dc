"""What the page shows, read from run folders. Nothing here knows HTML."""

import hashlib
from collections.abc import Container, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rec_experiments.analysis import claims
from rec_experiments.analysis.claims.verdict import Verdict
from rec_experiments.analysis.figures.computed import COMPUTED
from rec_experiments.analysis.report.beside import forked
from rec_experiments.analysis.report.columns import Column, columns, packed
from rec_experiments.analysis.report.figure_parts import Config, FigurePart, figures
from rec_experiments.analysis.results.figure_data import (
    FigureData,
    best_of,
    default_folder,
    run_folders,
)
from rec_experiments.analysis.results.runs import (
    Run,
    leave_out,
    points,
    read_config,
    read_or_leave_out,
    releases_text,
)
from rec_experiments.analysis.results.statistics import final, if_any, seconds
from rec_experiments.errors import UserError, first_line
from rec_experiments.runs.reading import read_rows
from rec_experiments.runs.run_folder import RunFolder
from rec_experiments.tracking.trackers import schedule_name

RUNS_AT_ONCE = 16  # that a process is sent


@dataclass(frozen=True, kw_only=True, slots=True)
class Place:
    """Where a run stands in a figure."""

    figure: str
    arm: str
    column: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Evaluation:
    """Some responses of the weights after `step` gradient steps, rows of samples.jsonl."""

    step: int
    responses: list[dict[str, Any]]


@dataclass(frozen=True, kw_only=True, slots=True)
class Environment:
    """What runs ran in. diff: digest of the uncommitted changes, None where there were none."""

    commit: str
    diff: str | None
    device: str
    system: str
    threads: int
    versions: tuple[tuple[str, str], ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class RunPart:
    """A run folder in one line, its curves and its responses.

    places: in figures. config: resolved. rows: in the columns of numbers. accuracies:
    of every evaluation. final, reward, kl: as the figures' statistics have them, None where never
    measured. environment: the number of its Environment. releases: of the package that
    made the run, in words.
    """

    name: str
    path: Path
    places: list[Place]
    config: Config
    rows: int
    algorithm: str
    schedule: str
    seed: int
    state: str
    reason: str
    step: int
    steps: int
    accuracies: list[float]
    final: float | None
    reward: float | None
    kl: float | None
    seconds: float
    command: list[str]
    environment: int
    releases: str
    samples: list[Evaluation]


Read = tuple[Config, RunPart, Environment, dict[str, Column]]  # of a run folder


@dataclass(frozen=True, kw_only=True, slots=True)
class Contents:
    """without_runs: figures that have no run yet. left_out: why a run does not count, where one
    cannot be read. numbers: by metric, those of all runs, as columns.py packs them."""

    figures: list[FigurePart]
    without_runs: list[str]
    claims: list[Verdict]
    runs: list[RunPart]
    left_out: list[str]
    environments: list[Environment]
    numbers: dict[str, str]


def gather(
    names: list[str], folders: list[Path] | None, overrides: list[str], every_run: bool
) -> Contents:
    """The figures `names` and their runs.

    folders: where to look for run folders instead of where the sweeps put them. overrides: as on
    the sweep's command line. every_run: also the runs that belong to no figure. A run that cannot
    be read is left out, and named. Raises UserError for a wrong override.
    """
    swept = [name for name in names if name not in COMPUTED]
    data = claims.read(swept, folders, overrides)  # with seeds that figures do not show
    found = {run.path: run for each in data.values() for run in each.runs if run.state != "missing"}
    if every_run:
        known = {path.name for path in found}
        for name, paths in run_folders(folders or [default_folder()]).items():
            if name not in known:
                run = best_of([read_or_leave_out("", "", 0, path) for path in paths])
                found[run.path] = run
    where = places(data.values())
    configs: dict[Path, Config] = {}
    environments: dict[Environment, int] = {}
    runs: list[RunPart] = []
    numbers: list[dict[str, Column]] = []
    left_out: dict[Path, str] = {}
    for path, read in zip(found, _read_each([*found.values()], where), strict=True):
        if isinstance(read, UserError):
            leave_out(str(read))
            left_out[path] = str(read)
            continue
        configs[path], part, environment, of_run = read
        numbers.append(of_run)
        number = environments.setdefault(environment, len(environments))
        runs.append(replace(part, environment=number))
    data = {name: without(each, left_out) for name, each in data.items()}
    data = {name: each for name, each in data.items() if len(each.missing) < len(each.runs)}
    return Contents(
        figures=figures(names, data, configs),
        without_runs=[name for name in names if name not in COMPUTED and name not in data],
        claims=_verdicts(data, every_run),
        runs=runs,
        left_out=list(left_out.values()),
        environments=list(environments),
        numbers=packed(numbers),
    )


def without(data: FigureData, left_out: Container[Path]) -> FigureData:
    """The figure with some of its runs as if they had no rows."""
    runs = [replace(run, rows=[]) if run.path in left_out else run for run in data.runs]
    return replace(data, runs=runs)


def _read_each(runs: list[Run], where: dict[Path, list[Place]]) -> Iterator[Read | UserError]:
    """As `_read`, of each run; the error of one that cannot be read."""

    def read(number: int) -> Read | UserError:
        run = runs[number]
        try:
            return _read(run, where.get(run.path, []))
        except UserError as error:
            return error

    with forked(read, range(len(runs)), RUNS_AT_ONCE) as found:
        yield from found


def _read(run: Run, where: list[Place]) -> Read:
    """All that the page shows of a run. Raises UserError if a file of it cannot be read, or holds
    something else than a run writes there."""
    if run.note:
        raise UserError(run.note)
    config = read_config(run.path)
    try:
        origin = RunFolder(run.path).provenance()
        found = columns(run.rows)
        part = _run_part(run, config, where, origin, rows=len(found["step"]))
        return config, part, environment_of(origin), found
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        kind = type(error).__name__
        raise UserError(
            f"run folder {run.path}: holds something else than a run writes there ({kind}: "
            f"{first_line(error)}); put its files back as they were"
        ) from error


def _verdicts(data: dict[str, FigureData], every_claim: bool) -> list[Verdict]:
    """On the claims that the figures bear on, or on every claim, at the figures' scale."""
    if not data:
        return []
    scale = next(iter(data.values())).scale
    return [
        verdict
        for verdict in claims.verdicts(data, scale)
        if every_claim or data.keys() & set(verdict.claim.figures)
    ]


def places(figures: Iterable[FigureData]) -> dict[Path, list[Place]]:
    """Every place of each run: figures share runs, and labels may too."""
    found: dict[Path, list[Place]] = {}
    for data in figures:
        for run in data.runs:
            place = Place(figure=data.name, arm=run.arm, column=run.column)
            found.setdefault(run.path, []).append(place)
    return found


def _run_part(
    run: Run, config: Config, where: list[Place], origin: dict[str, Any], rows: int
) -> RunPart:
    samples = [row for _, row in read_rows(run.path / "samples.jsonl")]
    return RunPart(
        name=run.path.name,
        path=run.path,
        places=where,
        config=config,
        rows=rows,
        algorithm=str(config["algo"]["name"]),
        schedule=schedule_name(config["sync"]),
        seed=config["seed"],
        state=str(run.state),
        reason=str(RunFolder(run.path).status().get("reason", "")),
        step=run.last_step,
        steps=config["steps"],
        accuracies=points(run.rows, "eval/accuracy")[1],
        final=if_any(final, run.rows, "eval/accuracy"),
        reward=if_any(final, run.rows, "train/reward"),
        kl=if_any(final, run.rows, "train/kl"),
        seconds=seconds(run.rows),
        command=[str(word) for word in origin["command"]],
        environment=0,  # until all environments are known
        releases=releases_text([run]).removeprefix("Runs of ").removesuffix("."),
        samples=evaluations(samples),
    )


def environment_of(provenance: dict[str, Any]) -> Environment:
    """The part of provenance.json that runs of one sweep share."""
    diff = str(provenance["diff"] or "")
    return Environment(
        commit=str(provenance["commit"] or "none"),
        diff=hashlib.sha256(diff.encode(errors="replace")).hexdigest()[:8] if diff else None,
        device=str(provenance["device"]),
        system=f"{provenance['platform']}, Python {provenance['python']}",
        threads=provenance["threads"],
        versions=tuple((str(k), str(v)) for k, v in provenance["versions"].items() if v),
    )


def evaluations(rows: list[dict[str, Any]]) -> list[Evaluation]:
    """The first, a middle and the last evaluation, as far as there are so many."""
    steps = sorted({row["step"] for row in rows})
    shown = sorted({steps[0], steps[len(steps) // 2], steps[-1]}) if steps else []
    return [
        Evaluation(step=step, responses=[row for row in rows if row["step"] == step])
        for step in shown
    ]
