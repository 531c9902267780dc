"""What the page shows, read from run folders."""

from collections.abc import Container, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rec_experiments.analysis import claims
from rec_experiments.analysis.claims.verdict import Verdict
from rec_experiments.analysis.figures import catalogue
from rec_experiments.analysis.figures.computed import COMPUTED
from rec_experiments.analysis.figures.curves import WINDOW
from rec_experiments.analysis.regime import tables
from rec_experiments.analysis.regime.arms import arms_in
from rec_experiments.analysis.regime.sections import sections
from rec_experiments.analysis.report.columns import Column, columns
from rec_experiments.analysis.results.begun import begun, default_folder
from rec_experiments.analysis.results.figure_data import (
    FigureData,
    as_runs,
    best_of,
    figure_of,
)
from rec_experiments.analysis.results.runs import (
    Run,
    leave_out,
    points,
    read_or_leave_out,
    releases_text,
    run_folders,
)
from rec_experiments.analysis.results.statistics import final, if_any, seconds
from rec_experiments.analysis.results.summary import remarks
from rec_experiments.config.identity import flat, identity
from rec_experiments.config.labels import methods, run_labels
from rec_experiments.errors import UserError, first_line
from rec_experiments.runs.reading import read_rows
from rec_experiments.runs.run_folder import RunFolder, read_config
from rec_experiments.sweeps import SetByArm
from rec_experiments.tracking.trackers import schedule_name

DPI = 130  # sharp on a phone, small in the page
ENOUGH = 0.5  # share of its cells in which a run must have begun, for a figure that nobody named

Config = dict[str, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class Place:
    """The arm and column of a figure that show a run."""

    figure: str
    arm: str
    column: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Evaluation:
    """Some responses of the weights after `step` gradient steps, rows of samples.jsonl."""

    step: int
    responses: list[dict[str, Any]]


@dataclass(frozen=True, kw_only=True, slots=True)
class RunPart:
    """A run folder as one row of the page's table, with its curves and responses.

    name: its label. method: the label without schedule and seed. config: resolved. accuracies: of
    every evaluation. final, reward, kl: as in the figures' statistics, None if never measured.
    columns: its metrics as columns of numbers.
    """

    name: str
    method: str
    path: Path
    places: list[Place]
    config: Config
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
    samples: list[Evaluation]
    columns: dict[str, Column]


@dataclass(frozen=True, kw_only=True, slots=True)
class Differences:
    """Keys whose values differ between the arms of a figure. table: rows of a key and one value per
    arm."""

    arms: list[str]
    table: list[list[str]]


@dataclass(frozen=True, kw_only=True, slots=True)
class FigurePart:
    """A figure, how to read it, and its numbers as text. A computed figure has no runs, and no arms
    and columns.

    notes: on runs that are missing or unfinished, and on the releases of all.
    """

    name: str
    title: str
    png: bytes
    caption: str
    summary: str
    arms: list[str]
    columns: list[str]
    notes: list[str]
    regime: str
    differences: Differences | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Contents:
    """without_runs: names of figures. few_runs: figures that are not drawn, as they have too few.
    left_out: why runs could not be read."""

    figures: list[FigurePart]
    without_runs: list[str]
    few_runs: list[str]
    claims: list[Verdict]
    runs: list[RunPart]
    left_out: list[str]


def gather(
    names: list[str], folders: list[Path] | None, overrides: list[str], every_run: bool
) -> Contents:
    """Read the figures `names` and their runs.

    folders: where to look for run folders, instead of where the sweeps write them. overrides: as on
    the sweep's command line. every_run: include runs that belong to no figure, and leave out
    figures with too few runs or whose arms set a key of the overrides. Runs that cannot be read are
    reported. Raises UserError for a wrong override.
    """
    swept, counts = [], {}
    for name in (name for name in names if name not in COMPUTED):
        try:
            counts[name] = begun(figure_of(name, overrides)[0], folders, overrides)
        except SetByArm:
            if not every_run:
                raise
            names = [each for each in names if each != name]
        else:
            swept.append(name)
    few = {
        name: f"{name} ({number} of {cells} cells)"
        for name, (number, cells) in counts.items()
        if every_run and 0 < number < ENOUGH * cells
    }
    names, swept = ([each for each in some if each not in few] for some in (names, swept))
    data = claims.read(swept, folders, overrides)  # with the seeds that only claims use
    found = {run.path: run for each in data.values() for run in each.runs if run.state != "missing"}
    if every_run:
        known = {path.name for path in found}
        others: dict[str, list[Path]] = {}
        for path in run_folders(folders or [default_folder()]):
            others.setdefault(path.name, []).append(path)
        for name, paths in others.items():
            if name not in known:
                run = best_of([read_or_leave_out("", "", 0, path) for path in paths])
                found[run.path] = run
    where = places(data.values())
    runs, unreadable = [], {}
    for path, run in found.items():
        try:
            runs.append(_run_part(run, where.get(path, [])))
        except UserError as error:
            unreadable[path] = str(error)
            leave_out(str(error))
    named = [(run.config, run.command) for run in runs]
    labels = zip(runs, run_labels(named), methods(named), strict=True)
    runs = [replace(run, name=name, method=method) for run, name, method in labels]
    data = {name: without(each, unreadable) for name, each in data.items()}
    data = {name: each for name, each in data.items() if len(each.missing) < len(each.runs)}
    configs = {run.path: run.config for run in runs}
    return Contents(
        figures=[
            _of_runs(data[name], configs) if name in data else _computed(name)
            for name in names
            if name in data or name in COMPUTED
        ],
        without_runs=[name for name in swept if name not in data],
        few_runs=[*few.values()],
        claims=_verdicts(data, folders, overrides, every_run),
        runs=runs,
        left_out=list(unreadable.values()),
    )


def places(figures: Iterable[FigureData]) -> dict[Path, list[Place]]:
    """All places of each run: figures share runs, and labels of a figure may too."""
    found: dict[Path, list[Place]] = {}
    for data in figures:
        for run in data.runs:
            place = Place(figure=data.name, arm=run.arm, column=run.column)
            found.setdefault(run.path, []).append(place)
    return found


def without(data: FigureData, left_out: Container[Path]) -> FigureData:
    """The figure with some of its runs missing."""
    runs = [replace(run, rows=[]) if run.path in left_out else run for run in data.runs]
    return replace(data, runs=runs)


def _verdicts(
    data: dict[str, FigureData], folders: list[Path] | None, overrides: list[str], every: bool
) -> list[Verdict]:
    """Verdicts on the claims that these figures judge, or on every claim."""
    if not data:
        return []
    names = {claim.primary.figure for claim in claims.CLAIMS} if every else set(data)
    scale = next(iter(data.values())).scale
    return claims.about(names, scale, data, folders, overrides)


def _run_part(run: Run, where: list[Place]) -> RunPart:
    """Without its labels, which depend on all runs. Raises UserError if a file is damaged."""
    if run.note:
        raise UserError(run.note)
    config, folder = read_config(run.path), RunFolder(run.path)
    command = folder.command()
    samples = [row for _, row in read_rows(run.path / "samples.jsonl")]
    try:
        return RunPart(
            name="",
            method="",
            path=run.path,
            places=where,
            config=config,
            algorithm=str(config["algo"]["name"]),
            schedule=schedule_name(config["sync"]),
            seed=config["seed"],
            state=str(run.state),
            reason=str(folder.status().get("reason", "")),
            step=run.last_step,
            steps=config["steps"],
            accuracies=points(run.rows, "eval/accuracy")[1],
            final=if_any(final, run.rows, "eval/accuracy"),
            reward=if_any(final, run.rows, "train/reward"),
            kl=if_any(final, run.rows, "train/kl"),
            seconds=seconds(run.rows),
            command=command,
            samples=evaluations(samples),
            columns=columns(run.rows),
        )
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise UserError(
            f"run folder {run.path}: its files hold values that no run writes "
            f"({type(error).__name__}: {first_line(error)}); restore them"
        ) from error


def evaluations(rows: list[dict[str, Any]]) -> list[Evaluation]:
    """The first, a middle and the last evaluation."""
    steps = sorted({row["step"] for row in rows})
    shown = sorted({steps[0], steps[len(steps) // 2], steps[-1]}) if steps else []
    return [
        Evaluation(step=step, responses=[row for row in rows if row["step"] == step])
        for step in shown
    ]


def _computed(name: str) -> FigurePart:
    from rec_experiments.analysis.figures import render  # matplotlib is slow to import

    drawing = COMPUTED[name]()
    return FigurePart(
        name=name,
        title=drawing.summary.partition("\n")[0],
        png=render.png(drawing.figure, DPI, quick=True),
        caption=drawing.caption,
        summary=drawing.summary,
        arms=[],
        columns=[],
        notes=[],
        regime="",
        differences=None,
    )


def _of_runs(data: FigureData, configs: dict[Path, Config]) -> FigurePart:
    from rec_experiments.analysis.figures import render

    shown = data.as_shown()
    drawing = catalogue.draw(as_runs(shown), WINDOW)
    return FigurePart(
        name=data.name,
        title=data.title,
        png=render.png(drawing.figure, DPI, quick=True),
        caption=drawing.caption,
        summary=drawing.summary,
        arms=data.arms,
        columns=data.columns,
        notes=[*remarks(as_runs(shown)), releases_text(shown.runs)],
        regime=tables.text(sections(arms_in(shown))),
        differences=differences(shown, configs),
    )


def differences(data: FigureData, configs: dict[Path, Config]) -> Differences:
    """The keys that distinguish the arms of a figure, compared at the same column and seed, so that
    missing runs make no difference."""
    cells: dict[tuple[str, int], dict[str, Config]] = {}
    for run in data.runs:
        if run.path in configs:
            kept = identity(configs[run.path])
            cells.setdefault((run.column, run.seed), {})[run.arm] = flat(kept)
    keys = dict.fromkeys(
        key
        for cell in cells.values()
        for key in dict.fromkeys(key for values in cell.values() for key in values)
        if len({repr(values.get(key)) for values in cell.values()}) > 1
    )
    arms = [arm for arm in data.arms if any(arm in cell for cell in cells.values())]

    def value(key: str, arm: str) -> str:
        seen = [cell[arm].get(key) for cell in cells.values() if arm in cell]
        return ", ".join(dict.fromkeys("" if each is None else str(each) for each in seen))

    return Differences(arms=arms, table=[[key, *(value(key, arm) for arm in arms)] for key in keys])
