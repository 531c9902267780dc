"""Composing configurations outside of a command line, and why one cannot be, in one line."""

import contextlib
import difflib
import os
import re
import threading
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path

from hydra import initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.types import Override
from hydra.core.utils import JobRuntime
from hydra.errors import (
    ConfigCompositionException,
    HydraException,
    MissingConfigException,
    OverrideParseException,
)
from hydra.version import VersionBase
from omegaconf import DictConfig
from omegaconf.errors import ConfigKeyError, OmegaConfBaseException, ValidationError
from yaml import MarkedYAMLError, YAMLError

from rec_experiments.config import schema
from rec_experiments.errors import UserError, first_line

_ALONE = threading.RLock()


@contextlib.contextmanager
def composing() -> Iterator[None]:
    """Compose within, by `hydra.compose`; what Hydra refuses is a UserError. The program around us
    may use Hydra as well; of several threads one composes at a time."""
    with _ALONE, _others_put_aside():
        schema.register()
        try:
            with initialize_config_dir(str(schema.CONF), version_base="1.3"):
                yield
        except (HydraException, OmegaConfBaseException, YAMLError) as error:
            raise UserError(explain(error)) from error
        except (TypeError, ValueError) as error:  # what Hydra raises for some, as `sync=3`
            raise UserError(explain(error)) from error


@contextlib.contextmanager
def _others_put_aside() -> Iterator[None]:
    """Hydra's state is one for the whole process: within there is none, and afterwards that of the
    program around us."""
    state, job, version = GlobalHydra.instance(), JobRuntime.instance(), VersionBase.instance()
    hydra, name, base = state.hydra, job.get("name"), version.version_base
    state.clear()
    try:
        yield
    finally:
        GlobalHydra.set_instance(state)  # Hydra leaves a copy in its place
        state.hydra, version.version_base = hydra, base
        job.set("name", name)


def choices_by_group() -> dict[str, list[str]]:
    """The user's groups, ours and those of outside packages, by name, with their choices."""
    found: dict[str, list[str]] = {}
    for root in schema.conf_folders():
        for file in files_under(root, ".yaml"):
            group = file.parent.relative_to(root).as_posix()
            if group != "." and not group.startswith("hydra/"):
                found.setdefault(group, []).append(file.stem)
    return {group: sorted(choices) for group, choices in sorted(found.items())}


def files_under(root: Path, *suffixes: str) -> Iterator[Path]:
    """The files with these suffixes, in order of their names; links to folders are followed."""
    for folder, folders, files in os.walk(root, followlinks=True):
        folders.sort()
        yield from (Path(folder, file) for file in sorted(files) if file.endswith(suffixes))


def explain(error: BaseException) -> str:
    """One line for the user: the key, the value, what is allowed."""
    chain = [error]
    while (cause := _reason(chain[-1])) is not None:
        chain.append(cause)
    for part in reversed(chain):
        if isinstance(part, OverrideParseException):
            return f"{part.override}: cannot be read ({first_line(part)}){_quoted(part.override)}"
        if isinstance(part, MissingConfigException) and part.missing_cfg_file:
            return _no_such_choice(part.missing_cfg_file, part.options)
        if isinstance(part, MarkedYAMLError) and part.problem_mark:
            where = f"{part.problem_mark.name}, line {part.problem_mark.line + 1}"
            return f"{where}: is no YAML ({part.problem})"
        if isinstance(part, OmegaConfBaseException) and part.full_key:
            override = re.search(r"Error merging override (.*)", str(error))
            where = override[1] if override else part.full_key
            return f"{where}: {_of_key(part)}"
    if choice := _not_a_name(error):
        allowed = ", ".join(_choices_within(choice.key_or_group))
        return f"{choice.input_line}: is no name of a choice; allowed: {allowed}"
    return first_line(error)


def _of_key(error: OmegaConfBaseException) -> str:
    """What is wrong with a key or its value."""
    if isinstance(error, ValidationError) and isinstance(error.child_node, DictConfig):
        keys = ", ".join(sorted(f"{error.full_key}.{key!s}" for key in error.child_node))
        return f"takes no value of its own; its keys: {keys}"
    return f"{first_line(error)}{_suggestion(error)}"


def _not_a_name(error: BaseException) -> Override | None:
    """The choice of a group that Hydra was reading when it raised a ValueError, as in `sync=3`: its
    message does not name the group."""
    frames = (frame.f_locals for frame, _ in traceback.walk_tb(error.__traceback__))
    found = [each["override"] for each in frames if isinstance(each.get("override"), Override)]
    return found[-1] if found and isinstance(error, ValueError) else None


def _reason(error: BaseException) -> BaseException | None:
    """What an error follows from. Hydra says of a file that does not fit its schema only while what
    error it did so."""
    return error.__cause__ or (
        error.__context__ if isinstance(error, ConfigCompositionException) else None
    )


def _quoted(override: str) -> str:
    """How to write a value with signs that Hydra's grammar has another use for, or none."""
    key, _, value = override.partition("=")
    if not value or set(value) & set("\"'[]{}()"):
        return ""
    return f"; such a value needs quotes: '{key}=\"{value}\"'"


def _no_such_choice(file: str, options: Sequence[str] | None) -> str:
    """options: the choices of the file's folder, if there is such a folder."""
    if file.startswith("schema/"):
        slot = file.split("/")[1]
        return f"{file}: no such class; allowed: {', '.join(schema.registry().get(slot, {}))}"
    if options:
        group, _, choice = file.rpartition("/")
    else:
        group, _, choice = file.partition("/")
        options = _choices_within(group)
    return f"{group}={choice}: no such choice; allowed: {', '.join(sorted(options))}"


def _choices_within(group: str) -> list[str]:
    """Of a group and of the groups in it."""
    return [
        f"{folder}/{name}".removeprefix(group).strip("/")
        for folder, names in choices_by_group().items()
        if f"{folder}/".startswith(f"{group}/")
        for name in names
    ]


def _suggestion(error: OmegaConfBaseException) -> str:
    """The keys that stand where a misspelt one was looked for."""
    if not isinstance(error, ConfigKeyError | AttributeError) or error.parent_node is None:
        return ""
    allowed = [str(key) for key in error.parent_node]
    close = difflib.get_close_matches(str(error.key), allowed, n=1)
    hint = f"did you mean {close[0]}? " if close else ""
    return f"; {hint}allowed: {', '.join(sorted(allowed))}"
