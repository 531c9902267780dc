"""The look of each method: the same colour and marker in every figure."""

import itertools
import re
from collections import Counter
from dataclasses import dataclass
from typing import Any

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
    "savefig.bbox": "standard",  # a user's settings may cut the margins
}

# The palette of Okabe and Ito, and darker shades of it.
BLACK, ORANGE, SKY, GREEN = "#000000", "#E69F00", "#56B4E9", "#009E73"
BLUE, VERMILION, PURPLE, YELLOW = "#0072B2", "#D55E00", "#CC79A7", "#F0E442"
DARK_PURPLE, DARK_ORANGE, DARK_BLUE = "#7A2E5D", "#8F5A00", "#00375C"
PALETTE = (
    BLUE, VERMILION, GREEN, BLACK, ORANGE, PURPLE, SKY, DARK_PURPLE, DARK_ORANGE, DARK_BLUE,
)  # fmt: skip

# Colour and marker of each method. A label has the look of the longest name that it starts with.
METHODS = {
    "REINFORCE": (SKY, "o"), "GRPO": (GREEN, "s"), "REC-OneSide": (PURPLE, "P"),
    "REC-OneSide-NoIS, lower bound": (DARK_BLUE, "v"),
    "REC-OneSide-NoIS, upper bound": (VERMILION, "^"),
    "REC-TwoSide": (ORANGE, "^"), "REC-Ring": (BLUE, "X"), "RED-Weight": (VERMILION, "D"),
    "RED-Drop": (BLACK, "v"), "OPMD": (ORANGE, "<"), "AsymRE": (BLUE, ">"),
    "Pairwise REINFORCE": (GREEN, "o"), "RLOO": (BLUE, "v"), "Dr. GRPO": (VERMILION, "s"),
    "DAPO": (BLACK, "^"), "GSPO": (ORANGE, "D"), "GMPO": (PURPLE, "v"), "CISPO": (DARK_BLUE, "P"),
    "SAPO": (BLUE, "^"), "BAPO": (VERMILION, "<"), "M2PO": (GREEN, ">"), "DPPO-TV": (BLACK, "D"),
    "DPPO-KL": (ORANGE, "X"), "VESPO": (PURPLE, "o"), "sPPO": (SKY, "v"),
    "TOPR": (DARK_PURPLE, "s"), "TIS": (BLUE, "P"), "MIS": (VERMILION, "X"), "IcePop": (GREEN, "^"),
    "Decoupled PPO": (BLACK, "o"), "A-3PO": (ORANGE, "s"), "PPO-EWMA": (PURPLE, "D"),
    "Mix-PPG": (SKY, "P"), "GRPO + KL": (DARK_ORANGE, "s"),
    "GRPO + KL, zero": (DARK_BLUE, "s"), "CoPG": (BLUE, "D"), "OAPL": (VERMILION, "o"),
    "MaxRL": (GREEN, "v"), "max@k": (BLACK, "<"), "max@k off-policy": (DARK_PURPLE, "<"),
    "OPSM": (BLUE, "s"), "IPO": (PURPLE, "s"), "Geometric TIS": (BLACK, "s"), "DIS": (SKY, "s"),
    "MiniRL": (DARK_ORANGE, "D"), "KPop": (DARK_BLUE, "D"), "DRPO": (GREEN, "D"),
    "CPPO": (SKY, "D"), "VACO": (DARK_PURPLE, "D"), "ASPO": (BLUE, "o"), "UP": (DARK_ORANGE, "o"),
    "RIPO": (DARK_BLUE, "o"), "μ-GRPO": (ORANGE, "o"), "Clip-Cov": (DARK_PURPLE, "o"),
    "KL-Cov": (DARK_ORANGE, "v"), "OPO": (VERMILION, "v"), "ScaleRL": (DARK_BLUE, "v"),
}  # fmt: skip
OWN = ("*", "h", "d", "p", "8", "H")  # markers of methods that are not in METHODS
DARKER = {PURPLE: DARK_PURPLE, ORANGE: DARK_ORANGE, BLUE: DARK_BLUE}  # of REC with a wide clip
WIDE = 0.5  # lowest ε_low of a wide clip
SOLID, DOTTED = "-", (0, (1, 1.2))
# For variants of a method, in the order of the legend. Dotted lines have importance weights.
DASHES = (SOLID, (0, (5, 1.5)), (0, (5, 1.5, 1, 1.5)), (0, (8, 1.5, 2, 1.5, 2, 1.5)))


@dataclass(frozen=True, slots=True)
class Look:
    """Colour, matplotlib's dash, marker and zorder of a mean curve."""

    color: str
    dash: Any
    marker: str
    zorder: float


def looks(labels: list[str]) -> dict[str, Look]:
    """A distinct look for each label of a legend, such as `REC-OneSide-NoIS (0.6, 2.0)`.

    Variants of a method, such as other learning rates, differ in their dashes. If all labels would
    have one colour, they have the colours of the palette instead. A method that is not in METHODS
    has a colour that no other has, as long as there is one, and is drawn above the others.
    """
    known = [_color_and_marker(label) for label in labels]
    taken = {each[0] for each in known if each}
    free = itertools.cycle([color for color in PALETTE if color not in taken] or PALETTE)
    own = itertools.cycle(OWN)
    styles = [each or (next(free), next(own)) for each in known]
    one_color = len(labels) > 1 and len({color for color, _ in styles}) == 1
    seen: Counter[tuple[str, Any, str]] = Counter()
    found = {}
    for place, (label, (usual, marker)) in enumerate(zip(labels, styles, strict=True)):
        color = PALETTE[place % len(PALETTE)] if one_color else usual
        dash = DOTTED if re.search(r"-IS\b", label) else SOLID
        alike = seen[color, dash, marker]
        seen[color, dash, marker] += 1
        variant = DASHES[alike % len(DASHES)] if alike else dash
        found[label] = Look(color, variant, marker, 2.5 if marker in OWN else 2)
    return found


def _color_and_marker(label: str) -> tuple[str, str] | None:
    """None for a method that is not in METHODS."""
    name = max((name for name in METHODS if label.startswith(name)), key=len, default="")
    if not name:
        return None
    color, marker = METHODS[name]
    low = re.search(r"\((\d+(?:\.\d+)?)", label)
    wide = name.startswith("REC-") and low is not None and float(low[1]) >= WIDE
    return DARKER[color] if wide else color, marker
