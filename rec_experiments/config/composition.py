"""Composing configurations outside of Hydra's command line, and errors of composing in one line."""

import contextlib
import functools
import os
import pickle
import re
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import hydra
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override, OverrideType
from hydra.core.utils import JobRuntime
from hydra.errors import (
    HydraException,
    MissingConfigException,
    OverrideParseException,
)
from hydra.version import VersionBase
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import ConfigKeyError, OmegaConfBaseException
from yaml import MarkedYAMLError, YAMLError

from rec_experiments.common.errors import UserError, first_line, meant
from rec_experiments.config import schema
from rec_experiments.config.identity import flat

# Common names of keys that are called differently here.
COMMON_NAMES = {
    "lr": "optimizer.learning_rate",
    "learning_rate": "optimizer.learning_rate",
    "batch": "batch_size",
    "group": "group_size",
    "k": "group_size",
}

_ALONE = threading.RLock()
# What Hydra says of a choice that only a sweep has.
OF_A_SWEEP = re.compile(r"Could not override '(scale|hydra/\S+)'")


Compose = Callable[[str, Sequence[str]], DictConfig]  # of a file in conf, and overrides


@contextlib.contextmanager
def composing() -> Iterator[Compose]:
    """A context that yields `compose`, and in which errors of Hydra become UserErrors. The
    surrounding program may use Hydra itself; of several threads, one composes at a time."""
    with _ALONE, _hydra_state_restored():
        schema.register()
        groups, state = _groups()

        def compose(config_name: str, overrides: Sequence[str]) -> DictConfig:
            """As `hydra.compose`. Raises UserError for overrides that do not fit."""
            return _compose(config_name, [*overrides], groups, state)

        try:
            with hydra.initialize_config_dir(str(schema.CONF), version_base="1.3"):
                yield compose
        except (HydraException, OmegaConfBaseException, YAMLError) as error:
            raise UserError(explain(error)) from error


def _compose(config_name: str, overrides: list[str], groups: set[str], state: str) -> DictConfig:
    """Most configurations of a process differ in values only: Hydra, which takes a tenth of a
    second, composes each combination of choices once, and values are set in copies.

    Overrides that do more than set an existing key are left to Hydra, with its errors.
    """
    choices: list[str] = []
    values: list[Override] = []
    for line in overrides:
        override = _parsed(line)
        if not override.key_or_group:
            raise UserError(f"{line}: must be KEY=VALUE")
        plain = override.type is OverrideType.CHANGE and not override.package
        if not plain or override.is_sweep_override():
            return hydra.compose(config_name, overrides)
        if override.key_or_group.partition("/")[0] not in groups:
            values.append(override)
        elif not isinstance(override.value(), str):  # Hydra's error names no group
            allowed = ", ".join(choices_within(override.key_or_group))
            raise UserError(f"{line}: no such choice; allowed: {allowed}")
        elif "." in line:  # a class, which may change while the process lives
            return hydra.compose(config_name, overrides)
        else:
            choices.append(line)
    config: DictConfig = pickle.loads(_composed_once(config_name, *choices, state=state))
    try:
        for each in values:
            OmegaConf.update(config, each.key_or_group, each.value(), merge=True)
    except OmegaConfBaseException:
        return hydra.compose(config_name, overrides)
    return config


@functools.lru_cache(256)
def _composed_once(config_name: str, *choices: str, state: str) -> bytes:
    return pickle.dumps(hydra.compose(config_name, [*choices]))


@functools.lru_cache(1024)
def _parsed(line: str) -> Override:
    return OverridesParser.create().parse_overrides([line])[0]


def _groups() -> tuple[set[str], str]:
    """The config groups, outermost folders, and a text that changes with every file in them."""
    groups, files = set(), []
    for root in schema.conf_folders():
        for file in files_under(root, ".yaml"):
            groups.add(file.relative_to(root).parts[0])
            files.append(f"{file} {file.stat().st_mtime_ns}")
    return groups, "\n".join(files)


@contextlib.contextmanager
def _hydra_state_restored() -> Iterator[None]:
    """Hydra has one state for the whole process: clear it, and restore it afterwards."""
    state, job, version = GlobalHydra.instance(), JobRuntime.instance(), VersionBase.instance()
    before, name, base = state.hydra, job.get("name"), version.version_base
    state.clear()
    try:
        yield
    finally:
        GlobalHydra.set_instance(state)  # Hydra leaves a copy in its place
        state.hydra, version.version_base = before, base
        job.set("name", name)


def choices_by_group() -> dict[str, list[str]]:
    """The config groups of this project and of outside packages, with their choices, sorted."""
    found: dict[str, list[str]] = {}
    for root in schema.conf_folders():
        for file in files_under(root, ".yaml"):
            group = file.parent.relative_to(root).as_posix()
            if group != "." and not group.startswith("hydra/"):
                found.setdefault(group, []).append(file.stem)
    return {group: sorted(choices) for group, choices in sorted(found.items())}


def files_under(root: Path, *suffixes: str) -> Iterator[Path]:
    """The files with these suffixes, sorted by name. Links to folders are followed."""
    for folder, folders, files in os.walk(root, followlinks=True):
        folders.sort()
        yield from (Path(folder, file) for file in sorted(files) if file.endswith(suffixes))


def explain(error: BaseException) -> str:
    """One line for the user: the key, the value, what is allowed."""
    chain = [error]
    while (cause := chain[-1].__cause__) is not None:
        chain.append(cause)
    for part in reversed(chain):
        if isinstance(part, OverrideParseException):
            return f"{part.override}: cannot be read{_quoted(part.override)}"
        if found := OF_A_SWEEP.search(str(part)):
            return f"{found[1]}: can be chosen only with a sweep, as in -m sweep=fig3"
        if isinstance(part, MissingConfigException) and part.missing_cfg_file:
            return _no_such_choice(part.missing_cfg_file, part.options)
        if isinstance(part, MarkedYAMLError) and part.problem_mark:
            where = f"{part.problem_mark.name}, line {part.problem_mark.line + 1}"
            return f"{where}: is not YAML ({part.problem})"
        if isinstance(part, OmegaConfBaseException) and part.full_key:
            return f"{part.full_key}: {_of_key(part)}"
    return first_line(error)


def _of_key(error: OmegaConfBaseException) -> str:
    """What is wrong with a key: for an unknown one, which other was meant or is allowed."""
    if not isinstance(error, ConfigKeyError | AttributeError) or error.parent_node is None:
        return first_line(error)
    key, values = str(error.key), OmegaConf.to_container(error.parent_node._get_root())
    if not error.parent_node:
        return f"takes any key, with a plus: +{error.full_key}=…"
    elsewhere = [name for name in flat(values) if name.endswith(f".{key}")]
    if key in COMMON_NAMES or len(elsewhere) == 1:
        return f"no such key; did you mean {COMMON_NAMES.get(key) or elsewhere[0]}?"
    before = str(error.full_key).removesuffix(key)
    return f"no such key; {meant(key, sorted(map(str, error.parent_node)), before)}"


def _quoted(override: str) -> str:
    """How to write a value that contains signs of Hydra's grammar, or ""."""
    key, _, value = override.partition("=")
    if not value or set(value) & set("\"'[]{}()"):
        return ""
    return f"; such a value needs quotes: '{key}=\"{value}\"'"


def _no_such_choice(file: str, options: Sequence[str] | None) -> str:
    """options: the choices in the file's folder, if that folder exists."""
    if options:
        group, _, choice = file.rpartition("/")
    else:
        group, _, choice = file.partition("/")
        options = choices_within(group)
    return f"{group}={choice}: no such choice; {meant(choice, sorted(options))}"


def choices_within(group: str) -> list[str]:
    """The choices of a group and of its sub-groups."""
    return [
        f"{folder}/{name}".removeprefix(group).strip("/")
        for folder, names in choices_by_group().items()
        if f"{folder}/".startswith(f"{group}/")
        for name in names
    ]
