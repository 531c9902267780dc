"""Packages outside of this one that add configuration and classes to it (docs/extending.md).

Each declares an entry point of the group `rec_experiments` that names a Python package with a
folder `conf`, laid out as ours. What it names under `_target_` is imported only when it is chosen.
"""

import functools
import importlib.util
import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import entry_points
from pathlib import Path

from rec_experiments.common.errors import UserError

OURS = "rec_experiments"
GROUP = "rec_experiments"  # of entry points
PACKAGE = Path(__file__).parents[1]
# In a checkout `conf` is next to the package, in a wheel inside it.
CONF = next(folder / "conf" for folder in (PACKAGE, PACKAGE.parent) if (folder / "conf").is_dir())
# A copy of the code has this list of the packages that were copied with it, and sees no others.
COPIED = PACKAGE / "outside.json"


@dataclass(frozen=True, slots=True)
class Package:
    """name, version: as installed. module: the Python package that its entry point names."""

    name: str
    version: str
    module: str

    @property
    def folder(self) -> Path:
        """Where the module is. Raises UserError if there is none, or if it is a single file."""
        return self._folder_of(self.module)

    @property
    def conf(self) -> Path:
        return self.folder / "conf"

    def copy(self, target: Path, ignore: Callable[[str, list[str]], set[str]]) -> None:
        """Copy the module into the folder `target`, with the packages that it is part of."""
        top = self.module.partition(".")[0]
        shutil.copytree(self._folder_of(top), target / top, ignore=ignore, dirs_exist_ok=True)

    def _folder_of(self, module: str) -> Path:
        try:
            spec = importlib.util.find_spec(module)
        except ImportError:
            spec = None
        if spec is None or not spec.submodule_search_locations:
            raise UserError(
                f"package {self.name}: {module} must be a folder with an __init__.py; repair or "
                "uninstall it"
            )
        return Path(spec.submodule_search_locations[0])


@functools.cache
def packages() -> list[Package]:
    """All that are installed, by name."""
    if COPIED.exists():
        return [Package(*listed) for listed in json.loads(COPIED.read_text())]
    found = ((entry.dist, entry.value) for entry in entry_points(group=GROUP))
    return [Package(*each) for each in sorted((d.name, d.version, m) for d, m in found if d)]


def conf_folders() -> list[Path]:
    """The folders with configuration files: ours, then those of outside packages.

    Raises UserError for two files of one name: Hydra would silently take the first.
    """
    folders = {OURS: CONF}
    for package in packages():
        for file in sorted(package.conf.rglob("*.yaml")):
            place = file.relative_to(package.conf)
            for owner, folder in folders.items():
                if (folder / place).exists():
                    raise UserError(
                        f"package {package.name}: {owner} has a conf/{place} already; choose "
                        "another name"
                    )
        if package.conf.is_dir():
            folders[package.name] = package.conf
    return [*folders.values()]


def conf_file(name: str) -> Path | None:
    """The file of a choice, as in `scale/mini`, here or in an outside package; None if there is
    none."""
    files = (folder / f"{name.lstrip('/')}.yaml" for folder in conf_folders())
    return next(filter(Path.is_file, files), None)


def copy(target: Path, ignore: Callable[[str, list[str]], set[str]]) -> None:
    """Copy the packages into `target`, a folder for PYTHONPATH that contains a copy of ours.

    ignore: as of shutil.copytree.
    """
    for package in packages():
        package.copy(target, ignore)
    listed = [(each.name, each.version, each.module) for each in packages()]
    (target / OURS / COPIED.name).write_text(json.dumps(listed))
