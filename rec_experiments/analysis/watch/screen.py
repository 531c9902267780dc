"""The states of runs as text. Text from run folders cannot control the terminal."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from rec_experiments.analysis.regime.alarms import ActiveAlarm
from rec_experiments.analysis.regime.tables import number, span
from rec_experiments.analysis.watch.views import View
from rec_experiments.config.labels import without_shared
from rec_experiments.errors import printable
from rec_experiments.runs.display import duration, shortened, sparkline

FEW = 3  # at most so many runs are shown with all their curves
WIDTH = 36  # characters of a curve; a third in a table
BOUNDLESS = 10_000  # characters, wider than any table
# Metric, its name, and whether it is between 0 and 1.
CURVES = (
    ("eval/accuracy", "accuracy", True),
    ("train/reward", "reward", True),
    ("train/kl", "KL to the reference", False),
    ("train/entropy", "entropy", False),
    ("train/ess", "effective sample size", True),
    ("train/grad_norm", "gradient norm", False),
    ("train/clip_fraction", "clipped share", False),
)
HEAD = (
    "run",
    "state",
    "step",
    "accuracy",
    "",
    "staleness",
    "clipped",
    "tokens/s",
    "left",
    "alarms",
)
SHORT = {"accuracy": "acc", "staleness": "stale", "clipped": "clip", "tokens/s": "tok/s"}
WORDS = ("run", "state", "accuracy", "")  # left-aligned columns
STATES = ("running", "failed", "interrupted", "stalled", "done")  # in the order of a table
TONES = {"running": "bold", "failed": "red", "stalled": "red", "interrupted": "yellow"}


def screen(
    views: Sequence[View], left_out: Sequence[str], missing: int, waiting: bool = False
) -> RenderableType:
    """missing: number of runs of a sweep that have not begun. waiting: for a first active run."""
    ordered = sorted(views, key=lambda view: (_place(view.state), view.name))
    runs: list[RenderableType] = [block(view) for view in ordered]
    if len(ordered) > FEW:
        names, shared = without_shared([view.name for view in ordered])
        lines = [replace(view, name=name) for view, name in zip(ordered, names, strict=True)]
        runs = [*([Text(f"all: {printable(shared)}")] if shared else []), Runs(lines)]
    return Group(
        Text(count(views, missing)),
        *([Text("no run is active yet; waiting (Ctrl-C ends)", style="dim")] if waiting else []),
        *runs,
        *(Text(warning(view), style="yellow") for view in ordered if view.alarms and view.active),
        *(Text(f"left out: {printable(reason)}", style="dim") for reason in left_out),
    )


def _place(state: str) -> int:
    return STATES.index(state) if state in STATES else len(STATES)


def count(views: Sequence[View], missing: int) -> str:
    """The number of runs in each state."""
    states = Counter(printable(view.state) for view in views)
    if missing:
        states["not begun"] = missing
    if not states:
        return "no run"
    runs = "1 run" if states.total() == 1 else f"{states.total()} runs"
    return f"{runs}: " + ", ".join(f"{n} {state}" for state, n in states.items())


def warning(view: View) -> str:
    """The alarms of an active run."""
    alarms = "; ".join(map(alarm, view.alarms))
    return f"{printable(view.name)}: a collapse may be coming: {alarms}"


def alarm(sounded: ActiveAlarm) -> str:
    """An alarm in words."""
    value, should_be = shown(sounded.value), span(sounded.alarm)
    return f"{sounded.alarm.name} {value} since step {sounded.since}, should be {should_be}"


def block(view: View) -> RenderableType:
    """A run with its curves, which span the range of their values or, for a share, 0 to 1."""
    curves = Table(box=None, pad_edge=False, show_header=False)
    for metric, name, share in CURVES:
        if values := view.curve(metric):
            ends = f"{shown(values[0])} → {shown(values[-1])}"
            curves.add_row(f"  {name}", curve(values, WIDTH, share), ends)
    sounded = [] if view.active else [Text(f"  {alarm(each)}") for each in view.alarms]
    named = zip(HEAD[5:9], _numbers(view), strict=True)
    facts = [f"step {view.step}/{view.steps}", *(f"{name} {text}" for name, text in named if text)]
    title = Text.assemble(
        printable(view.name), "  ", (printable(view.state), TONES.get(view.state, ""))
    )
    reason = [Text(f"  {printable(view.reason)}")] if view.reason else []
    return Group(title, *reason, Text(f"  {', '.join(facts)}"), curves, *sounded)


def _numbers(view: View) -> list[str]:
    """Staleness, clipped share, tokens per second and time left; "" if unknown."""
    stale, clipped = view.recent("train/staleness"), view.recent("train/clip_fraction")
    speed, left = view.tokens_a_second, view.seconds_left
    return [
        "" if stale is None else shown(round(stale, 1)),
        "" if clipped is None else f"{shown(100 * clipped)} %",
        "" if speed is None else f"{speed:,.0f}",
        "" if left is None or not view.active else duration(left),
    ]


@dataclass(frozen=True, slots=True)
class Runs:
    """One line per run, as wide as the terminal. Without room for everything, it drops the curves
    and shortens the heads; without room for the names, it shortens these too."""

    views: Sequence[View]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        def width(made: Table) -> int:
            return Measurement.get(console, options.update(max_width=BOUNDLESS), made).maximum

        others = width(table(self.views, room=1)) - len(HEAD[0])
        short = table(self.views, room=max(options.max_width - others, len(HEAD[0])))
        whole = table(self.views)
        yield whole if width(whole) <= options.max_width else short


def table(views: Sequence[View], room: int | None = None) -> Table:
    """One line per run. room: characters of a name in a narrow table."""
    made = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 1 if room else 2, 0, 0))
    for head in HEAD:
        if head or not room:
            shown_head = SHORT.get(head, head) if room else head
            made.add_column(shown_head, justify="left" if head in WORDS else "right", no_wrap=True)
    for view in views:
        values, name = view.curve("eval/accuracy"), printable(view.name)
        accuracy = shown(values[-1]) if values else ""
        made.add_row(
            Text(shortened(name, room) if room else name),
            Text(printable(view.state), style=TONES.get(view.state, "")),
            f"{view.step}/{view.steps}",
            *([accuracy] if room else [curve(values, WIDTH // 3, True), accuracy]),
            *_numbers(view),
            str(len(view.alarms) or ""),
        )
    return made


def curve(values: Sequence[float], width: int, share: bool) -> str:
    """At most `width` block characters, each the mean of a part of the values. share: the range is
    0 to 1 instead of that of the values."""
    parts = np.array_split(np.array(values), min(width, len(values))) if values else []
    with np.errstate(over="ignore", invalid="ignore"):
        means = np.array([part.mean() for part in parts])
        low, high = (0.0, 1.0) if share or not values else (means.min(), means.max())
        heights = (means - low) / (high - low if high > low else 1.0)
    return sparkline(np.nan_to_num(heights).tolist())


def shown(value: float) -> str:
    """Two or three significant digits; "?" for a value that is not finite."""
    return number(value) if math.isfinite(value) else "?"
