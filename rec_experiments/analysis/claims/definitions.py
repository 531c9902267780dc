"""What a claim consists of. `claims.yaml` holds the claims of both papers."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from rec_experiments.analysis.claims.decision import Direction
from rec_experiments.analysis.results.statistics import STATISTICS, Statistic

FILE = Path(__file__).with_name("claims.yaml")


@dataclass(frozen=True, kw_only=True, slots=True)
class Endpoint:
    """A statistic of one arm, or the difference between two arms.

    arm, against: legend labels of the figure, with * for any text and | between alternatives, of
    which the first that the figure has counts. against: "" for a single arm. factor: for a metric
    other than accuracy the arms are compared as a ratio, and δ is this factor.
    """

    figure: str
    column: str
    arm: str
    statistic: Statistic
    direction: Direction
    against: str = ""
    metric: str = "eval/accuracy"
    factor: float | None = None

    @property
    def arms(self) -> str:
        sign = " / " if self.factor else " − "
        return self.arm + (sign + self.against if self.against else "")

    @property
    def name(self) -> str:
        return f"{self.statistic.name} of {self.metric}, {self.arms} ({self.figure}, {self.column})"


@dataclass(frozen=True, kw_only=True, slots=True)
class Claim:
    """A claim with one primary endpoint.

    statement: the claim in our words. quote: in the paper's, with the section. yardstick: the
    endpoint whose mean is the on-policy gain. premises: endpoints without which the claim says
    nothing. control: an endpoint that could fail. own_rate_only: its figure sets learning rates
    itself. note: what a reader of the verdict should know.
    """

    id: str
    statement: str
    quote: str
    yardstick: Endpoint
    primary: Endpoint
    premises: tuple[Endpoint, ...] = ()
    control: Endpoint | None = None
    own_rate_only: bool = False
    note: str = ""

    @property
    def endpoints(self) -> list[Endpoint]:
        """All endpoints, the primary one first."""
        return [self.primary, self.yardstick, *self.premises, *filter(None, [self.control])]

    @property
    def figures(self) -> list[str]:
        """The figures whose runs it needs."""
        found = {each.figure for each in self.endpoints}
        return sorted(found, key=lambda name: (len(name), name))


def _endpoint(given: dict[str, Any]) -> Endpoint:
    made = {"statistic": STATISTICS[given["statistic"]], "direction": Direction(given["direction"])}
    return Endpoint(**{**given, **made})


def _claim(entry: dict[str, Any], yardstick: Endpoint) -> Claim:
    """figure and column of an entry hold for those of its endpoints that name no others."""
    place = {key: entry[key] for key in ("figure", "column")}
    control = entry.get("control")
    parts = {
        "primary": _endpoint({**place, **entry["primary"]}),
        "premises": tuple(_endpoint({**place, **each}) for each in entry.get("premises", [])),
        "control": _endpoint({**place, **control}) if control else None,
    }
    words = {key: value for key, value in entry.items() if key not in place}
    return Claim(**{**words, **parts, "yardstick": yardstick})


def _claims() -> tuple[Claim, ...]:
    found = []
    for paper in yaml.load(FILE.read_text(encoding="utf-8"), yaml.CSafeLoader):
        yardstick = _endpoint(paper["yardstick"])
        found += [_claim(entry, yardstick) for entry in paper["claims"]]
    return tuple(found)


CLAIMS = _claims()
