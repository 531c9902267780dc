"""What is said of a run that is finished already, without torch, whose import takes seconds."""

from pathlib import Path
from typing import Any

from rec_experiments.common.distributed import ALONE, World
from rec_experiments.common.errors import UserError
from rec_experiments.config.experiment import Experiment
from rec_experiments.config.identity import on_policy_path, run_path
from rec_experiments.config.labels import tracked_name
from rec_experiments.runs.display import Screen, say, summarise
from rec_experiments.runs.run_folder import RunFolder
from rec_experiments.runs.trackers import track_finished


def report_finished(experiment: Experiment, world: World = ALONE) -> bool:
    """Summarise a run that is finished, and send it to the tracker if that does not have it yet.

    Returns whether it is finished. Raises UserError if its folder holds another experiment.
    """
    config = experiment.config()
    path = run_path(config)
    folder = RunFolder(path, world)
    folder.check(config)
    if not folder.is_finished(experiment.remake):
        return False
    console, rows = Screen(quiet=not world.leads), folder.metrics()
    release = folder.other_releases()
    hint = f" (by {release}; remake=true repeats it)" if release else ""
    say(console, f"already finished: {path}{hint}")
    summarise(console, rows, path, on_policy_rows(config, path))
    if world.leads:
        name = tracked_name(config, folder.command(), path)
        for line in track_finished(experiment.tracking, name, path, rows, config):
            say(console, line)
    return True


def on_policy_rows(config: dict[str, Any], path: Path) -> list[dict[str, Any]] | None:
    """Rows of the on-policy run with otherwise the same configuration in the same output folder;
    None if there is no such finished run, or if its files are damaged."""
    twin = on_policy_path(config, path.parent)
    if twin is None:
        return None
    try:
        return RunFolder(twin).metrics() if RunFolder(twin).is_finished(remake=False) else None
    except UserError:
        return None
