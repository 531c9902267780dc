"""Trackers that need no account: trackio and TensorBoard. Each is an optional package."""

from __future__ import annotations

import contextlib
import io
import math
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rec_experiments.errors import UserError, check_installed, first_line
from rec_experiments.files import Row, read_rows
from rec_experiments.tracking.protocol import Tracker
from rec_experiments.tracking.trackers import labels, lasting_id
from rec_experiments.types import Piece

LONGEST_NAME = 200  # bytes of a project's name; file systems allow 255, with a suffix
FOLDER_ID = "folder_id"  # key of trackio's configuration of a run


class Trackio(Piece):
    """trackio: a local SQLite file for all runs of a project, and a dashboard in the browser.

    A resumed run continues its trackio run: steps that are already logged are skipped, steps that a
    killed process did not send are sent. Another folder of the same name, or a repeated run, gets
    a new trackio run of that name. Raises UserError if the package is missing.
    """

    project: str
    tags: list[str]

    def __post_init__(self) -> None:
        if not 0 < len(self.project.encode(errors="replace")) <= LONGEST_NAME:
            raise ValueError(
                f"project={self.project}: must be a name of 1 to {LONGEST_NAME} bytes, as it names "
                "a file"
            )

    def start(self, name: str, group: str, folder: str, config: dict[str, Any]) -> Tracker:
        check_installed("tracking=trackio", "trackio")
        import trackio

        labelled = [*labels(config), *self.tags]
        about = {**config, "tags": labelled, FOLDER_ID: lasting_id(Path(folder))}
        known = self._known(trackio, name, folder)
        try:
            with quiet():
                run = trackio.init(
                    project=self.project, name=name, group=group, config=about,
                    resume="must" if known else "never",
                    embed=False, auto_log_gpu=False, auto_log_cpu=False,
                )  # fmt: skip
        except ValueError as error:
            raise UserError(
                f"tracking.project={self.project}: trackio refuses it ({first_line(error)})"
            ) from error
        return _TrackioRun(trackio, run, self, Path(folder), self.stored(trackio, run.id))

    def has(self, name: str, folder: str, step: int) -> bool:
        """Whether trackio has the run's rows up to `step`."""
        check_installed("tracking=trackio", "trackio")
        import trackio

        known = self._known(trackio, name, folder)
        return known is not None and self.stored(trackio, known) >= step

    def _known(self, trackio: Any, name: str, folder: str) -> str | None:
        """trackio's id of its newest run of that name, if that belongs to the folder."""
        newest = trackio.SQLiteStorage.get_latest_run_record_by_name(self.project, name)
        if newest is None:
            return None
        about = trackio.SQLiteStorage.get_run_config(self.project, name, run_id=newest["id"]) or {}
        return newest["id"] if about.get(FOLDER_ID) == lasting_id(Path(folder)) else None

    def stored(self, trackio: Any, run_id: str) -> int:
        """The last step of a run in the file, or -1."""
        last = trackio.SQLiteStorage.get_max_step_for_run(self.project, run_id=run_id)
        return -1 if last is None else last


class TensorBoard(Piece):
    """Event files in the run folder.

    A resumed run appends and hides the steps that it repeats. A run that was not tracked before
    also gets its earlier steps. Raises UserError if the package is missing.
    """

    def start(self, name: str, group: str, folder: str, config: dict[str, Any]) -> Tracker:
        check_installed("tracking=tensorboard", "tensorboard")
        return _TensorBoardRun(Path(folder, "tensorboard"), group)

    def has(self, name: str, folder: str, step: int) -> bool:
        """Whether the event files have the run's rows up to `step`."""
        check_installed("tracking=tensorboard", "tensorboard")
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

        if not Path(folder, "tensorboard").is_dir():
            return False
        events = EventAccumulator(str(Path(folder, "tensorboard")), {"scalars": 1}).Reload()
        tags = events.Tags()["scalars"]
        return any(event.step >= step for tag in tags for event in events.Scalars(tag))


class _TrackioRun:
    def __init__(self, trackio: Any, run: Any, tracking: Trackio, folder: Path, logged: int):
        self.trackio, self.run, self.tracking = trackio, run, tracking
        self.folder, self.logged = folder, logged  # the last logged step

    def log(self, row: Row) -> None:
        lost = rows_before(row["step"], self.folder) if self.logged < row["step"] - 1 else []
        self._send([*lost, row])

    def _send(self, rows: list[Row]) -> None:
        for each in rows:
            if each["step"] > self.logged:
                self.run.log({k: v for k, v in each.items() if k != "step"}, step=each["step"])
                self.logged = each["step"]

    def finish(self, picture: Path | None = None, failed: bool = False) -> list[str]:
        """Raises UserError if trackio, which reports no error, has not stored all steps."""
        if self.run is None:  # it has raised
            return []
        if not failed:  # a run may have ended before the rows of its last steps were stored
            self._send(rows_before(math.inf, self.folder))
        run, self.run = self.run, None
        with quiet():
            if picture is not None:
                run.log({"curves": self.trackio.Image(str(picture))}, step=self.logged)
            self.trackio.finish()  # run.finish() would print a message at exit
        if not failed and self.tracking.stored(self.trackio, run.id) < self.logged:
            raise UserError(
                f"tracking.project={self.tracking.project}: trackio has not stored all steps in "
                f"{self.trackio.utils.TRACKIO_DIR}; once it can, the same command sends them"
            )
        return [f"dashboard  trackio show --project {shlex.quote(self.tracking.project)}"]


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
    """The rows of a run's metrics.jsonl before a step, if the file exists."""
    file = folder / "metrics.jsonl"
    rows = read_rows(file) if file.exists() else []
    return [each for _, each in rows if each["step"] < step]


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Hide what trackio prints; the run itself says where the dashboard is."""
    with contextlib.redirect_stdout(io.StringIO()):
        yield
