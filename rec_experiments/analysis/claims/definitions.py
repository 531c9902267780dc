"""What a claim consists of. `claims.yaml` holds the claims of both papers."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from rec_experiments.analysis.claims.decision import Direction
from rec_experiments.analysis.results.statistics import ACCURACY, STATISTICS, Statistic

FILE = Path(__file__).with_name("claims.yaml")
GAIN, PREMISE, PRIMARY, CONTROL = "on-policy gain", "premise", "primary endpoint", "control"


@dataclass(frozen=True, kw_only=True, slots=True)
class Endpoint:
    """A statistic of one arm, or the difference between two arms.

    part: PRIMARY; GAIN, whose mean is the on-policy gain; PREMISE, without which a claim says
    nothing; or CONTROL, which could fail. arm, against: legend labels of the figure, with * for any
    text and | between alternatives, of which the first that the figure has counts. against: "" for
    a single arm. factor: for a metric other than accuracy the arms are compared as a ratio, and δ
    is this factor.
    """

    part: str
    figure: str
    column: str
    arm: str
    statistic: Statistic
    direction: Direction
    against: str = ""
    metric: str = ACCURACY
    factor: float | None = None

    @property
    def arms(self) -> str:
        sign = " / " if self.factor else " − "
        return self.arm + (sign + self.against if self.against else "")

    @property
    def name(self) -> str:
        metric = "" if self.metric == ACCURACY else f" of {self.metric}"
        return f"{self.statistic.name}{metric}, {self.arms} ({self.figure}, {self.column})"


@dataclass(frozen=True, kw_only=True, slots=True)
class Claim:
    """A claim with one primary endpoint, the first of its endpoints.

    statement: the claim in our words. quote: in the paper's, with the section. own_rate_only: its
    figure sets learning rates itself. note: what a reader of the verdict should know.
    """

    id: str
    statement: str
    quote: str
    endpoints: tuple[Endpoint, ...]
    own_rate_only: bool = False
    note: str = ""

    @property
    def primary(self) -> Endpoint:
        return self.endpoints[0]

    @property
    def figures(self) -> list[str]:
        """The figures whose runs it needs."""
        found = {each.figure for each in self.endpoints}
        return sorted(found, key=lambda name: (len(name), name))


def _endpoint(part: str, given: dict[str, Any], **place: str) -> Endpoint:
    """place: figure and column, unless the endpoint names others."""
    statistic, direction = STATISTICS[given["statistic"]], Direction(given["direction"])
    return Endpoint(**{**place, **given, "statistic": statistic, "direction": direction}, part=part)


def _claim(
    yardstick: dict[str, Any],
    figure: str,
    column: str,
    primary: dict[str, Any],
    premises: tuple[dict[str, Any], ...] = (),
    control: dict[str, Any] | None = None,
    **words: Any,
) -> Claim:
    parts = [(PRIMARY, primary), (GAIN, yardstick), *((PREMISE, each) for each in premises)]
    parts += [(CONTROL, control)] if control else []
    return Claim(
        endpoints=tuple(_endpoint(*each, figure=figure, column=column) for each in parts), **words
    )


CLAIMS = tuple(
    _claim(paper["yardstick"], **entry)
    for paper in yaml.load(FILE.read_text(encoding="utf-8"), yaml.CSafeLoader)
    for entry in paper["claims"]
)
