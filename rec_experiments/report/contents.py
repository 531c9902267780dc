"""What the page shows, read from run folders. Nothing here knows HTML."""

import hashlib
import io
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rec_experiments import claims, regime
from rec_experiments.claims.engine import Verdict
from rec_experiments.figures.computed import COMPUTED
from rec_experiments.figures.curves import WINDOW
from rec_experiments.figures.render import Drawing, draw
from rec_experiments.records.identity import NOT_IDENTITY
from rec_experiments.records.tracking import schedule_name
from rec_experiments.results.collect import best_of, default_folder, run_folders
from rec_experiments.results.runs import (
    FigureData,
    Run,
    points,
    read_config,
    read_json,
    read_run,
    read_samples,
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
    """A figure. notes: what to know of runs that are not whole. summary: its statistics as text.
    regime: that of its runs as text; empty where it has none."""

    name: str
    title: str
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
    """A run folder in one line, and its responses.

    accuracies: of every evaluation. final, reward, kl: as the figures' statistics have them, None
    where never measured. environment: the number of its Environment. made_by: as of a Run.
    """

    name: str
    places: list[Place]
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
    """without_runs: figures that have no run yet."""

    figures: list[FigurePart]
    without_runs: list[str]
    claims: list[Verdict]
    runs: list[RunPart]
    environments: list[Environment]


def gather(
    names: list[str], folders: list[Path] | None, overrides: list[str], every_run: bool
) -> Contents:
    """The figures `names` and their runs.

    folders: where to look for run folders instead of where the sweeps put them. overrides: as on
    the sweep's command line. every_run: also the runs that belong to no figure. Raises UserError
    for a wrong override or an unreadable run.
    """
    swept = [name for name in names if name not in COMPUTED]
    data = claims.read(swept, folders, overrides)  # with seeds that figures do not show
    shown = {name: each.as_shown() for name, each in data.items()}
    drawings: dict[str, Drawing] = {
        name: COMPUTED[name]() if name in COMPUTED else draw(shown[name], WINDOW)
        for name in names
        if name in COMPUTED or name in data
    }
    found = {run.path: run for each in data.values() for run in each.runs if run.state != "missing"}
    if every_run:
        known = {path.name for path in found}
        for name, paths in run_folders(folders or [default_folder()]).items():
            if name not in known:
                run = best_of([read_run("", "", 0, path) for path in paths])
                found[run.path] = run
    configs = {path: read_config(path) for path in found}
    environments: dict[Environment, int] = {}
    return Contents(
        figures=[
            FigurePart(
                name=name,
                title=data[name].title if name in data else drawing.summary.partition("\n")[0],
                png=_png(drawing),
                notes=remarks(shown[name]) if name in data else [],
                summary=drawing.summary,
                regime=regime.tables.text(regime.of_figure(shown[name])) if name in data else "",
                differences=differences(shown[name], configs) if name in data else None,
            )
            for name, drawing in drawings.items()
        ],
        without_runs=[name for name in names if name not in drawings],
        claims=_verdicts(data, every_run),
        runs=[
            _run_part(run, configs[path], places(path, data.values()), environments)
            for path, run in found.items()
        ],
        environments=list(environments),
    )


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


def places(path: Path, figures: Iterable[FigureData]) -> list[Place]:
    """Every place of a run: figures share runs, and labels may too."""
    return [
        Place(figure=data.name, arm=run.arm, column=run.column)
        for data in figures
        for run in data.runs
        if run.path == path
    ]


def differences(data: FigureData, configs: dict[Path, Config]) -> Differences:
    """What tells the arms of a figure apart: compared run by run at one column and seed.

    So an arm whose runs are not all there does not differ by its seeds.
    """
    flat: dict[tuple[str, int], dict[str, dict[str, Any]]] = {}
    for run in data.runs:
        if run.path in configs:
            kept = {k: v for k, v in configs[run.path].items() if k not in NOT_IDENTITY}
            flat.setdefault((run.column, run.seed), {})[run.arm] = flatten(kept)
    keys: dict[str, None] = {}
    for cell in flat.values():
        for key in dict.fromkeys(key for values in cell.values() for key in values):
            if len({repr(values.get(key)) for values in cell.values()}) > 1:
                keys[key] = None
    arms = [arm for arm in data.arms if any(arm in cell for cell in flat.values())]

    def value(key: str, arm: str) -> str:
        seen = [_text(cell[arm].get(key)) for cell in flat.values() if arm in cell]
        return ", ".join(dict.fromkeys(seen))

    return Differences(arms=arms, table=[[key, *(value(key, arm) for arm in arms)] for key in keys])


def flatten(tree: Config, prefix: str = "") -> dict[str, Any]:
    """Nested keys as dotted ones."""
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        flat |= (
            flatten(value, f"{prefix}{key}.") if isinstance(value, dict) else {prefix + key: value}
        )
    return flat


def _text(value: Any) -> str:
    return "" if value is None else str(value)


def _run_part(
    run: Run, config: Config, where: list[Place], environments: dict[Environment, int]
) -> RunPart:
    origin = read_json(run.path, "provenance.json")
    environment = environment_of(origin)
    status = read_json(run.path, "status.json")
    return RunPart(
        name=run.path.name,
        places=where,
        algorithm=config["algo"]["name"],
        schedule=schedule_name(config["sync"]),
        seed=config["seed"],
        state=run.state,
        reason=status.get("reason", ""),
        step=run.last_step,
        steps=config["steps"],
        accuracies=points(run.rows, "eval/accuracy")[1],
        final=if_any(final, run.rows, "eval/accuracy"),
        reward=if_any(final, run.rows, "train/reward"),
        kl=if_any(final, run.rows, "train/kl"),
        seconds=seconds(run.rows),
        command=origin["command"],
        environment=environments.setdefault(environment, len(environments)),
        made_by=run.made_by,
        samples=evaluations(read_samples(run.path)),
    )


def environment_of(provenance: dict[str, Any]) -> Environment:
    """The part of provenance.json that runs of one sweep share."""
    diff = provenance["diff"]
    return Environment(
        commit=provenance["commit"] or "none",
        diff=hashlib.sha256(diff.encode()).hexdigest()[:8] if diff else None,
        device=provenance["device"],
        system=f"{provenance['platform']}, Python {provenance['python']}",
        threads=provenance["threads"],
        versions=tuple((k, v) for k, v in provenance["versions"].items() if v),
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
