"""Where a quantity was seen elsewhere, or where it should be, and whether an arm lies there.

`reference_values.yaml` holds values of published runs with their provenance, `targets.yaml` what a
setting of this package should meet before two methods are compared on it.
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
REFERENCE_VALUES, TARGETS = FOLDER / "reference_values.yaml", FOLDER / "targets.yaml"


@dataclass(frozen=True, kw_only=True, slots=True)
class Expected:
    """name: in words. quantity: a key of metrics.jsonl without its `train/`, or a derived one. low,
    high: its range, null for no end. lags: from, to, null for no end; null for all. part: start,
    middle or end; null for the whole run. arms: keys of the configuration and the values that an
    arm must have to be compared.
    """

    name: str
    quantity: str
    low: float | None
    high: float | None
    lags: Lags | None
    part: str | None
    arms: dict[str, Any]

    def fits(self, arm: Arm) -> bool:
        """Whether the arm can be compared."""
        return self.is_for(arm.config)

    def is_for(self, config: Config) -> bool:
        """As `fits`, by the keys of a configuration."""
        return all(config.get(key) == value for key, value in self.arms.items())

    def value(self, arm: Arm) -> float | None:
        """Of the arm, mean over its runs. None unless the last of the lags occurs more than once in
        a run: those that only its first steps have are like no others."""
        last = self.lags[1] if self.lags else None
        if last is not None and not any(lags.count(last) > 1 for lags in arm.lags):
            return None
        if self.quantity in DERIVED:
            return arm.mean(DERIVED[self.quantity])
        return arm.mean_of(self.quantity, self.lags, self.part)

    def place(self, value: float) -> str:
        """Where a value lies."""
        if self.low is not None and value < self.low:
            return "below"
        return "above" if self.high is not None and value > self.high else "inside"


@dataclass(frozen=True, kw_only=True, slots=True)
class Published(Expected):
    """source, setting: whose run it was. read: table, text, log file, or figure (roughly). checked:
    when it was last compared with the source; null if it could not be. note: how its definition
    differs from the one here."""

    source: str
    setting: str
    read: str
    checked: str | None
    note: str | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Target(Expected):
    """wish: to be met if it can be. why: the reason for the range."""

    wish: bool
    why: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    """A target held against an arm that it is for. value: None where it was not measured."""

    target: Target
    arm: Arm
    value: float | None

    @property
    def met(self) -> bool:
        return self.value is not None and self.target.place(self.value) == "inside"


def verdicts(arms: list[Arm], targets: list[Target]) -> list[Verdict]:
    """Arm by arm, on the targets that are for it."""
    return [
        Verdict(target=target, arm=arm, value=target.value(arm))
        for arm in arms
        for target in targets
        if target.fits(arm)
    ]


Kind = TypeVar("Kind", bound=Expected)


def load(file: Path, kind: type[Kind]) -> list[Kind]:
    """The entries of a file. Raises UserError for one that is not of this kind."""
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
        raise UserError(f"{where}: {key} is {'missing' if key in names else 'no key of it'}")
    for key in ("name", "quantity"):
        if not isinstance(entry[key], str):
            raise UserError(f"{where}: {key}={entry[key]}: must be a text")
    if not isinstance(entry["arms"], dict | None):
        raise UserError(f"{where}: arms={entry['arms']}: must be keys and values, or null for all")
    if not isinstance(entry.get("wish", False), bool):
        raise UserError(f"{where}: wish={entry['wish']}: must be true or false")
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
