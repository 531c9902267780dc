"""Trackers: where metrics go in addition to metrics.jsonl, which is always written."""

import secrets
import shlex
from pathlib import Path
from typing import Any, Literal, Protocol, cast, runtime_checkable

from rec_experiments.errors import UserError, first_line
from rec_experiments.files import write_atomic
from rec_experiments.tracking.protocol import Tracker, Tracking
from rec_experiments.types import Piece, class_name

Mode = Literal["online", "offline", "disabled"]
LONGEST_NAME = 128  # characters of a run's name in W&B
FOLDER = "folder"  # key of a tracked configuration: the name of the run folder
ID_FILE = "wandb_id"  # file of the run folder: a resumed run continues the same tracked run


@runtime_checkable
class Remembers(Protocol):
    """A tracking that can check what was tracked, so that a finished run can be sent later."""

    def has(self, name: str, folder: str, step: int) -> bool:
        """Whether the run is tracked up to `step`. Raises UserError as `start` does."""


def track_finished(
    tracking: Tracking,
    name: str,
    folder: Path,
    rows: list[dict[str, Any]],
    config: dict[str, Any],
) -> list[str]:
    """Send a finished run to a tracker that can check that it does not have the run yet.

    Returns next steps for the user, as `finish` does.
    """
    if not (isinstance(tracking, Remembers) and rows):
        return []
    if tracking.has(name, str(folder), rows[-1]["step"]):
        return []
    tracker = tracking.start(name, group_name(config), str(folder), config)
    for row in rows:
        tracker.log(row)
    picture = folder / "curves.png"
    return tracker.finish(picture if picture.is_file() else None)


def lasting_id(folder: Path) -> str:
    """The folder's random id for trackers, created on first use. It distinguishes folders of the
    same name, and a repeated run from the earlier one."""
    file = folder / ID_FILE
    if not file.exists():
        write_atomic(file, secrets.token_hex(4).encode())
    return file.read_text()


class NoTracking(Piece):
    """metrics.jsonl only."""

    def start(self, name: str, group: str, folder: str, config: dict[str, Any]) -> Tracker:
        return _Silent()


class Wandb(Piece):
    """Weights & Biases. mode: online, offline or disabled; null means online if there is a key.

    A run is tagged with its method, schedule and dataset, and with `tags`.
    """

    project: str
    entity: str | None
    mode: Mode | None
    tags: list[str]

    def start(self, name: str, group: str, folder: str, config: dict[str, Any]) -> Tracker:
        import wandb  # slow to import

        mode = self.mode or ("online" if wandb.login(prompt=False) else "offline")
        try:
            run = wandb.init(
                project=self.project,
                entity=self.entity,
                name=name[:LONGEST_NAME],
                id=lasting_id(Path(folder)),
                resume="allow",
                group=group,
                job_type="train",
                tags=list(dict.fromkeys([*labels(config), *self.tags])),
                dir=folder,
                config={**config, FOLDER: Path(folder).name},
                mode=cast(Mode, mode),
                settings=wandb.Settings(console="off"),  # keep the progress bar out of the log
            )
        except (wandb.Error, ValueError) as error:
            raise UserError(
                f"tracking=wandb: W&B refuses the run ({first_line(error)}); see tracking.project, "
                "tracking.entity and tracking.tags"
            ) from error
        return _WandbRun(run)

    def has(self, name: str, folder: str, step: int) -> bool:
        """Whether the run was tracked at all: W&B resumes incomplete runs itself."""
        return Path(folder, "wandb").is_dir()


def schedule_name(sync: dict[str, Any]) -> str:
    """The schedule of a resolved `sync`, as in: offline, interval 20, offset 10, in flight."""
    interval, offset = sync["interval"], sync["offset"]
    if interval is None:
        return "offline"
    parts = [f"interval {interval}"] if interval > 1 else []
    parts += [f"offset {offset}"] if offset else []
    if "versions" in sync:
        parts.append(f"in flight, {sync['versions']} versions of {sync['tokens']} tokens")
    return ", ".join(parts) or "on-policy"


def labels(config: dict[str, Any]) -> list[str]:
    """Tags of a run: method, schedule, dataset."""
    return [config["algo"]["name"], schedule_name(config["sync"]), class_name(config["dataset"])]


def group_name(config: dict[str, Any]) -> str:
    """Dataset and schedule, which runs of different methods and seeds share."""
    return f"{class_name(config['dataset'])}, {schedule_name(config['sync'])}"


class _Silent:
    def log(self, row: dict[str, Any]) -> None:
        return None

    def finish(self, picture: Path | None = None, failed: bool = False) -> list[str]:
        return []


class _WandbRun:
    def __init__(self, run: Any):
        self.run = run
        self.step = 0

    def log(self, row: dict[str, Any]) -> None:
        self.step = row["step"]
        self.run.log({k: v for k, v in row.items() if k != "step"}, step=self.step)

    def finish(self, picture: Path | None = None, failed: bool = False) -> list[str]:
        import wandb

        if picture is not None:
            self.run.log({"curves": wandb.Image(str(picture))}, step=self.step)
        sync_dir = Path(self.run.settings.sync_dir)
        self.run.finish(exit_code=int(failed))
        if not self.run.offline:
            return []
        # A resumed run has one offline run for each start.
        return [f"upload    wandb sync {shlex.quote(str(sync_dir.parent))}/offline-run-*"]
