"""Ranges of a quantity; `published/regime.yaml` has those of published runs, with sources."""

import functools
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from rec_experiments.analysis.regime.arms import Arm, Config
from rec_experiments.analysis.regime.quantities import DERIVED, Lags
from rec_experiments.runs.reading import LOADER

REFERENCE_VALUES = Path(__file__).parents[1] / "published" / "regime.yaml"


@dataclass(frozen=True, kw_only=True, slots=True)
class Range:
    """name: in words. quantity: a key of metrics.jsonl without `train/`, or one of DERIVED. low,
    high: ends of the range, null for none."""

    name: str
    quantity: str
    low: float | None
    high: float | None

    def place(self, value: float) -> str:
        """Whether a value lies below, inside or above the range."""
        if self.low is not None and value < self.low:
            return "below"
        return "above" if self.high is not None and value > self.high else "inside"


@dataclass(frozen=True, kw_only=True, slots=True)
class ExpectedRange(Range):
    """The range of some arms and lags. lags: first and last, null for no last; null for all lags.
    part: start, middle or end; null for the whole run. arms: configuration keys and the values that
    an arm must have to be compared.
    """

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
    return [
        Published(**{**entry, "lags": entry["lags"] and tuple(entry["lags"])})
        for entry in entries(REFERENCE_VALUES)
    ]


def entries(file: Path) -> list[dict[str, Any]]:
    """Those of a YAML file of this package."""
    return yaml.load(file.read_text(encoding="utf-8"), LOADER)
