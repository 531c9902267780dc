"""From a composed configuration to typed objects: the classes that it names, and their values.

The choice of a config group names its class by a dotted path under the key `_target_`, next to its
values. On the command line a dotted path can stand in place of a choice, as in
`weight=my_module.MyWeight weight.cap=2`. Classes declare names, types and ranges of their values;
what does not fit is one line that names the key.
"""

import contextlib
import importlib
import sys
from collections.abc import Sequence
from typing import Any, TypeVar, get_args

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import MissingMandatoryValue
from pydantic import ValidationError

from rec_experiments.common import live
from rec_experiments.common.errors import UserError, first_line, meant
from rec_experiments.common.pieces import TARGET, Piece, Settings
from rec_experiments.config import plugins
from rec_experiments.config.identity import flat

T = TypeVar("T", bound=Settings)

# Common names of keys that are called differently here.
COMMON_NAMES = {
    "lr": "optimizer.learning_rate",
    "learning_rate": "optimizer.learning_rate",
    "batch": "batch_size",
    "group": "group_size",
    "k": "group_size",
}
VERIFIERS = f"{plugins.OURS}.datasets.verifiers"  # ours that a run folder may name
LARGEST = 1 << 63  # of whole numbers, which torch and numpy hold in 64 bits
UNKNOWN = "unexpected_keyword_argument"
ALLOWED = {  # by pydantic's name of an error
    "int_type": "a whole number",
    "float_type": "a number",
    "bool_type": "true or false",
    "string_type": "a text",
    "none_required": "null",
    "list_type": "a list",
    "dict_type": "a mapping",
    "dataclass_type": "a mapping",
    "finite_number": "a finite number",
    "greater_than": "greater than {gt}",
    "greater_than_equal": "at least {ge}",
    "less_than": "below {lt}",
    "less_than_equal": "at most {le}",
    "too_short": "a list of at least {min_length}",
    "too_long": "a list of at most {max_length}",
    "string_pattern_mismatch": "a text like {pattern}",
}


# Building ----------------------------------------------------------------------------------------


def build(config: DictConfig, kind: type[T]) -> T:
    """The typed object of a composed configuration. Raises UserError for a class that cannot be
    imported, and for values that do not fit."""
    try:
        values: Any = OmegaConf.to_container(config, resolve=True, throw_on_missing=True)
    except MissingMandatoryValue as error:
        missing = sorted(OmegaConf.missing_keys(config))
        raise UserError(
            f"{', '.join(missing)}: {'have' if missing[1:] else 'has'} no value"
        ) from error
    leaves = flat(values)
    for key, value in leaves.items():
        if isinstance(value, int) and abs(value) >= LARGEST:
            raise UserError(f"{key}={value}: must be below {LARGEST}")
    for key in values.keys() - {*kind.field_names()}:
        elsewhere = [name for name in leaves if name.endswith(f".{key}")]
        if key in COMMON_NAMES or len(elsewhere) == 1:
            other = COMMON_NAMES.get(key) or elsewhere[0]
            raise UserError(f"{key}: no such key; did you mean {other}?")
    pieces = {
        key: piece(key, value) if isinstance(value, dict) and TARGET in value else value
        for key, value in values.items()
    }
    return made(kind, pieces)


def piece(key: str, values: dict[str, Any]) -> Piece:
    """The object of a choice: its class by name, and its values. key: of the slot that it is for.
    Raises UserError as `build` does."""
    given = {name: value for name, value in values.items() if name != TARGET}
    return made(class_of(values[TARGET], key), given, f"{key}.")


def class_of(dotted: str, key: str) -> type[Piece]:
    """The class with a dotted name. key: of the slot that it is for.

    Raises UserError if it cannot be imported, or is no piece.
    """
    module, _, name = str(dotted).rpartition(".")
    try:
        with contextlib.redirect_stdout(sys.stderr):  # stdout belongs to the command
            found = getattr(importlib.import_module(module), name)
    except (Exception, SystemExit) as error:
        reason = f"{type(error).__name__}: {first_line(error)}"
        raise UserError(f"{key}={dotted}: cannot be imported ({reason})") from error
    if not (isinstance(found, type) and issubclass(found, Piece)):
        raise UserError(
            f"{key}={dotted}: must be a class derived from rec_experiments.common.pieces.Piece"
        )
    return found


def made(cls: type[T], values: dict[str, Any], prefix: str = "") -> T:
    """An object with these values. prefix: what stands before their names in errors.

    Raises UserError, one line with key, value and what is allowed, for what pydantic refuses.
    """
    try:
        return cls(**values)
    except ValidationError as error:
        raise UserError(_line(error, cls, prefix)) from error


def _line(error: ValidationError, cls: type, prefix: str) -> str:
    found = error.errors(include_url=False)
    # An unknown key explains a missing one better than the missing one does.
    first = next((each for each in found if each["type"] == UNKNOWN), found[0])
    kind, place, values = first["type"], first["loc"], first.get("ctx", {})
    key = prefix + ".".join(str(part) for part in place if part != "[key]")
    if kind == "value_error":  # of a check in the class
        return f"{key}{'.' if place else ''}{values['error']}"
    if kind == UNKNOWN:
        before = key.removesuffix(str(place[-1]))
        return f"{key}: no such key; {meant(str(place[-1]), _fields(cls, place[:-1]), before)}"
    if kind == "missing":
        return f"{key}: has no value"
    if kind in ("is_instance_of", "dataclass_type") and isinstance(first["input"], Piece):
        wanted = values.get("class") or values["class_name"]
        return f"{key}={type(first['input']).__name__}: must be a {wanted}"
    if kind in ("is_instance_of", "dataclass_type") and not prefix:
        return f"{key}: its choice names no class; its file needs a line `{TARGET}: MODULE.CLASS`"
    if kind == "literal_error":
        allowed = "one of " + values["expected"].replace("'", "").replace(" or ", ", ")
    elif kind == "greater_than" and isinstance(values["gt"], int):
        allowed = f"at least {values['gt'] + 1}"
    else:
        bounds = {name: f"{x:g}" if isinstance(x, float) else x for name, x in values.items()}
        allowed = ALLOWED.get(kind, first["msg"]).format(**bounds)
    value = first["input"]
    if isinstance(value, bool | None):
        value = "null" if value is None else str(value).lower()
    may_be_null = len(place) == 1 and type(None) in get_args(_types(cls).get(str(place[0])))
    or_null = ", or null" if may_be_null else ""
    return f"{key}={value}: must be {allowed}{or_null}"


def _fields(cls: type, place: Sequence[int | str]) -> list[str]:
    """The names of the fields of the settings at this place in an object of `cls`."""
    for name in place:
        kind = _types(cls).get(str(name))
        cls = next((each for each in (kind, *get_args(kind)) if _types(each)), cls)
    return sorted(_types(cls))


def _types(cls: Any) -> dict[str, Any]:
    """The types of the fields of a settings class, by name."""
    found = getattr(cls, "__pydantic_fields__", {})
    return {name: each.annotation for name, each in found.items()}


# Restoring ---------------------------------------------------------------------------------------


def restore(resolved: dict[str, Any], words: Sequence[str] = ()) -> DictConfig:
    """The configuration of an experiment from the plain values in its run folder.

    What only a folder names is never imported: its classes must be in this package, in an installed
    package with our entry point, or named by the words of the current command line. Raises
    UserError for any other, and for the folder of an earlier release, which named no classes.
    """
    roots = [package.module for package in plugins.packages()]
    named = [word.partition("=")[2] for word in words]
    for key, value in resolved.items():
        if not isinstance(value, dict) or key == "algo":
            continue
        if TARGET not in value:
            raise UserError(f"{key}: names no class, as in runs of release 12 and before")
        _check_trusted(key, value[TARGET], [plugins.OURS, *roots], named)
        for name in class_of(value[TARGET], key).imported:
            _check_trusted(f"{key}.{name}", value.get(name), [VERIFIERS, *roots], named)
    return OmegaConf.create(resolved)


def _check_trusted(key: str, dotted: Any, roots: list[str], named: list[str]) -> None:
    """Raise UserError unless this name is on the command line, or below one of the roots, or means
    an object of this process."""
    if live.is_live(dotted):
        return
    if dotted not in named and not any(str(dotted).startswith(f"{root}.") for root in roots):
        raise UserError(
            f"{key}={dotted}: only the run folder names it, so it is not imported; repeat "
            f"{key}={dotted} on the command line, or install its package (docs/extending.md)"
        )
