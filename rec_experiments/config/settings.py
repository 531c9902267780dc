"""The values that an experiment has because of its command line, without Hydra.

Composing takes Hydra tenths of a second, and a table has thousands of runs. The files of conf/ are
read here as far as they follow the rules of this project: a file has a list of defaults and values;
a global file (setting, algo) may choose from groups. Two command lines are the same experiment if
these values are equal, however they are written.
"""

import functools
import hashlib
import shlex
from collections.abc import Iterable
from typing import Any

import yaml

from rec_experiments.common.pieces import TARGET
from rec_experiments.config.identity import NOT_IDENTITY, flat
from rec_experiments.config.plugins import choices_by_group, conf_file
from rec_experiments.rollout.schedule import ages_of

Settings = dict[str, Any]  # by dotted key; also `algo`, the name of the preset
GLOBAL = ("setting", "algo", "gpus")  # groups whose files set values of the whole experiment
LONGEST = 300  # characters of a value that is read; a longer one stays a text
NO_SETTING = (*NOT_IDENTITY, "hydra", "sweep", "scale")  # first parts of keys that change no number


def words_of(command: Iterable[str]) -> list[str]:
    """The words of a command line that may change a number of the run."""
    pairs = [(word.lstrip("+").partition("=")[0], word) for word in command if "=" in word]
    return [word for key, word in pairs if key == "algo" or key.split(".")[0] not in NO_SETTING]


@functools.lru_cache(maxsize=1 << 16)
def settings(overrides: str) -> Settings:
    """The values of the experiment with these overrides, a line quoted as for a shell. Of a choice
    that does not exist, as in the archive of an earlier release, only the name is known."""
    words = words_of(shlex.split(overrides))
    pairs = dict(word.lstrip("+").split("=", 1) for word in words)
    groups = _groups()
    choices = tuple((key, choice) for key, choice in pairs.items() if key in groups)
    set_here = {key: _value(text) for key, text in pairs.items() if key not in groups}
    return {**_composed(choices), **set_here}


def experiment(overrides: str) -> str:
    """A digest of the settings, equal for all command lines of the same experiment."""
    found = {
        key: float(value) if isinstance(value, int) and not isinstance(value, bool) else value
        for key, value in settings(overrides).items()
    }
    return hashlib.sha256(repr(sorted(found.items())).encode()).hexdigest()[:16]


def seed(overrides: str) -> int:
    """The seed of the run."""
    found = settings(overrides)["seed"]
    return found if isinstance(found, int) else 0


def ages(found: Settings) -> list[int]:
    """The age of the data at each gradient step, as `Schedule.ages` counts it."""
    return ages_of(below("sync", found), below("updates", found), steps=found["steps"])


def oldest_age(found: Settings) -> int:
    """The largest number of gradient steps between drawing a batch and its last update."""
    return max(ages(found))


def below(key: str, found: Settings) -> Settings:
    """The values of a group, such as `sync`, by their names in it."""
    return {
        name.removeprefix(f"{key}."): value
        for name, value in found.items()
        if name.startswith(f"{key}.")
    }


@functools.cache
def _groups() -> frozenset[str]:
    return frozenset(choices_by_group())


@functools.cache
def _composed(chosen: tuple[tuple[str, str], ...]) -> Settings:
    """The values before those that the command line sets one by one."""
    base, choices = file_values("config")
    method, of_method = file_values("algorithm")
    choices = {**of_method, **choices, **dict(chosen)}
    wide = {}
    for group in GLOBAL:
        wide[group], by_file = file_values(choices.get(group), group)
        choices = {**choices, **by_file, **dict(chosen)}
    found: Settings = {}
    for group, choice in choices.items():
        if group not in GLOBAL:
            values, _ = file_values(choice, group)
            found |= {f"{group}.{key}": value for key, value in values.items()}
    found |= {**method, **wide["algo"], **base, **wide["gpus"], **wide["setting"]}
    found = {key: value for key, value in found.items() if key.split(".")[0] not in NO_SETTING}
    return {**found, "algo": choices["algo"]}


@functools.cache
def file_values(choice: str | None, group: str = "") -> tuple[Settings, dict[str, str]]:
    """The values of a file of a group, or of conf/ itself, with those of the files that it builds
    on, and the choices that it makes in groups. A choice may also name a class."""
    file = conf_file(f"{group}/{choice}")
    if file is None:
        return {TARGET: choice} if choice else {}, {}
    content = yaml.safe_load(file.read_text(encoding="utf-8")) or {}
    values: Settings = {}
    choices: dict[str, str] = {}
    for entry in content.pop("defaults", []):
        if isinstance(entry, dict):
            [(key, name)] = entry.items()
            if not key.startswith("override hydra"):
                choices[key.removeprefix("override ").lstrip("/")] = name
        elif entry != "_self_" and "@" not in entry:
            of_group = "" if entry.startswith("/") else group
            more, others = file_values(entry.lstrip("/"), of_group)
            values, choices = {**values, **more}, {**choices, **others}
    content.pop("hydra", None)
    return {**values, **{key: _plain(value) for key, value in flat(content).items()}}, choices


def _value(text: str) -> Any:
    """The value that a text stands for; what no run would accept stays a text, as does an alias of
    YAML, whose value can be larger than the memory."""
    if "&" in text or len(text) > LONGEST:
        return text
    try:
        return _plain(yaml.safe_load(text))
    except (yaml.YAMLError, ValueError, RecursionError):
        return text


def _plain(value: Any) -> Any:
    """The value, a number even where YAML reads it as a text, as in 1e-5."""
    if not isinstance(value, str):
        return value
    try:
        return float(value)
    except ValueError:
        return value
