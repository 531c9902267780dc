"""Composing configurations with Hydra, from the words of a command line."""

import contextlib
import pickle
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import hydra
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.core.utils import JobRuntime
from hydra.errors import HydraException, MissingConfigException
from hydra.version import VersionBase
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import ConfigAttributeError, ConfigKeyError, OmegaConfBaseException
from yaml import MarkedYAMLError, YAMLError

from rec_experiments.common.errors import UserError, causes, first_line, meant
from rec_experiments.common.pieces import TARGET
from rec_experiments.config import plugins

OF_A_SWEEP = ("hydra", "scale", "sweep")
_ALONE = threading.RLock()

Compose = Callable[[str, Sequence[str]], DictConfig]  # of a file in conf, and overrides


@contextlib.contextmanager
def composing() -> Iterator[Compose]:
    """A context that yields `compose`, and in which errors of Hydra become UserErrors. The
    surrounding program may use Hydra itself; of several threads, one composes at a time."""
    with _ALONE, _hydra_state_restored():
        groups = plugins.choices_by_group()
        composed: dict[tuple[str, ...], bytes] = {}

        def compose(config_name: str, overrides: Sequence[str]) -> DictConfig:
            """As `hydra.compose`, which takes a tenth of a second, for each combination of choices
            once: values are set in copies, as are classes by their dotted names. Raises UserError
            for overrides that do not fit."""
            changes = parse(overrides)
            for each in changes:
                _check(each, groups)
            chosen = {
                each.key_or_group: str(each.value())
                for each in changes
                if each.key_or_group in groups
            }
            classes = {group: choice for group, choice in chosen.items() if _is_class(choice)}
            choices = [f"{group}={chosen[group]}" for group in chosen.keys() - classes.keys()]
            key = (config_name, *sorted(choices))
            if key not in composed:
                composed[key] = pickle.dumps(hydra.compose(config_name, [*search_path(), *choices]))
            config: DictConfig = pickle.loads(composed[key])
            for group, dotted in classes.items():
                OmegaConf.update(config, group, {TARGET: dotted}, merge=False, force_add=True)
            for each in changes:
                if each.key_or_group not in chosen:
                    _set(config, each)
            return config

        try:
            with hydra.initialize_config_dir(str(plugins.CONF), version_base="1.3"):
                yield compose
        except (HydraException, OmegaConfBaseException, YAMLError) as error:
            raise UserError(explain(error)) from error


def search_path() -> list[str]:
    """The override that lets Hydra find the configuration of installed packages, if there are
    any."""
    folders = [str(folder).replace("'", r"\'") for folder in plugins.conf_folders()[1:]]
    quoted = ",".join(f"'file://{folder}'" for folder in folders)
    return [f"hydra.searchpath=[{quoted}]"] if folders else []


def parse(overrides: Iterable[str]) -> list[Override]:
    """The overrides, parsed. Raises UserError for one that cannot be read."""
    return [*map(_parsed, overrides)]


def _parsed(line: str) -> Override:
    try:
        override = OverridesParser.create().parse_override(line)
    except (HydraException, ValueError, RecursionError) as error:  # a long number, a deep list
        key, _, value = line.partition("=")
        quotes = value and not set(value) & set("\"'[]{}()")
        hint = f"; such a value needs quotes: '{key}=\"{value}\"'" if quotes else ""
        raise UserError(f"{line}: cannot be read{hint}") from error
    if not override.key_or_group or override.is_delete() or override.package:
        raise UserError(f"{line}: must be KEY=VALUE")
    return override


def _check(override: Override, groups: Mapping[str, list[str]]) -> None:
    """Raise UserError for an override that is not of one run, and for an unknown choice."""
    line, group = override.input_line, override.key_or_group
    if override.is_sweep_override():
        raise UserError(
            f"{line}: several values make several runs, which needs -m, as in -m {line}; a list is "
            f"written {group}=[VALUE,…]"
        )
    if re.split("[./]", group)[0] in OF_A_SWEEP:
        raise UserError(f"{line}: belongs to a sweep, which needs -m, as in -m sweep=fig3")
    choice = str(override.value())
    if group in groups and choice not in groups[group] and not _is_class(choice):
        raise UserError(f"{line}: no such choice; {meant(choice, groups[group])}")


def _set(config: DictConfig, override: Override) -> None:
    """Set a value, of a new key too, which `schema.build` refuses in its own words."""
    try:
        OmegaConf.update(config, override.key_or_group, override.value(), force_add=True)
    except (TypeError, ValueError) as error:
        raise UserError(f"{override.input_line}: no such key ({first_line(error)})") from error


def _is_class(choice: str) -> bool:
    """Whether it is the dotted name of a class, as in weight=my_module.MyWeight."""
    return "." in choice and all(part.isidentifier() for part in choice.split("."))


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


def explain(error: BaseException) -> str:
    """One line for the user about an error of Hydra, OmegaConf or YAML."""
    for part in reversed([*causes(error)]):
        if isinstance(part, MissingConfigException) and part.missing_cfg_file and part.options:
            group, _, choice = part.missing_cfg_file.rpartition("/")
            return f"{group}={choice}: no such choice; {meant(choice, sorted(part.options))}"
        if isinstance(part, MarkedYAMLError) and part.problem_mark:
            where = f"{part.problem_mark.name}, line {part.problem_mark.line + 1}"
            return f"{where}: is not YAML ({part.problem})"
        if isinstance(part, OmegaConfBaseException) and part.full_key:
            if isinstance(part, ConfigKeyError | ConfigAttributeError) and part.parent_node:
                key, before = str(part.key), str(part.full_key).removesuffix(str(part.key))
                return f"{part.full_key}: no such key; {meant(key, [*part.parent_node], before)}"
            return f"{part.full_key}: {first_line(part)}"
    return first_line(error)
