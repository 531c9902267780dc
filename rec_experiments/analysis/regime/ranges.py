"""Ranges of a quantity; `published/regime.yaml` has those of published runs, with sources."""

import functools
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import yaml

from rec_experiments.analysis.regime.arms import Arm, Config
from rec_experiments.analysis.regime.quantities import DERIVED, Lags
from rec_experiments.runs.reading import LOADER

REFERENCE_VALUES = Path(__file__).parents[1] / "published" / "regime.yaml"


@dataclass(frozen=True, kw_only=True, slots=True)
class ExpectedRange:
    """name: in words. quantity: a key of metrics.jsonl without `train/`, or one of DERIVED. low,
    high: ends of the range, null for none. lags: first and last, null for no last; null for all
    lags. part: start, middle or end; null for the whole run. arms: configuration keys and the
    values that an arm must have to be compared.
    """

    name: str
    quantity: str
    low: float | None
    high: float | None
    lags: Lags | None
    part: str | None
    arms: dict[str, Any]

    def is_for(self, config: Config) -> bool:
        """Whether an arm with this configuration can be compared."""
        return all(config.get(key) == value for key, value in self.arms.items())

    def value(self, arm: Arm) -> float | None:
        """Mean over the arm's runs. None unless the last lag occurs more than once in a run: the
        steps at which the lags first build up are not comparable."""
        last = self.lags[1] if self.lags else None
        if last is not None and not any(lags.count(last) > 1 for lags in arm.lags):
            return None
        if self.quantity in DERIVED:
            return arm.mean(DERIVED[self.quantity])
        return arm.mean_of(self.quantity, self.lags, self.part)

    def place(self, value: float) -> str:
        """Whether a value lies below, inside or above the range."""
        if self.low is not None and value < self.low:
            return "below"
        return "above" if self.high is not None and value > self.high else "inside"


@dataclass(frozen=True, kw_only=True, slots=True)
class Published(ExpectedRange):
    """A published value. source, setting: where it was published and for which run. read: from a
    table, text, log file or figure (roughly). checked: when it was last compared with the source,
    null if never. note: how its definition differs from ours."""

    source: str
    setting: str
    read: str
    checked: str | None
    note: str | None


@functools.cache  # a report needs them for each figure
def published_values() -> list[Published]:
    """Those that this package knows of."""
    return load(REFERENCE_VALUES, Published)


Kind = TypeVar("Kind", bound=ExpectedRange)


def load(file: Path, kind: type[Kind]) -> list[Kind]:
    """The entries of a YAML file of this package."""
    entries = yaml.load(file.read_text(encoding="utf-8"), LOADER)
    return [
        kind(
            **{**entry, "lags": entry["lags"] and tuple(entry["lags"]), "arms": entry["arms"] or {}}
        )
        for entry in entries
    ]
