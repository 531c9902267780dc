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
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from rec_experiments.common.errors import printable
from rec_experiments.common.files import write_atomic
from rec_experiments.config.experiment import Experiment, Pieces
from rec_experiments.runs.metrics import label

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Row = dict[str, Any]

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
    responses = experiment.batch_size * experiment.group_size
    pieces = {field.name for field in fields(Pieces)} - {"algo"}
    changed = [word for word in command if re.split(r"[.=]", word.lstrip("+~"))[0] in pieces]
    beside = f"with {', '.join(changed)}" if changed else f"({experiment.algo.source})"
    return [
        f"algorithm   {experiment.algo.name} {beside}",
        *(f"            {line}" for line in experiment.algorithm().describe()),
        f"schedule    {experiment.sync.describe(experiment.updates.per_batch)}",
        f"model       {experiment.model.describe()}",
        f"data        {experiment.dataset.describe()}: {problems[0]} training problems, "
        f"{problems[1]} evaluation problems",
        f"batch       {experiment.batch_size} prompts x {experiment.group_size} = {responses} "
        f"responses, {experiment.steps} gradient steps, seed {experiment.seed}",
        *labelled("updates", experiment.updates.describe()),
        *policies(experiment),
        *labelled("replay", experiment.buffer.describe()),
        *labelled("rewards", experiment.reward.describe()),
        f"rollouts    {experiment.pipeline.describe()}",
        f"optimizer   {experiment.optimizer.describe()}",
        f"run folder  {path}",
    ]


def policies(experiment: Experiment) -> list[str]:
    """The lines about the proximal and the reference policy, if the algorithm needs them."""
    algorithm = experiment.algorithm()
    proximal = experiment.proximal.describe() if "proximal" in algorithm.needs.logps else ""
    reference = experiment.reference.describe() if algorithm.needs_reference else ""
    return [*labelled("proximal", proximal), *labelled("reference", reference)]


def labelled(name: str, text: str) -> list[str]:
    """One labelled line, or none for an empty text."""
    return [f"{name:<12}{text}"] if text else []


def say(console: Console, line: str) -> None:
    """Print a line with control characters made visible. A terminal gets whole words."""
    text = printable(line)
    if console.is_terminal:
        text = textwrap.fill(
            text, console.width, subsequent_indent=" " * 12,
            break_long_words=False, break_on_hyphens=False,
        )  # fmt: skip
    console.print(text, highlight=False, markup=False, soft_wrap=True)


def shortened(name: str, room: int) -> str:
    """The beginning and the end of a name: the method and the seed."""
    if len(name) <= room:
        return name
    end = (room - 1) // 2
    return f"{name[: room - 1 - end]}…{name[len(name) - end :]}"


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


def summarise(
    console: Console, rows: list[Row], folder: Path, on_policy: list[Row] | None = None
) -> None:
    """Print the final table, the accuracy curve, and the files to look at.

    on_policy: rows of the on-policy run of the same arm and seed, if it is finished.
    """
    evaluated = [row for row in rows if "eval/accuracy" in row]
    if not evaluated:
        say(console, f"no evaluation in {folder / 'metrics.jsonl'}")
        return
    table = Table(title="result", title_justify="left")
    columns = {"start": (rows, 0), "end": (rows, -1)}
    if on_policy is not None:
        columns["on-policy"] = (on_policy, -1)
    for column in ("", *columns):
        table.add_column(column, justify="left" if not column else "right")
    for key in SUMMARISED:
        if any(key in row for row in rows):
            table.add_row(label(key), *(_value(source, key, at) for source, at in columns.values()))
    console.print(table)
    curve = sparkline([row["eval/accuracy"] for row in evaluated])
    console.print(f"accuracy  {curve}  0 to 1 over {evaluated[-1]['step']} steps", highlight=False)
    for line in accuracy_changes(rows, on_policy):
        say(console, line)
    for what, name in (
        ("curves", "curves.png"),
        ("numbers", "metrics.jsonl"),
        ("texts", "samples.jsonl"),
    ):
        say(console, f"{what:<8}  {folder / name}")
    command = "python -m rec_experiments"
    say(console, f"next      {command} report makes a page of all runs; {command} --help")


def _value(rows: list[Row], key: str, at: int) -> str:
    """The first (at=0) or last (at=-1) value of a metric."""
    values = [row[key] for row in rows if key in row]
    return f"{values[at]:.3f}" if values else "-"


def accuracy_changes(rows: list[Row], on_policy: list[Row] | None) -> list[str]:
    """The final accuracy compared with the initial one and with the on-policy run."""
    accuracy = [row["eval/accuracy"] for row in rows if "eval/accuracy" in row]
    reference = [row["eval/accuracy"] for row in on_policy or () if "eval/accuracy" in row]
    lines = [f"          {accuracy[-1] - accuracy[0]:+.3f} since the start"]
    if reference:
        lines.append(f"          {accuracy[-1] - reference[-1]:+.3f} against the on-policy run")
    return lines


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
