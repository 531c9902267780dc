"""Packages outside of this one that add pieces and configuration to it (docs/extending.md).

Each declares an entry point of the group `rec_experiments` that names a Python package. What it
adds is that package's `SCHEMAS`, as in schema.py, and its folder `conf`, laid out as ours.
"""

import contextlib
import functools
import importlib
import inspect
import json
import re
import shutil
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType
from typing import Any

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from rec_experiments.errors import UserError, first_line
from rec_experiments.types import Piece

OURS = "rec_experiments"
GROUP = "rec_experiments"  # of entry points
PACKAGE = Path(__file__).parents[1]
# A copy of the code has this list of the packages that were copied with it, and sees no others.
COPIED = PACKAGE / "outside.json"

# Public names and modules that have moved: old to new. A module comes after the modules in it.
MOVED = {
    **{
        f"rec_experiments.types.{old}": f"rec_experiments.types.{new}"
        for old, new in {
            "Task": "Dataset",
            "Verdict": "VerifierResult",
            "Tick": "StepIndex",
            "SlowlyJudgedTask": "SlowlyVerifiedDataset",
            "DemonstratedTask": "DemonstratedDataset",
            "MultiTurnTask": "MultiTurnDataset",
        }.items()
    },
    "rec_experiments.slots": "ROOM.protocol of policy, samplers, rollout, training, tracking",
    "rec_experiments.rollout.sources": "rec_experiments.rollout.replay",
    "rec_experiments.rewards.adjustments": "rec_experiments.rollout.reward",
    "rec_experiments.rewards": "rec_experiments.datasets.verifiers",
    "rec_experiments.records.tracking": "rec_experiments.tracking.trackers",
    "rec_experiments.records": "rec_experiments.runs",
    "rec_experiments.tasks": "rec_experiments.datasets",
}

Registry = dict[str, dict[str, type]]  # slot to name to class


@dataclass(frozen=True, slots=True)
class Package:
    """name, version: as installed. module: what its entry point names, imported."""

    name: str
    version: str
    module: ModuleType

    @property
    def conf(self) -> Path:
        return Path(self.module.__path__[0], "conf")

    @property
    def schemas(self) -> Registry:
        """Raises UserError for SCHEMAS of another shape."""
        found = getattr(self.module, "SCHEMAS", {})
        if not isinstance(found, dict) or not all(
            isinstance(slot, str)
            and isinstance(classes, dict)
            and all(isinstance(name, str) for name in classes)
            for slot, classes in found.items()
        ):
            raise UserError(f"package {self.name}: SCHEMAS must be slot: {{name: class}}")
        return found


@functools.cache
def packages() -> list[Package]:
    """All that are installed, by name. Raises UserError for one that cannot be imported."""
    if COPIED.exists():
        listed = json.loads(COPIED.read_text())
    else:
        found = ((entry.dist, entry.value) for entry in entry_points(group=GROUP))
        listed = sorted((dist.name, dist.version, module) for dist, module in found if dist)
    return [Package(name, version, _imported(name, module)) for name, version, module in listed]


def _imported(name: str, module: str) -> ModuleType:
    try:
        with contextlib.redirect_stdout(sys.stderr):  # stdout belongs to the command
            imported = importlib.import_module(module)
    except (Exception, SystemExit) as error:
        if moved := _moved(error):
            raise UserError(f"package {name}: imports {moved}") from error
        raise UserError(
            f"package {name}: {module} cannot be imported ({type(error).__name__}: "
            f"{first_line(error)}); repair or uninstall it"
        ) from error
    if not getattr(imported, "__file__", None) or not hasattr(imported, "__path__"):
        raise UserError(f"package {name}: {module} must be a folder with an __init__.py")
    return imported


def _moved(error: BaseException) -> str:
    """The old and the new place of a name, if an import failed because it has moved, or ""."""
    if not isinstance(error, ImportError):
        return ""
    name = re.search(r"cannot import name '(\w+)'", str(error))
    wanted = f"{error.name}.{name[1]}" if name else str(error.name)
    for old, new in MOVED.items():
        if f"{wanted}.".startswith(f"{old}."):
            return f"{wanted}, which is now {new}{wanted.removeprefix(old)}"
    return ""


def copy(target: Path, ignore: Callable[[str, list[str]], set[str]]) -> None:
    """Copy the packages into `target`, a folder for PYTHONPATH that contains a copy of ours.

    ignore: as of shutil.copytree.
    """
    for package in packages():
        parts = package.module.__name__.split(".")
        tops = [parts[: n + 1] for n in range(len(parts))]
        top = next(each for each in tops if sys.modules[".".join(each)].__file__)  # no namespace
        shutil.copytree(
            sys.modules[".".join(top)].__path__[0],
            target.joinpath(*top),
            ignore=ignore,
            dirs_exist_ok=True,
        )
    listed = [(each.name, each.version, each.module.__name__) for each in packages()]
    (target / OURS / COPIED.name).write_text(json.dumps(listed))


def merged(ours: Registry, protocols: Mapping[str, type], added: list[Package]) -> Registry:
    """`ours` and what the packages add.

    protocols: the slots that packages may add to, and the protocol of a class there.
    Raises UserError for a class that does not fit, or a name that is taken.
    """
    result = {slot: dict(classes) for slot, classes in ours.items()}
    owners: dict[tuple[str, str], str] = {}
    for package in added:
        for slot, classes in package.schemas.items():
            if slot not in protocols:
                raise UserError(
                    f"package {package.name}: {slot}: not a slot for classes; "
                    f"allowed: {', '.join(protocols)}"
                )
            for name, cls in classes.items():
                where = f"package {package.name}: {slot}.{name}"
                if name in result[slot]:
                    owner = owners.get((slot, name), OURS)
                    raise UserError(f"{where}: {owner} has that name already; choose another")
                if reason := _unfit(cls, protocols[slot]):
                    raise UserError(f"{where}: {reason}")
                result[slot][name], owners[slot, name] = cls, package.name
    return result


def _unfit(cls: Any, protocol: type) -> str | None:
    """Why a class cannot fill a slot, or None."""
    if not (
        isinstance(cls, type) and issubclass(cls, Piece) and "__dataclass_fields__" in vars(cls)
    ):
        return "must be a dataclass derived from rec_experiments.types.Piece"
    members = [*vars(protocol), *inspect.get_annotations(protocol)]
    has = {*cls.__dataclass_fields__, *(name for base in cls.__mro__ for name in vars(base))}
    asks = f"{protocol.__module__}.{protocol.__name__}"
    for name in members:
        if name.startswith("_") and name != "__call__":
            continue
        if name not in has:
            return f"has no {name}, which {asks} requires"
        promised = vars(protocol).get(name)
        if inspect.isfunction(promised) and not _takes(cls, name, promised):
            given = ", ".join([*inspect.signature(promised).parameters][1:])
            return f"{name} must accept the arguments of {asks}: ({given})"
    try:
        OmegaConf.structured(cls)
    except OmegaConfBaseException as error:
        return first_line(error)
    return None


def _takes(cls: type, name: str, promised: Callable[..., Any]) -> bool:
    """Whether a method can be called with the arguments of the protocol's."""
    method = getattr(cls, name, None)
    if not callable(method):
        return False
    bound = inspect.ismethod(method)
    if not bound and not inspect.isfunction(method):
        return True
    parameters = inspect.signature(promised).parameters.values()
    by_name = {each.name: None for each in parameters if each.kind is each.KEYWORD_ONLY}
    by_place = [None] * (len(parameters) - len(by_name))
    if name == "__call__" and getattr(getattr(cls, "needs", None), "lengths", False):
        by_name["lengths_B"] = None  # of an advantage that asks for it
    if bound or isinstance(inspect.getattr_static(cls, name), staticmethod):
        by_place.pop()
    try:
        inspect.signature(method).bind(*by_place, **by_name)
    except TypeError:
        return False
    return True


def refuse_files(ours: Path, added: list[Package]) -> None:
    """Raise UserError for a file that Hydra would hide, since it takes the first of two files with
    the same name, or that is not UTF-8, for which Hydra's error does not name the file."""
    folders = [(OURS, ours)]
    for package in added:
        for file in sorted(package.conf.rglob("*.yaml")):
            place = file.relative_to(package.conf)
            for owner, folder in folders:
                if (folder / place).exists():
                    raise UserError(
                        f"package {package.name}: {owner} has a conf/{place} already; choose "
                        "another name"
                    )
            try:
                file.read_text(encoding="utf-8")
            except UnicodeDecodeError as error:
                raise UserError(f"{file}: must be text in UTF-8 ({error.reason})") from error
        folders.append((package.name, package.conf))
