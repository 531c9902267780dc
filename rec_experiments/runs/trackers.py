"""Trackers: where metrics go in addition to metrics.jsonl, which is always written.

W&B and trackio, which has W&B's interface, share one class of runs; TensorBoard has its own. Each
is an optional package. The run folder's tracking.json holds a random id of the folder, under which
a resumed run continues the same tracked run, and the trackers that have received the whole run.
"""

from __future__ import annotations

import contextlib
import io
import json
import math
import secrets
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, cast

from rec_experiments.common.errors import UserError, check_installed, first_line
from rec_experiments.common.files import write_atomic
from rec_experiments.common.pieces import Piece, class_name
from rec_experiments.common.protocols import Tracker, Tracking
from rec_experiments.config.labels import schedule_name
from rec_experiments.runs.reading import Row, read_rows

Mode = Literal["online", "offline", "disabled"]
LONGEST_NAME = 128  # characters of a run's name in W&B
FOLDER = "folder"  # key of a tracked configuration: the name of the run folder
RECORD = "tracking.json"


def finish_tracking(
    tracking: Tracking, tracker: Tracker, folder: Path, picture: Path | None = None
) -> list[str]:
    """Finish the tracking of a whole run. picture: its plot. Returns next steps for the user."""
    lines = tracker.finish(picture)
    if not isinstance(tracking, NoTracking):
        _write_record(folder, whole_in=[*_record(folder)["whole_in"], type(tracking).__name__])
    return lines


def track_finished(
    tracking: Tracking, name: str, folder: Path, rows: list[Row], config: dict[str, Any]
) -> list[str]:
    """Send a finished run to a tracker that has not received the whole run yet. Returns next steps
    for the user."""
    sent = type(tracking).__name__ in _record(folder)["whole_in"]
    if sent or not rows or isinstance(tracking, NoTracking):
        return []
    tracker = tracking.start(name, folder, config)
    for row in rows:
        tracker.log(row)
    picture = folder / "curves.png"
    return finish_tracking(tracking, tracker, folder, picture if picture.is_file() else None)


def lasting_id(folder: Path) -> str:
    """The folder's random id, created on first use. It distinguishes folders of the same name, and
    a repeated run from the earlier one."""
    if not (folder / RECORD).exists():
        _write_record(folder)
    return str(_record(folder)["id"])


def _record(folder: Path) -> dict[str, Any]:
    file, new = folder / RECORD, {"id": secrets.token_hex(4), "whole_in": []}
    return json.loads(file.read_text()) if file.exists() else new


def _write_record(folder: Path, **changes: Any) -> None:
    write_atomic(folder / RECORD, json.dumps({**_record(folder), **changes}).encode())


class NoTracking(Piece):
    """metrics.jsonl only. It is its own tracker."""

    def start(self, name: str, folder: Path, config: dict[str, Any]) -> Tracker:
        return self

    def log(self, row: Row) -> None:
        """Nothing is sent."""

    def finish(self, picture: Path | None = None, failed: bool = False) -> list[str]:
        return []


class Wandb(Piece):
    """Weights & Biases. mode: online, offline or disabled; null means online if there is a key.

    A run is tagged with its method, schedule and dataset, and with `tags`.
    """

    project: str
    entity: str | None
    mode: Mode | None
    tags: list[str]

    def start(self, name: str, folder: Path, config: dict[str, Any]) -> Tracker:
        import wandb  # slow to import

        mode = self.mode or ("online" if wandb.login(prompt=False) else "offline")
        with _refusals_in_one_line("wandb", wandb.Error):
            run = wandb.init(
                project=self.project, entity=self.entity, name=name[:LONGEST_NAME],
                id=lasting_id(folder), resume="allow", group=group_name(config), job_type="train",
                tags=tags(config, self.tags), config={**config, FOLDER: folder.name},
                dir=str(folder), mode=cast(Mode, mode),
                settings=wandb.Settings(console="off"),  # keep the progress bar out of the log
            )  # fmt: skip
        return _Run(wandb, run)


class Trackio(Piece):
    """trackio: a local SQLite file for all runs of a project, and a dashboard in the browser.

    A run's name ends in its folder's id. A resumed run continues its trackio run: steps that are
    already stored are skipped, steps that a killed process did not send are sent first.
    """

    project: str
    tags: list[str]

    def start(self, name: str, folder: Path, config: dict[str, Any]) -> Tracker:
        check_installed("tracking=trackio", "trackio")
        import trackio

        with _refusals_in_one_line("trackio"), quiet():
            run = trackio.init(
                project=self.project, name=f"{name} · {lasting_id(folder)}", resume="allow",
                group=group_name(config), config={**config, "tags": tags(config, self.tags)},
                embed=False, auto_log_gpu=False, auto_log_cpu=False,
            )  # fmt: skip
        return _TrackioRun(trackio, run, self.project, folder)


class TensorBoard(Piece):
    """Event files in the run folder.

    A resumed run appends and hides the steps that it repeats. A run that was not tracked before
    also gets its earlier steps.
    """

    def start(self, name: str, folder: Path, config: dict[str, Any]) -> Tracker:
        check_installed("tracking=tensorboard", "tensorboard")
        return _TensorBoardRun(folder / "tensorboard", group_name(config))


class _Run:
    """A run of a library with W&B's interface."""

    def __init__(self, library: Any, run: Any):
        self.library, self.run = library, run
        self.step = -1  # the last step that was logged

    def log(self, row: Row) -> None:
        self.step = row["step"]
        self.run.log({key: v for key, v in row.items() if key != "step"}, step=self.step)

    def finish(self, picture: Path | None = None, failed: bool = False) -> list[str]:
        if picture is not None:
            self.run.log({"curves": self.library.Image(str(picture))}, step=self.step)
        return self.end(failed)

    def end(self, failed: bool) -> list[str]:
        """Returns next steps for the user."""
        sync_dir = Path(self.run.settings.sync_dir)
        self.run.finish(exit_code=int(failed))
        if not self.run.offline:
            return []
        # A resumed run has one offline run for each start.
        return [f"upload    wandb sync {shlex.quote(str(sync_dir.parent))}/offline-run-*"]


class _TrackioRun(_Run):
    """Unlike W&B, trackio stores a step twice if it is logged twice, may lose the last steps of a
    killed process, and reports no error."""

    def __init__(self, library: Any, run: Any, project: str, folder: Path):
        super().__init__(library, run)
        self.project = project
        self.step = self.stored()
        for row in rows_before(math.inf, folder):
            self.log(row)

    def stored(self) -> int:
        """The last step that trackio has stored of the run, or -1."""
        storage = self.library.SQLiteStorage
        last = storage.get_max_step_for_run(self.project, run_id=self.run.id)
        return -1 if last is None else last

    def log(self, row: Row) -> None:
        if row["step"] > self.step:
            super().log(row)

    def finish(self, picture: Path | None = None, failed: bool = False) -> list[str]:
        """Raises UserError if trackio has not stored all steps."""
        if self.run is None:  # it has raised
            return []
        with quiet():
            return super().finish(picture, failed)

    def end(self, failed: bool) -> list[str]:
        self.library.finish()  # run.finish() would print a message at exit
        stored, self.run = self.stored(), None
        if not failed and stored < self.step:
            raise UserError(
                f"tracking.project={self.project}: trackio has not stored all steps in "
                f"{self.library.utils.TRACKIO_DIR}; once it can, the same command sends them"
            )
        return [f"dashboard  trackio show --project {shlex.quote(self.project)}"]


class _TensorBoardRun:
    def __init__(self, folder: Path, group: str):
        self.folder, self.group = folder, group
        self.writer: Any = None

    def log(self, row: Row) -> None:
        rows = [row]
        if self.writer is None:
            from torch.utils.tensorboard import SummaryWriter

            if not self.folder.exists():
                rows = [*rows_before(row["step"], self.folder.parent), row]
            self.writer = SummaryWriter(str(self.folder), purge_step=rows[0]["step"])
            self.writer.add_text("group", self.group)
        for each in rows:
            for key, value in each.items():
                if key != "step":
                    self.writer.add_scalar(key, value, each["step"])

    def finish(self, picture: Path | None = None, failed: bool = False) -> list[str]:
        if self.writer is not None:
            self.writer.close()
        return [f"curves    tensorboard --logdir {self.folder.parent.parent}"]


def rows_before(step: float, folder: Path) -> list[Row]:
    """The rows of a run's metrics.jsonl before a step."""
    return [row for _, row in read_rows(folder / "metrics.jsonl") if row["step"] < step]


@contextlib.contextmanager
def _refusals_in_one_line(choice: str, refusal: type[Exception] = ValueError) -> Iterator[None]:
    try:
        yield
    except (ValueError, refusal) as error:
        raise UserError(
            f"tracking={choice}: refuses the run ({first_line(error)}); see the keys of tracking"
        ) from error


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Hide what trackio prints; the run itself says where the dashboard is."""
    with contextlib.redirect_stdout(io.StringIO()):
        yield


def tags(config: dict[str, Any], more: list[str]) -> list[str]:
    """Tags of a run: method, schedule, dataset, and `more`."""
    own = [config["algo"]["name"], schedule_name(config["sync"]), class_name(config["dataset"])]
    return list(dict.fromkeys([*own, *more]))


def group_name(config: dict[str, Any]) -> str:
    """Dataset and schedule, which runs of different methods and seeds share."""
    return f"{class_name(config['dataset'])}, {schedule_name(config['sync'])}"
