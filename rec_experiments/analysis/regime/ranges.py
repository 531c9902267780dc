"""Ranges of a quantity: published values, and targets.

`published/regime.yaml` holds values of published runs with their sources, `targets.yaml` what a
setting of this package should meet before methods are compared on it.
"""

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, TypeVar

import yaml

from rec_experiments.analysis.regime.arms import Arm, Config
from rec_experiments.analysis.regime.quantities import DERIVED, PARTS, Lags
from rec_experiments.analysis.results.runs import is_finite
from rec_experiments.errors import UserError
from rec_experiments.runs.reading import LOADER

FOLDER = Path(__file__).parent
REFERENCE_VALUES = FOLDER.parent / "published" / "regime.yaml"
TARGETS = FOLDER / "targets.yaml"


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


@dataclass(frozen=True, kw_only=True, slots=True)
class Target(ExpectedRange):
    """optional: whether missing it is no failure. why: the reason for the range."""

    optional: bool
    why: str


@dataclass(frozen=True, kw_only=True, slots=True)
class TargetResult:
    """A target applied to an arm. value: of the arm, None if it was not measured."""

    target: Target
    arm: Arm
    value: float | None

    @property
    def met(self) -> bool:
        return self.value is not None and self.target.place(self.value) == "inside"


def check_targets(arms: list[Arm], targets: list[Target]) -> list[TargetResult]:
    """Every target that applies to an arm, arm by arm."""
    return [
        TargetResult(target=target, arm=arm, value=target.value(arm))
        for arm in arms
        for target in targets
        if target.is_for(arm.config)
    ]


Kind = TypeVar("Kind", bound=ExpectedRange)


def load(file: Path, kind: type[Kind]) -> list[Kind]:
    """Read the entries of a YAML file. Raises UserError for a wrong one."""
    try:
        entries = yaml.load(file.read_text(encoding="utf-8"), LOADER)
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise UserError(f"{file}: cannot be read ({error})") from error
    if not isinstance(entries, list):
        raise UserError(f"{file}: must be a list of entries")
    return [_entry(entry, kind, f"{file}, entry {n}") for n, entry in enumerate(entries, 1)]


def _entry(entry: Any, kind: type[Kind], where: str) -> Kind:
    names = [field.name for field in fields(kind)]
    if not isinstance(entry, dict):
        raise UserError(f"{where}: must have the keys {', '.join(names)}")
    for key in sorted(map(str, set(names) ^ entry.keys())):
        raise UserError(f"{where}: {key} is {'missing' if key in names else 'not a key'}")
    for key in ("name", "quantity"):
        if not isinstance(entry[key], str):
            raise UserError(f"{where}: {key}={entry[key]}: must be text")
    if not isinstance(entry["arms"], dict | None):
        raise UserError(f"{where}: arms={entry['arms']}: must be keys and values, or null for all")
    if not isinstance(entry.get("optional", False), bool):
        raise UserError(f"{where}: optional={entry['optional']}: must be true or false")
    if entry["part"] not in (None, *PARTS):
        raise UserError(f"{where}: part={entry['part']}: must be {', '.join(PARTS)}, or null")
    for key in ("low", "high"):
        if entry[key] is not None and (isinstance(entry[key], bool) or not is_finite(entry[key])):
            raise UserError(f"{where}: {key}={entry[key]}: must be a number, or null for no end")
    ends = [entry[key] for key in ("low", "high") if entry[key] is not None]
    if not ends or ends != sorted(ends):
        raise UserError(f"{where}: low={entry['low']}, high={entry['high']}: must be a range")
    lags = entry["lags"]
    if lags is not None:
        kinds = [type(each) for each in lags] if isinstance(lags, list) else []
        if kinds not in ([int, int], [int, type(None)]):
            raise UserError(f"{where}: lags={lags}: must be two whole numbers, or null for all")
        lags = (lags[0], lags[1])
    return kind(**{**entry, "lags": lags, "arms": entry["arms"] or {}})
