"""Launches a sweep: what `-m` does."""

import shlex
import sys
from collections import Counter
from collections.abc import Sequence
from typing import Any

import hydra
from hydra.errors import InstantiationException
from hydra.utils import instantiate

from rec_experiments.common.errors import ELSEWHERE, UserError, first_line, printable
from rec_experiments.common.pieces import class_name
from rec_experiments.config import schema
from rec_experiments.config.composition import composing, parse, search_path
from rec_experiments.config.experiment import Experiment
from rec_experiments.config.labels import tracked_name
from rec_experiments.runs import provenance
from rec_experiments.runs.run_folder import RunFolder
from rec_experiments.runs.trackers import track_finished
from rec_experiments.sweeps.figures import OF_SWEEP, load_figure
from rec_experiments.sweeps.jobs import Job, distinct, finished, jobs
from rec_experiments.sweeps.local import Task
from rec_experiments.sweeps.manifest import multirun_name, output_folder, write_manifest
from rec_experiments.sweeps.slurm import SlurmLauncher
from rec_experiments.sweeps.state import ACTIVE, survey

PROGRAM = "python -m rec_experiments"


def launch(words: Sequence[str], task: Task) -> None:
    """Run arms × grid: each distinct run once, and only those not done, running or queued.

    words: the command line without -m. Every job is composed and checked before the first one
    starts. A failed job does not stop the others; the failed ones are listed at the end, and the
    exit code is 1. Jobs for SLURM are only submitted. Raises UserError for a job that is not
    possible.
    """
    figures = [word.removeprefix("sweep=") for word in words if word.startswith("sweep=")]
    overrides = [word for word in words if not word.startswith("sweep=")]
    if not figures:
        for word in overrides:
            if word.startswith(("scale=", OF_SWEEP)):
                raise UserError(f"{word}: belongs to a sweep; name one, as in -m sweep=fig3")
    figure = load_figure(figures[-1], overrides) if figures else None
    name = figure.name if figure else multirun_name(overrides)
    found, launcher = jobs(figure, overrides), _launcher(overrides)
    runs = distinct(found)
    states = survey(runs.values())
    manifest = write_manifest(name, found)
    count = Counter(state.name for state in states.values())
    others = sum(bool(state.release) for state in states.values())
    active = sum(count[each] for each in ACTIVE)
    print(
        f"{len(runs)} runs, {count['done']} already finished"
        + (f" ({others} by another release; remake=true repeats them)" if others else "")
        + (f", {active} queued or running" if active else ""),
        flush=True,
    )
    track([job for path, job in runs.items() if states[path].name == "done"])
    inactive = ("done", *ACTIVE)
    waiting = [job for path, job in runs.items() if states[path].name not in inactive]
    if waiting and provenance.is_dirty():
        print("the checkout has uncommitted changes; provenance.json has those of tracked files")
    if waiting and isinstance(launcher, SlurmLauncher):
        submission = launcher.submit(name, waiting)
        known = [each for each in overrides if figure or each.startswith("output_dir=")]
        print(
            f"submitted {len(waiting)} job{'s' * (len(waiting) > 1)} as {submission.name}",
            f"  state   {PROGRAM} sweeps status {shlex.join([name, *known])}",
            f"  logs    log.txt in each run folder; SLURM's own in {submission.folder}",
            f"  cancel  scancel --name={submission.name}",
            sep="\n",
        )
    elif waiting:
        _report(waiting, launcher.run(task, waiting))
    places = [] if manifest.parents[1] == output_folder() else ["--runs", str(manifest.parents[1])]
    picture = [name, *(overrides if figure else places)]
    print(f"manifest  {manifest}")
    print(f"next      {PROGRAM} figures {shlex.join(picture)}   # draws figures/{name}.png")


def _launcher(overrides: Sequence[str]) -> Any:
    """The launcher of hydra/launcher. Raises UserError for a wrong value."""
    chosen = [
        str(each.input_line)
        for each in parse(overrides)
        if each.is_hydra_override() and not each.key_or_group.startswith(OF_SWEEP)
    ]
    with composing():
        try:
            composed = hydra.compose(
                "config", [*search_path(), *chosen], return_hydra_config=True
            ).hydra
            launcher = instantiate(composed.launcher)
        except (InstantiationException, ValueError) as error:
            raise UserError(first_line(error.__cause__ or error)) from error
    if isinstance(launcher, SlurmLauncher):
        launcher.name = str(composed.runtime.choices["hydra/launcher"])
    return launcher


def _report(waiting: Sequence[Job], reasons: Sequence[str | None]) -> None:
    """Say how the jobs ended. Exits with 1 if one failed."""
    ended = zip(waiting, reasons, strict=True)
    unfinished = [(job.path, reason) for job, reason in ended if not finished(job)]
    failed = [
        f"{path}: {reason or 'ended without an error, but its run is not done'}"
        for path, reason in unfinished
        if not (reason and reason.endswith(ELSEWHERE))
    ]
    elsewhere = len(unfinished) - len(failed)
    print(
        f"{len(waiting) - len(unfinished)} done, {len(failed)} failed"
        + (f", {elsewhere} running in another process" if elsewhere else ""),
        flush=True,
    )
    if failed:
        print("failed:", *map(printable, failed), sep="\n  ", file=sys.stderr)
        sys.exit(1)


def track(done: Sequence[Job]) -> None:
    """Send finished runs to the chosen tracker, unless it has them.

    Raises UserError for a run that cannot be read or a tracker that is missing.
    """
    sent = []
    for job in done:
        if class_name(job.config["tracking"]) != "NoTracking":
            tracking = schema.build(schema.restore(job.config, job.overrides), Experiment).tracking
            folder = RunFolder(job.path)
            name = tracked_name(job.config, folder.command(), job.path)
            sent.append(track_finished(tracking, name, job.path, folder.metrics(), job.config))
    if number := sum(map(bool, sent)):
        print(f"tracked {number} runs that were already finished")
        print(*dict.fromkeys(line for lines in sent for line in lines), sep="\n", flush=True)
