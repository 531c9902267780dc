"""Output for the user: a description of the run, its progress, a final table, a plot."""

import contextlib
import io
import math
import re
import textwrap
import time
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from rec_experiments.common.distributed import ALONE, World
from rec_experiments.common.errors import printable
from rec_experiments.common.files import write_atomic
from rec_experiments.config.experiment import Experiment, Pieces
from rec_experiments.config.identity import run_path
from rec_experiments.config.labels import tracked_name
from rec_experiments.runs.metrics import label
from rec_experiments.runs.reading import Row
from rec_experiments.runs.run_folder import RunFolder
from rec_experiments.runs.trackers import track_finished

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PANELS = (  # of the plot
    "eval/accuracy", "train/reward", "train/kl",
    "train/clip_fraction", "train/staleness", "train/entropy",
)  # fmt: skip
LOGARITHMIC = ("train/kl",)
BARS = "▁▂▃▄▅▆▇█"
TITLE_WIDTH = 110  # characters per line


def introduce(
    experiment: Experiment, command: Sequence[str], path: Path, problems: tuple[int, int]
) -> list[str]:
    """Describe the run. command: its overrides. problems: numbers of training and evaluation
    problems."""
    training, held_out = problems
    data = f"{training} training problems, {held_out} evaluation problems"
    prompts, samples = experiment.batch_size, experiment.group_size
    responses = f"{prompts} prompts x {samples} = {prompts * samples} responses"
    algorithm = experiment.algorithm()
    pieces = {field.name for field in fields(Pieces)} - {"algo"}
    changed = [word for word in command if re.split(r"[.=]", word.lstrip("+~"))[0] in pieces]
    beside = f"with {', '.join(changed)}" if changed else f"({experiment.algo.source})"
    described = [
        ("algorithm", f"{experiment.algo.name} {beside}"),
        *(("", line) for line in algorithm.describe()),
        ("schedule", experiment.sync.describe(experiment.updates.per_batch)),
        ("model", experiment.model.describe()),
        ("data", f"{experiment.dataset.describe()}: {data}"),
        ("batch", f"{responses}, {experiment.steps} gradient steps, seed {experiment.seed}"),
        ("updates", experiment.updates.describe()),
        ("proximal", experiment.proximal.describe() if "proximal" in algorithm.needs.logps else ""),
        ("reference", experiment.reference.describe() if algorithm.needs_reference else ""),
        ("replay", experiment.buffer.describe()),
        ("rewards", experiment.reward.describe()),
        ("rollouts", experiment.pipeline.describe()),
        ("optimizer", experiment.optimizer.describe()),
        ("run folder", str(path)),
    ]
    return [f"{name:<12}{text}" for name, text in described if text]


def say(console: Console, line: str) -> None:
    """Print a line with control characters made visible. A terminal gets whole words."""
    text = printable(line)
    if console.is_terminal:
        text = textwrap.fill(
            text, console.width, subsequent_indent=" " * 12,
            break_long_words=False, break_on_hyphens=False,
        )  # fmt: skip
    console.print(text, highlight=False, markup=False, soft_wrap=True)


def duration(seconds: float) -> str:
    """A duration in seconds, minutes or hours."""
    if not math.isfinite(seconds):
        return "?"
    minutes = math.ceil(seconds / 60)
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{minutes} min" if minutes < 120 else f"{minutes / 60:.1f} h"


class Screen(Console):
    """A console whose reader may go away (`| head`): the run continues in silence."""

    def on_broken_pipe(self) -> None:
        with contextlib.suppress(SystemExit):
            super().on_broken_pipe()


class Reporter:
    """Progress of a run: a line for each evaluation, in a terminal above a progress bar."""

    def __init__(self, console: Console, steps: int):
        self.console, self.steps = console, steps
        self.started = time.monotonic()
        self.first_step: int | None = None
        self.accuracy = float("nan")
        self.bar = Progress(
            TextColumn("step"),
            MofNCompleteColumn(),
            BarColumn(),
            TextColumn("{task.description}"),
            TimeRemainingColumn(),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self.task = self.bar.add_task("", total=steps)

    def __enter__(self) -> "Reporter":
        self.bar.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.bar.stop()

    def note(self, line: str) -> None:
        say(self.console, line)

    def warm_step(self, step: int, total: int) -> None:
        """Show the progress of the warm start, in supervised steps."""
        self.bar.update(self.task, completed=step, total=total, description="warm start")
        if not self.console.is_terminal and step % max(1, total // 5) == 0:
            self.note(f"warm start {step}/{total}")

    def row(self, row: Row) -> None:
        self.accuracy = row.get("eval/accuracy", self.accuracy)
        reward = f"reward {row['train/reward']:.3f}  " if "train/reward" in row else ""
        stale = f"staleness {row['train/staleness']:g}" if "train/staleness" in row else ""
        text = f"{reward}accuracy {self.accuracy:.3f}  {stale}"
        self.bar.update(self.task, completed=row["step"], total=self.steps, description=text)
        if self.first_step is None:
            self.first_step, self.started = row["step"], time.monotonic()
        if "eval/accuracy" in row:
            left = "" if self.console.is_terminal else self._left(row["step"])  # the bar shows it
            self.note(f"step {row['step']:>4}/{self.steps}  {text}  {left}".rstrip())

    def _left(self, step: int) -> str:
        done = step - (self.first_step or 0)
        if not done:
            return ""
        seconds = (time.monotonic() - self.started) / done * (self.steps - step)
        return f"{duration(seconds)} left"


SUMMARISED = (  # rows of the final table
    "eval/accuracy", "train/reward", "train/entropy", "train/response_length",
    "train/clip_fraction", "train/kl",
)  # fmt: skip


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
    summarise(console, rows, path)
    if world.leads:
        name = tracked_name(config, folder.command(), path)
        for line in track_finished(experiment.tracking, name, path, rows, config):
            say(console, line)
    return True


def summarise(console: Console, rows: list[Row], folder: Path) -> None:
    """Print the final table, the accuracy curve, and the files to look at."""
    evaluated = [row for row in rows if "eval/accuracy" in row]
    if not evaluated:
        say(console, f"no evaluation in {folder / 'metrics.jsonl'}")
        return
    table = Table(title="result", title_justify="left")
    table.add_column()
    for column in ("start", "end"):
        table.add_column(column, justify="right")
    for key in SUMMARISED:
        if values := [row[key] for row in rows if key in row]:
            table.add_row(label(key), f"{values[0]:.3f}", f"{values[-1]:.3f}")
    console.print(table)
    accuracy = [row["eval/accuracy"] for row in evaluated]
    steps = f"0 to 1 over {evaluated[-1]['step']} steps"
    console.print(f"accuracy  {sparkline(accuracy)}  {steps}", highlight=False)
    say(console, f"          {accuracy[-1] - accuracy[0]:+.3f} since the start")
    for what, name in (
        ("curves", "curves.png"),
        ("numbers", "metrics.jsonl"),
        ("texts", "samples.jsonl"),
    ):
        say(console, f"{what:<8}  {folder / name}")
    command = "python -m rec_experiments"
    say(console, f"next      {command} report makes a page of all runs; {command} --help")


def sparkline(values: list[float]) -> str:
    """One block character per value in [0, 1]."""
    top = len(BARS) - 1
    return "".join(BARS[round(min(1.0, max(0.0, value)) * top)] for value in values)


def draw_curves(rows: list[Row], title: str, path: Path) -> None:
    """Write the plot of one run as a PNG file."""
    png = io.BytesIO()
    curves(rows, title).savefig(png, format="png", dpi=120)
    write_atomic(path, png.getvalue())


def curves(rows: list[Row], title: str) -> "Figure":
    """The plot of one run: over gradient steps, one panel per metric that was measured."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 6))
    FigureCanvasAgg(figure)
    # Fixed margins with room for the widest tick labels: measuring them is as slow as drawing.
    figure.subplots_adjust(0.06, 0.08, 0.99, 0.88, wspace=0.27, hspace=0.4)
    figure.suptitle(textwrap.fill(title, TITLE_WIDTH), parse_math=False, fontsize="large")
    grid = figure.subplots(2, 3).flat
    measured = [key for key in PANELS if any(key in row for row in rows)]
    for axes, key in zip(grid, measured, strict=False):
        points = [(row["step"], row[key]) for row in rows if key in row]
        axes.plot(*zip(*points, strict=True), color="#0072B2", linewidth=1.5)
        axes.set_xlabel("gradient steps")
        axes.set_title(label(key), y=1, fontsize="medium")  # a given y avoids a slow search
        axes.grid(alpha=0.3)
        if key in ("eval/accuracy", "train/reward"):
            axes.set_ylim(-0.02, 1.02)
        if key in LOGARITHMIC and any(value > 0 for _, value in points):
            axes.set_yscale("log")
    for axes in figure.axes[len(measured) :]:
        axes.set_axis_off()
    return figure
