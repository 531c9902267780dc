"""How a method looks: the same colour, dash and marker in every figure."""

import itertools
import re
from dataclasses import dataclass, replace
from typing import Any

# Legible at the size at which a figure is saved.
RC: dict[str, Any] = {
    "font.size": 8.5,
    "axes.titlesize": 9,
    "axes.labelsize": 8.5,
    "xtick.labelsize": 8,
    "ytick.labelsize": 8,
    "legend.fontsize": 8.5,
    "axes.grid": True,
    "grid.alpha": 0.25,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "lines.linewidth": 1.6,
    "lines.markersize": 4.5,
    "pdf.fonttype": 42,  # text stays text in the PDF
}

# The palette of Okabe and Ito, and darker shades of it.
BLACK, ORANGE, SKY, GREEN = "#000000", "#E69F00", "#56B4E9", "#009E73"
BLUE, VERMILION, PURPLE, YELLOW = "#0072B2", "#D55E00", "#CC79A7", "#F0E442"
GREY, DARK_PURPLE, DARK_ORANGE, DARK_BLUE = "#777777", "#7A2E5D", "#8F5A00", "#00375C"
PALETTE = (
    BLUE, VERMILION, GREEN, BLACK, ORANGE, PURPLE, SKY, DARK_PURPLE, DARK_ORANGE, DARK_BLUE,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Look:
    """A line: colour, matplotlib's dash, marker of the mean curve."""

    color: str
    dash: Any
    marker: str


# Method: colour, colour where its clip is wide, marker. The longest name that fits counts.
FAMILIES = {
    "REINFORCE": (SKY, SKY, "o"),
    "GRPO": (GREEN, GREEN, "s"),
    "REC-OneSide": (PURPLE, DARK_PURPLE, "P"),
    "REC-TwoSide": (ORANGE, DARK_ORANGE, "^"),
    "REC-Ring": (BLUE, DARK_BLUE, "X"),
    "RED-Weight": (VERMILION, VERMILION, "D"),
    "RED-Drop": (BLACK, BLACK, "v"),
    "OPMD": (ORANGE, ORANGE, "<"),
    "AsymRE": (BLUE, BLUE, ">"),
}
OTHER = (GREY, GREY, "*")
SOLID, DOTTED = "-", (0, (1, 1.2))
# For methods that look alike otherwise, in the order of the legend. Dots are for IS alone.
DASHES = (SOLID, (0, (5, 1.5)), (0, (5, 1.5, 1, 1.5)), (0, (8, 1.5, 2, 1.5, 2, 1.5)))
WIDE = 0.5  # a clip whose ε_low is at least this is a wide one


def looks(labels: list[str]) -> dict[str, Look]:
    """A distinct look for each label of one legend, such as `REC-OneSide-NoIS (0.6, 2.0)`.

    Labels of the same method and clip, as when only the learning rate differs, get dashes; colours
    where all labels are of one.
    """
    found = _of_methods(labels)
    return distinct(labels) if len({look.color for look in found.values()}) == 1 else found


def _of_methods(labels: list[str]) -> dict[str, Look]:
    result: dict[str, Look] = {}
    seen: dict[tuple[str, Any, str], int] = {}
    for label in labels:
        fits = [name for name in FAMILIES if label.startswith(name)]
        usual, wide, marker = FAMILIES[max(fits, key=len)] if fits else OTHER
        first_bound = re.search(r"\((\d+(?:\.\d+)?)", label)
        color = wide if first_bound and float(first_bound[1]) >= WIDE else usual
        dash = DOTTED if re.search(r"-IS\b", label) else SOLID
        alike = seen.setdefault((color, dash, marker), 0)
        seen[color, dash, marker] += 1
        result[label] = Look(color, DASHES[alike % len(DASHES)] if alike else dash, marker)
    return result


def distinct(labels: list[str]) -> dict[str, Look]:
    """No two share a colour, as far as the palette goes, and no line is dashed.

    For a panel of few methods: the first of each colour keeps it, the others get one that is left.
    """
    found = _of_methods(labels)
    taken = {look.color for look in found.values()}
    free = itertools.cycle([color for color in PALETTE if color not in taken])
    result: dict[str, Look] = {}
    for label, look in found.items():
        used = {each.color for each in result.values()} | {OTHER[0]}
        color = next(free) if look.color in used else look.color
        result[label] = replace(look, color=color, dash=SOLID)
    return result
