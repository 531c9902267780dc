"""The configuration files of this project and of installed packages (docs/extending.md).

A package declares an entry point of the group `rec_experiments` that names a Python package with a
folder `conf`, laid out as ours. What it names under `_target_` is imported only when it is chosen.
"""

import functools
import glob
import importlib.util
import json
import shutil
from collections import defaultdict
from collections.abc import Callable
from importlib.metadata import entry_points
from pathlib import Path
from typing import NamedTuple

from rec_experiments.common.errors import UserError

OURS = "rec_experiments"
GROUP = "rec_experiments"  # of entry points
PACKAGE = Path(__file__).parents[1]
# In a checkout `conf` is next to the package, in a wheel inside it.
CONF = next(folder / "conf" for folder in (PACKAGE, PACKAGE.parent) if (folder / "conf").is_dir())
# A copy of the code has this list of the packages that were copied with it, and sees no others.
COPIED = PACKAGE / "outside.json"


class Package(NamedTuple):
    """name, version: as installed. module: the Python package that its entry point names."""

    name: str
    version: str
    module: str


@functools.cache
def packages() -> list[Package]:
    """All that are installed, by name."""
    if COPIED.exists():
        return [Package(*listed) for listed in json.loads(COPIED.read_text())]
    found = ((entry.dist, entry.value) for entry in entry_points(group=GROUP))
    return sorted(Package(dist.name, dist.version, module) for dist, module in found if dist)


def conf_folders() -> list[Path]:
    """The folders with configuration files: ours, then those of packages.

    Raises UserError for two files of one name: Hydra would silently take the first.
    """
    folders = {OURS: CONF}
    for package in packages():
        conf = _folder(package, package.module) / "conf"
        for place in _files(conf):
            for owner, folder in folders.items():
                if (folder / place).exists():
                    raise UserError(
                        f"package {package.name}: {owner} has a conf/{place} already; choose "
                        "another name"
                    )
        if conf.is_dir():
            folders[package.name] = conf
    return [*folders.values()]


def conf_file(name: str) -> Path | None:
    """The file of a choice, as in `scale/mini`; None if there is none."""
    files = (folder / f"{name.lstrip('/')}.yaml" for folder in conf_folders())
    return next(filter(Path.is_file, files), None)


def choices_by_group() -> dict[str, list[str]]:
    """The config groups with their choices, sorted, as `setting` with `mini/gsm8k`."""
    found = defaultdict(list)
    for file in (file for folder in conf_folders() for file in _files(folder)):
        group, _, choice = file.removesuffix(".yaml").partition("/")
        if choice and group != "hydra":
            found[group].append(choice)
    return {group: sorted(found[group]) for group in sorted(found)}


def copy(target: Path, ignore: Callable[[str, list[str]], set[str]]) -> None:
    """Copy the packages into `target`, a folder for PYTHONPATH that contains a copy of ours.

    ignore: as of shutil.copytree.
    """
    for package in packages():
        top = package.module.partition(".")[0]
        shutil.copytree(_folder(package, top), target / top, ignore=ignore, dirs_exist_ok=True)
    (target / OURS / COPIED.name).write_text(json.dumps(packages()))


def _folder(package: Package, module: str) -> Path:
    """The folder of a module. Raises UserError if there is none, or if it is a single file."""
    try:
        spec = importlib.util.find_spec(module)
    except ImportError:
        spec = None
    if spec is None or not spec.submodule_search_locations:
        raise UserError(
            f"package {package.name}: {module} must be a folder with an __init__.py; repair or "
            "uninstall it"
        )
    return Path(spec.submodule_search_locations[0])


def _files(conf: Path) -> list[str]:
    """The configuration files, relative to their folder. Links to folders are followed."""
    return glob.glob("**/*.yaml", root_dir=conf, recursive=True)
