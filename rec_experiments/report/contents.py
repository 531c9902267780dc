"""What the page shows, read from run folders. Nothing here knows HTML."""

import hashlib
import io
from collections.abc import Container, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rec_experiments import claims, regime
from rec_experiments.claims.engine import Verdict
from rec_experiments.errors import UserError, first_line
from rec_experiments.figures import catalogue
from rec_experiments.figures.computed import COMPUTED
from rec_experiments.figures.curves import WINDOW
from rec_experiments.figures.render import Drawing
from rec_experiments.records.identity import flat, identity
from rec_experiments.records.reading import read_rows
from rec_experiments.records.run_folder import RunFolder
from rec_experiments.records.tracking import schedule_name
from rec_experiments.report.beside import forked
from rec_experiments.report.columns import Column, columns
from rec_experiments.results.collect import best_of, default_folder, folders_of, run_folders
from rec_experiments.results.remembered import remembered
from rec_experiments.results.runs import (
    FigureData,
    Run,
    leave_out,
    points,
    read_config,
    read_or_leave_out,
)
from rec_experiments.results.statistics import final, if_any, seconds
from rec_experiments.results.tables import remarks

DPI = 130  # of the figures: sharp on a phone, small in the page

Config = dict[str, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class Differences:
    """Keys whose values differ between the arms of a figure. table: key, then one value an arm."""

    arms: list[str]
    table: list[list[str]]


@dataclass(frozen=True, kw_only=True, slots=True)
class FigurePart:
    """A figure. arms, columns: of its runs, none where it is computed. notes: what to know of runs
    that are not whole. summary: its statistics as text. regime: that of its runs as text; empty
    where it has none."""

    name: str
    title: str
    arms: list[str]
    columns: list[str]
    png: bytes
    notes: list[str]
    summary: str
    regime: str
    differences: Differences | None


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

    places: in figures. config: resolved. columns: of numbers, as columns.py has them. accuracies:
    of every evaluation. final, reward, kl: as the figures' statistics have them, None where never
    measured. environment: the number of its Environment. made_by: as of a Run.
    """

    name: str
    path: Path
    places: list[Place]
    config: Config
    columns: dict[str, Column]
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
    made_by: str
    samples: list[Evaluation]


@dataclass(frozen=True, kw_only=True, slots=True)
class Contents:
    """without_runs: figures that have no run yet. left_out: why a run does not count, where one
    cannot be read."""

    figures: list[FigurePart]
    without_runs: list[str]
    claims: list[Verdict]
    runs: list[RunPart]
    left_out: list[str]
    environments: list[Environment]


def remember(
    names: list[str], folders: list[Path] | None, overrides: list[str], every_run: bool
) -> Contents:
    """As `gather`, or as it was gathered before, while no file of a run has changed."""
    swept = [name for name in names if name not in COMPUTED]
    looked = folders_of(swept, folders, overrides, for_claims=True)
    if every_run:
        others = run_folders(folders or [default_folder()]).values()
        looked += [path for paths in others for path in paths]
    question = [names, folders, overrides, every_run]
    return remembered(
        "report", question, looked, lambda: gather(names, folders, overrides, every_run)
    )


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
    left_out: dict[Path, str] = {}
    for path, run in found.items():
        try:
            configs[path], part = _read(run, where.get(path, []), environments)
            runs.append(part)
        except UserError as error:
            leave_out(str(error))
            left_out[path] = str(error)
    data = {name: without(each, left_out) for name, each in data.items()}
    data = {name: each for name, each in data.items() if len(each.missing) < len(each.runs)}
    return Contents(
        figures=_figures(names, data, configs),
        without_runs=[name for name in names if name not in COMPUTED and name not in data],
        claims=_verdicts(data, every_run),
        runs=runs,
        left_out=list(left_out.values()),
        environments=list(environments),
    )


def _figures(
    names: list[str], data: dict[str, FigureData], configs: dict[Path, Config]
) -> list[FigurePart]:
    """Those that are computed, and those that have data."""
    with forked(lambda name: _of_runs(data[name], configs)) as start:
        of_runs = start([name for name in names if name in data])
        parts = {name: _computed(COMPUTED[name]()) for name in names if name in COMPUTED}
        parts |= {part.name: part for part in of_runs}
    return [parts[name] for name in names if name in parts]


def _computed(drawing: Drawing) -> FigurePart:
    return FigurePart(
        name=drawing.name,
        title=drawing.summary.partition("\n")[0],
        arms=[],
        columns=[],
        png=_png(drawing),
        notes=[],
        summary=drawing.summary,
        regime="",
        differences=None,
    )


def _of_runs(data: FigureData, configs: dict[Path, Config]) -> FigurePart:
    shown = data.as_shown()
    drawing = catalogue.draw(shown, WINDOW)
    return FigurePart(
        name=data.name,
        title=data.title,
        arms=data.arms,
        columns=data.columns,
        png=_png(drawing),
        notes=remarks(shown),
        summary=drawing.summary,
        regime=regime.tables.text(regime.of_figure(shown)),
        differences=differences(shown, configs),
    )


def without(data: FigureData, left_out: Container[Path]) -> FigureData:
    """The figure with some of its runs as if they had no rows."""
    runs = [replace(run, rows=[]) if run.path in left_out else run for run in data.runs]
    return replace(data, runs=runs)


def _read(
    run: Run, where: list[Place], environments: dict[Environment, int]
) -> tuple[Config, RunPart]:
    """All that the page shows of a run. Raises UserError if a file of it cannot be read, or holds
    something else than a run writes there."""
    if run.note:
        raise UserError(run.note)
    config = read_config(run.path)
    try:
        return config, _run_part(run, config, where, environments)
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


def differences(data: FigureData, configs: dict[Path, Config]) -> Differences:
    """What tells the arms of a figure apart: compared run by run at one column and seed.

    So an arm whose runs are not all there does not differ by its seeds.
    """
    cells: dict[tuple[str, int], dict[str, dict[str, Any]]] = {}
    for run in data.runs:
        if run.path in configs:
            kept = identity(configs[run.path])
            cells.setdefault((run.column, run.seed), {})[run.arm] = flat(kept)
    keys: dict[str, None] = {}
    for cell in cells.values():
        for key in dict.fromkeys(key for values in cell.values() for key in values):
            if len({repr(values.get(key)) for values in cell.values()}) > 1:
                keys[key] = None
    arms = [arm for arm in data.arms if any(arm in cell for cell in cells.values())]

    def value(key: str, arm: str) -> str:
        seen = [_text(cell[arm].get(key)) for cell in cells.values() if arm in cell]
        return ", ".join(dict.fromkeys(seen))

    return Differences(arms=arms, table=[[key, *(value(key, arm) for arm in arms)] for key in keys])


def _text(value: Any) -> str:
    return "" if value is None else str(value)


def _run_part(
    run: Run, config: Config, where: list[Place], environments: dict[Environment, int]
) -> RunPart:
    origin = RunFolder(run.path).provenance()
    environment = environment_of(origin)
    samples = [row for _, row in read_rows(run.path / "samples.jsonl")]
    return RunPart(
        name=run.path.name,
        path=run.path,
        places=where,
        config=config,
        columns=columns(run.rows),
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
        environment=environments.setdefault(environment, len(environments)),
        made_by=run.made_by,
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


def _png(drawing: Drawing) -> bytes:
    buffer = io.BytesIO()
    drawing.figure.savefig(buffer, format="png", dpi=DPI)
    return buffer.getvalue()
