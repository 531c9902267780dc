"""Figure 2: rollout and training under two schedules."""

from typing import Any, NamedTuple

import pandas
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.patches import Patch, Rectangle

from rec_experiments.analysis.figures import style
from rec_experiments.analysis.figures.render import Drawing, page, styled, values
from rec_experiments.rollout.schedule import Schedule

SCHEDULES = (Schedule(interval=4, offset=0, phase="paper"),
             Schedule(interval=1, offset=4, phase="paper"))  # fmt: skip
BATCHES = 8


class Slot(NamedTuple):
    """Start of drawing and of training on a batch; each takes one unit of time."""

    batch: int
    drawn: float
    trained: float


def timeline(schedule: Schedule, batches: int) -> list[Slot]:
    """Earliest times at which batches can be drawn and trained on under a schedule.

    A batch needs its policy version. Training waits until the buffer has `offset` batches, as in
    Appendix B.2, and keeps that lead.
    """
    lead = max(0, schedule.offset - 1)
    drawn: list[float] = []
    trained: list[float] = []
    for batch in range(batches + lead):
        version = schedule.version(batch)
        free = drawn[-1] + 1 if drawn else 0.0
        drawn.append(max(free, trained[version - 1] + 1 if version else 0.0))
        if batch >= lead:
            free = trained[-1] + 1 if trained else 0.0
            trained.append(max(free, drawn[-1] + 1))
    return [Slot(batch, drawn[batch], trained[batch]) for batch in range(batches)]


@styled
def draw() -> Drawing:
    """Rollout, buffer and training of two schedules; versions and staleness from `Schedule`."""
    ages = [schedule.ages(1, BATCHES) for schedule in SCHEDULES]
    worst = max(map(max, ages))
    legend = [
        (Patch(facecolor=_freshness(stale, worst), edgecolor="0.3"), f"staleness {stale}")
        for stale in range(worst + 1)
    ]
    legend.append((Patch(facecolor=style.SKY, alpha=0.6), "weights synchronised"))
    rows: list[dict[str, Any]] = []
    figure = page(9.6, 2.3, "Figure 2: rollout and training under two schedules", legend)
    both = figure.subplots(1, len(SCHEDULES)), SCHEDULES, ages
    for axes, schedule, stale in zip(*both, strict=True):
        slots = timeline(schedule, BATCHES)
        _lanes(axes, schedule, slots, [_freshness(age, worst) for age in stale])
        about = {"interval": schedule.interval, "offset": schedule.offset}
        rows += [about | slot._asdict() | {"staleness": stale[slot.batch]} for slot in slots]
    found = {s.describe(1): stale for s, stale in zip(SCHEDULES, ages, strict=True)}
    caption = (
        "A batch takes one unit of time to draw and one to train on, and starts as early as "
        "possible. The numbers count batches; each batch gives one gradient step. A lighter "
        "training block is staler: more gradient steps lie between drawing and training."
    )
    title = "Figure 2: staleness of each batch"
    return Drawing("fig2", title, figure, pandas.DataFrame(rows), values(found), caption)


def _lanes(
    axes: Axes, schedule: Schedule, slots: list[Slot], shades: list[tuple[float, ...]]
) -> None:
    for slot in slots:
        for x, y, color in ((slot.drawn, 2, "0.88"), (slot.trained, 0, shades[slot.batch])):
            axes.add_patch(Rectangle((x + 0.04, y), 0.92, 0.6, facecolor=color, edgecolor="0.3"))
            dark = sum(to_rgb(color)) < 1.7
            axes.text(
                x + 0.5, y + 0.28, str(slot.batch), ha="center", va="center",
                color="white" if dark else "black",
            )  # fmt: skip
        axes.annotate(
            "", (slot.trained + 0.06, 0.62), (slot.drawn + 0.94, 1.98),
            arrowprops={"arrowstyle": "->", "color": style.DARK_ORANGE, "lw": 0.9},
        )  # fmt: skip
        if any(schedule.version(other.batch) == slot.batch + 1 for other in slots):
            axes.bar(slot.trained + 1, 2.9, 0.13, -0.15, color=style.SKY, alpha=0.6, zorder=0)
    end = max(slot.trained for slot in slots) + 1
    axes.add_patch(Rectangle((0, 1.1), end, 0.4, color=style.YELLOW, alpha=0.35, lw=0))
    axes.set(xlim=(-0.1, end + 0.1), ylim=(-0.2, 2.85), xlabel="time (batches)")
    axes.set_yticks([0.3, 1.3, 2.3], ["training", "buffer", "rollout"])
    axes.set_title(f"interval {schedule.interval}, offset {schedule.offset}")
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
    axes.grid(False)


def _freshness(staleness: int, worst: int) -> tuple[float, float, float]:
    """Blue for fresh data, paler with staleness."""
    share = 0.85 * staleness / worst
    red, green, blue = (channel + (1 - channel) * share for channel in to_rgb(style.BLUE))
    return red, green, blue
