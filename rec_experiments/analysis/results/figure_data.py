"""The runs of a figure: which there are, and where they lie."""

import functools
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pandas
import yaml

from rec_experiments import sweeps
from rec_experiments.analysis.results import old_archive as archive
from rec_experiments.analysis.results.begun import begun, output_folder
from rec_experiments.analysis.results.figure import FigureRuns
from rec_experiments.analysis.results.runs import Run, read_or_leave_out
from rec_experiments.analysis.results.table import FOUND, LABELS, STATE
from rec_experiments.config import schema
from rec_experiments.errors import UserError


class NoRuns(UserError):
    """None of a figure's runs has started."""


@dataclass(frozen=True, kw_only=True, slots=True)
class FigureData:
    """A figure's description and its runs. Arms, columns and panels are in the order drawn.

    scale: a choice of conf/scale. claim_seeds: the seeds that claims are judged on at that scale,
    None if they take the figure's own. shown: the seeds that the figure draws. picture: kind of
    picture. map: as in sweeps.Figure. statistics: names of the evaluation statistics that get a
    table. swept: as sweeps.swept, keys whose values divide the columns further.
    """

    name: str
    title: str
    caption: str
    scale: str
    claim_seeds: list[int] | None
    shown: list[int]
    arms: list[str]
    columns: list[str]
    panels: list[sweeps.Panel]
    runs: list[Run]
    picture: str = "curves"
    map: Mapping[str, Any] = field(default_factory=dict)
    statistics: list[str] = field(default_factory=list)
    swept: list[str] = field(default_factory=list)

    def select(self, arm: str, column: str) -> list[Run]:
        """The runs with rows of one arm and column."""
        return [run for run in self.runs if (run.arm, run.column) == (arm, column) and run.rows]

    def as_shown(self) -> "FigureData":
        """The figure without the seeds that only claims use."""
        return replace(self, runs=[run for run in self.runs if run.seed in self.shown])

    @property
    def missing(self) -> list[Run]:
        return [run for run in self.runs if not run.rows]

    @property
    def partial(self) -> list[Run]:
        return [run for run in self.runs if run.rows and not run.done]


def collect(
    name: str, folders: list[Path] | None, overrides: list[str], for_claims: bool = False
) -> FigureData:
    """Read the runs of a sweep's figure, finished or not.

    folders: where to look for run folders, instead of where the sweep writes them. overrides: as on
    the sweep's command line. for_claims: include the seeds that claims are judged on, unless the
    overrides choose seeds. A damaged run counts as missing and is reported on stderr. Raises NoRuns
    if there is no run, UserError for a wrong override, and for several values of a key for_claims.
    """
    figure, lines = figure_of(name, overrides, for_claims)
    swept = sweeps.swept(figure, lines)
    if for_claims and swept:
        raise UserError(f"{', '.join(swept)}: claims are judged at one value of a key; give one")
    if not begun(figure, folders, lines)[0]:
        sweeps.outline(figure, lines)  # raises for a wrong override
        raise _no_runs(name, folders or [output_folder(overrides)], overrides)
    jobs = composed(name, tuple(lines))[1]
    seeds = {job.config["seed"] for job in jobs}
    data = FigureData(
        name=name,
        title=figure.title,
        caption=figure.caption,
        scale=figure.scale,
        claim_seeds=claim_seeds(figure.scale),
        shown=sorted(seeds if chooses_seeds(overrides) else figure.grid.get("seed", seeds)),
        arms=list(dict.fromkeys(job.label for job in jobs)),
        columns=list(dict.fromkeys(job.heading for job in jobs)),
        panels=figure.panels,
        runs=[_read(job, folders) for job in jobs],
        picture=figure.picture,
        map=figure.map,
        statistics=figure.statistics,
        swept=swept,
    )
    if len(data.missing) == len(data.runs):
        searched = folders or sorted({run.path.parent for run in data.runs})
        raise _no_runs(name, searched, overrides)
    return data


def _no_runs(name: str, searched: Sequence[Path], overrides: list[str]) -> NoRuns:
    command = ["python", "-m", "rec_experiments", "-m", f"sweep={name}", *overrides]
    return NoRuns(
        f"{name}: no run found in {', '.join(map(str, searched))}; make them with: "
        f"{shlex.join(command)}"
    )


def _read(job: sweeps.Job, folders: list[Path] | None) -> Run:
    found = best_of([_read_at(job, path) for path in places(job.path, folders)])
    return replace(found, config=job.config)


def _read_at(job: sweeps.Job, path: Path) -> Run:
    about = (job.label, job.heading, job.config["seed"], path)
    if archive.is_archive(path.parent):
        return archive.read_archived(*about, job.config["steps"], job.config["eval_every"])
    return read_or_leave_out(*about, job.config["steps"])


def figure_of(
    name: str, overrides: list[str], for_claims: bool = False
) -> tuple[sweeps.Figure, list[str]]:
    """A figure, and the overrides that select its runs; for_claims as in `collect`."""
    figure = sweeps.load_figure(name, overrides)
    needed = claim_seeds(figure.scale) if for_claims and not chooses_seeds(overrides) else None
    wanted = sorted({*figure.grid.get("seed", []), *(needed or [])})
    return figure, [*overrides, *([f"seed={','.join(map(str, wanted))}"] if needed else [])]


@functools.cache  # composing takes seconds a figure; figures and claims share it
def composed(name: str, overrides: tuple[str, ...]) -> tuple[sweeps.Figure, list[sweeps.Job]]:
    """A figure and all its jobs. Raises UserError for a wrong override."""
    figure = sweeps.load_figure(name, list(overrides))
    return figure, sweeps.jobs(figure, list(overrides))


def chooses_seeds(overrides: Iterable[str]) -> bool:
    return any(override.partition("=")[0] == "seed" for override in overrides)


def scales() -> list[str]:
    """All choices of scale, sorted."""
    return sorted(_scale_files())


def claim_seeds(scale: str) -> list[int] | None:
    """The seeds that claims are judged on at a scale; None if they take the figures' own.

    conf/scale fixes them before the runs: adding seeds until a verdict appears finds a difference
    sooner or later.
    """
    return _scale_file(scale).get("claim_seeds")


def claim_rates(scale: str) -> list[float]:
    """The learning rates that claims are judged at: first that of the scale's settings, which needs
    no override. Empty if the scale names none."""
    return [float(rate) for rate in _scale_file(scale).get("claim_rates", [])]


def _scale_file(scale: str) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(_scale_files()[scale].read_text(encoding="utf-8"))
    return found


def _scale_files() -> dict[str, Path]:
    found = (folder / "scale" for folder in schema.conf_folders())
    return {file.stem: file for folder in found for file in folder.glob("*.yaml")}


def places(path: Path, folders: list[Path] | None) -> list[Path]:
    """Where a run may be: where the sweep writes it, or under the same name in each of `folders`.

    The name is a digest of the experiment, so folders with the same name hold the same run.
    """
    return [folder / path.name for folder in folders] if folders else [path]


def best_of(runs: list[Run]) -> Run:
    """The copy of a run to count: a finished one, then one of the newest release, then the one with
    the most steps."""
    best = max(
        runs,
        key=lambda run: (run.done, _newest_release(run), run.last_step, run.state != "missing"),
    )
    others = {run.path.resolve(): run for run in runs if run.state != "missing"}
    others.pop(best.path.resolve(), None)
    return replace(
        best,
        copies=tuple(run.path for run in others.values()),
        they_differ=best.done and any(run.done and not _same(run, best) for run in others.values()),
    )


def _newest_release(run: Run) -> int:
    return max((release or 0 for release in run.releases), default=0)


def _same(one: Run, other: Run) -> bool:
    """Whether two copies of a run have the same numbers, except for times."""

    def numbers(run: Run) -> list[dict[str, object]]:
        return [
            {k: v for k, v in row.items() if not (k.startswith("time/") or "per_second" in k)}
            for row in run.rows
        ]

    return numbers(one) == numbers(other)


def as_runs(data: FigureData) -> FigureRuns:
    """The same figure as tables, while some modules still read FigureData."""
    about = [
        [data.name, run.arm, run.column, run.seed, run.path.name, run.path, "", run.state,
         run.last_step, max((each or 0 for each in run.releases), default=None), run.note]
        for run in data.runs
    ]  # fmt: skip
    runs = pandas.DataFrame(about, columns=[*FOUND, *STATE]).astype({"release": "Int64"})
    steps = pandas.DataFrame(
        [
            {
                **dict(
                    zip(
                        [*LABELS, "run", "state", "release"],
                        [*each[:5], each[7], each[9]],
                        strict=True,
                    )
                ),
                **row,
            }
            for each, run in zip(about, data.runs, strict=True)
            for row in run.rows
        ],
        columns=None if any(run.rows for run in data.runs) else [*LABELS, "run", "state", "step"],
    )
    return FigureRuns(
        name=data.name, runs=runs, steps=steps, arms=data.arms, columns=data.columns,
        title=data.title, caption=data.caption, scale=data.scale, panels=data.panels,
        picture=data.picture, map=data.map, statistics=data.statistics, swept=data.swept,
    )  # fmt: skip


NAMES_SHOWN = 6


def _names(names: Iterable[str]) -> str:
    names = list(names)
    more = len(names) - NAMES_SHOWN
    return "; ".join(names[:NAMES_SHOWN]) + (f"; and {more} more." if more > 0 else ".")


def duplicates(runs: Iterable[Run]) -> list[str]:
    """Sentences that name the runs found in several folders."""
    copied = {run.path: run for run in runs if run.copies}.values()
    return [
        f"{words}: {_names(f'{run.name}, from {run.path.parent.name}' for run in found)}"
        for words, found in (
            ("In several folders, counted once", copied),
            ("With different numbers in another folder", [r for r in copied if r.they_differ]),
        )
        if found
    ]
