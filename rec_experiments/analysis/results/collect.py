"""Which run folders there are, and which of them a figure is made of."""

import functools
import shlex
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import yaml

from rec_experiments import sweeps
from rec_experiments.analysis.results.runs import FigureData, Run, read_or_leave_out
from rec_experiments.config import schema
from rec_experiments.errors import UserError


class NoRuns(UserError):
    """None of a figure's runs has been started."""


def collect(
    name: str, folders: list[Path] | None, overrides: list[str], for_claims: bool = False
) -> FigureData:
    """The data of a sweep's figure, as far as its runs went.

    folders: where to look for the run folders instead of where the sweep puts them. overrides:
    as on the command line of the sweep. for_claims: with every seed that claims need, unless the
    overrides name seeds. A run that cannot be read counts as missing, and is named. Raises NoRuns
    if there is no run, UserError for a wrong override.
    """
    figure, jobs = composed(name, tuple(overrides), for_claims)
    chosen = {job.config["seed"] for job in jobs}
    own = figure.grid.get("seed", chosen)
    data = FigureData(
        name=name,
        title=figure.title,
        caption=figure.caption,
        scale=figure.scale,
        claim_seeds=claim_seeds(figure.scale),
        shown=sorted(chosen if _names_seeds(overrides) else own),
        arms=list(dict.fromkeys(job.label for job in jobs)),
        columns=list(dict.fromkeys(job.heading for job in jobs)),
        panels=figure.panels,
        runs=[
            best_of(
                [
                    read_or_leave_out(
                        job.label, job.heading, job.config["seed"], path, job.config["steps"]
                    )
                    for path in places(job.path, folders)
                ]
            )
            for job in jobs
        ],
        picture=figure.picture,
        statistics=figure.statistics,
        schedules=_schedules(jobs) if figure.columns == "sync" else {},
    )
    if len(data.missing) == len(data.runs):
        looked = sorted({str(run.path.parent) for run in data.runs})
        raise NoRuns(
            f"{name}: no run found in {', '.join(map(str, folders or looked))}; make them with: "
            + shlex.join(["python", "-m", "rec_experiments", "-m", f"sweep={name}", *overrides])
        )
    return data


def _schedules(jobs: list[sweeps.Job]) -> dict[str, tuple[int | None, int]]:
    """(interval, offset) of each column."""
    found = {job.heading: job.config["sync"] for job in jobs}
    return {heading: (each["interval"], each["offset"]) for heading, each in found.items()}


def folders_of(
    names: Iterable[str], folders: list[Path] | None, overrides: list[str], for_claims: bool = False
) -> list[Path]:
    """All folders that `collect` looks into for these figures."""
    found = (composed(name, tuple(overrides), for_claims)[1] for name in names)
    paths = dict.fromkeys(job.path for jobs in found for job in jobs)
    return [place for path in paths for place in places(path, folders)]


@functools.cache  # composing takes seconds a figure; figures and claims of one process share it
def composed(
    name: str, overrides: tuple[str, ...], for_claims: bool = False
) -> tuple[sweeps.Figure, list[sweeps.Job]]:
    """A figure and all its jobs; `for_claims` as in `collect`. Raises UserError for a wrong
    override."""
    figure = sweeps.load_figure(name, list(overrides))
    needed = claim_seeds(figure.scale) if for_claims and not _names_seeds(overrides) else None
    seeds = [f"seed={','.join(map(str, range(needed)))}"] if needed else []
    return figure, sweeps.jobs(figure, [*overrides, *seeds])


def _names_seeds(overrides: Iterable[str]) -> bool:
    return any(override.partition("=")[0] == "seed" for override in overrides)


def scales() -> list[str]:
    """All choices of scale, by name."""
    return sorted(_scale_files())


def claim_seeds(scale: str) -> int | None:
    """How many seeds claims need at a scale, from 0 on; None where they take those of the figures.

    It stands in conf/scale, fixed before the runs: who looks at the verdict first and then decides
    how many seeds to add finds a difference sooner or later.
    """
    return yaml.safe_load(_scale_files()[scale].read_text(encoding="utf-8")).get("claim_seeds")


def _scale_files() -> dict[str, Path]:
    found = (folder / "scale" for folder in schema.conf_folders())
    return {file.stem: file for folder in found for file in folder.glob("*.yaml")}


def places(path: Path, folders: list[Path] | None) -> list[Path]:
    """Where a run may be: where the sweep puts it, or under its own name in each of `folders`.

    The name is a digest of the experiment, so the same name is the same run.
    """
    return [folder / path.name for folder in folders] if folders else [path]


def best_of(runs: list[Run]) -> Run:
    """The copy of a run to count: one that is done before one that is not, then one that this code
    made, then the furthest."""
    best = max(
        runs, key=lambda run: (run.done, not run.made_by, run.last_step, run.state != "missing")
    )
    others = {run.path.resolve(): run for run in runs if run.state != "missing"}
    others.pop(best.path.resolve(), None)
    return replace(
        best,
        copies=tuple(run.path for run in others.values()),
        they_differ=best.done and any(run.done and not _same(run, best) for run in others.values()),
    )


def _same(one: Run, other: Run) -> bool:
    """Whether two copies of a run have the same numbers, clocks aside."""

    def numbers(run: Run) -> list[dict[str, object]]:
        return [
            {k: v for k, v in row.items() if not (k.startswith("time/") or "per_second" in k)}
            for row in run.rows
        ]

    return numbers(one) == numbers(other)


def default_folder() -> Path:
    """Where runs go when nobody says otherwise."""
    config = (schema.CONF / "config.yaml").read_text(encoding="utf-8")
    return Path(yaml.safe_load(config)["output_dir"])


def run_folders(folders: Iterable[Path]) -> dict[str, list[Path]]:
    """The run folders of each name; the same name is the same run."""
    found: dict[str, list[Path]] = {}
    for path in sorted(file.parent for folder in folders for file in folder.glob("*/status.json")):
        found.setdefault(path.name, []).append(path)
    return found
