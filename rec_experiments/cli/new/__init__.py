"""Writes a small package of your own into the folder NAME. It works as it is, for you to change.
Once it is installed (pip install ./NAME), its parts can be chosen, swept and listed like those of
this project."""

import ast
import importlib.util
import keyword
import shutil
import sys
import tempfile
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path

from rec_experiments.cli.parser import Parser
from rec_experiments.config.composition import choices_by_group
from rec_experiments.errors import UserError

TEMPLATES = Path(__file__).parent  # a complete package of each kind
KINDS = {"algorithm": "my_algorithm", "dataset": "my_dataset"}  # and the name in its template
FORMER_KINDS = {"task": "dataset"}
# Words that Hydra or YAML does not read as text.
VALUES = ("false", "inf", "nan", "no", "null", "off", "on", "true", "yes")
NOT_COPIED = ("__pycache__", "*.pyc", ".*")


def add_arguments(parser: Parser) -> None:
    parser.add_argument(
        "kind", metavar="KIND",
        help="algorithm: a piece of a loss, a preset, a test against a closed form, and a sweep "
        "that compares it with GRPO and REC at three staleness levels. dataset: problems, a "
        "verifier, demonstrations, and a test",
    )  # fmt: skip
    parser.add_argument("name", metavar="NAME", help="of the package, its folder and its choices")


def main(args: Namespace) -> None:
    """Raises UserError as `create` does."""
    folder = create(args.kind, args.name, Path.cwd())
    print((folder / "README.md").read_text(encoding="utf-8"), end="")


def create(kind: str, name: str, parent: Path) -> Path:
    """Write a package into the folder `parent`/`name`, or leave nothing. Returns the folder.

    Raises UserError for an unknown kind, a name that is invalid or taken, and a folder that exists
    or cannot be written.
    """
    if kind in FORMER_KINDS:
        raise UserError(f"new {kind}: is now called new {FORMER_KINDS[kind]} {name}")
    if kind not in KINDS:
        raise UserError(f"new {kind}: no such kind; allowed: {', '.join(KINDS)}")
    folder = parent / name
    if reason := unfit(name) or ("exists already" if folder.exists() else taken(kind, name)):
        raise UserError(f"new {kind} {name}: {reason}; choose another name")
    replaced = {KINDS[kind]: name, camel(KINDS[kind]): camel(name)}
    try:
        with tempfile.TemporaryDirectory(prefix=".new_", dir=parent) as work:
            made = Path(work, name)
            shutil.copytree(TEMPLATES / kind, made, ignore=shutil.ignore_patterns(*NOT_COPIED))
            _rename(made, replaced)
            made.rename(folder)
    except OSError as error:
        raise UserError(f"new {kind} {name}: cannot be written ({error.strerror})") from error
    return folder


def unfit(name: str) -> str:
    """Why no package can have this name, or ""."""
    if not (name.isidentifier() and name.isascii() and name == name.lower()):
        return "must be a name for a Python package: a letter, then a-z, 0-9 and _"
    keywords = any(map(keyword.iskeyword, (name, camel(name))))
    if name.startswith("_") or keywords or name in sys.stdlib_module_names:
        return "is a word that Python uses itself"
    if name in VALUES:
        return "is a value on a command line, not a name"
    return ""


def taken(kind: str, name: str) -> str:
    """What has this name already, or ""."""
    if importlib.util.find_spec(name) is not None:
        return "is a module that Python finds already"
    if (cls := camel(name)) in _imported(TEMPLATES / kind / KINDS[kind] / "__init__.py"):
        return f"its class would be {cls}, which it imports"
    groups = choices_by_group()
    for group in _groups(TEMPLATES / kind, KINDS[kind]):
        if name in groups.get(group, ()):
            return f"{group}={name} exists already"
    return ""


def _imported(module: Path) -> set[str]:
    """The names that a module imports from others."""
    tree = ast.walk(ast.parse(module.read_text(encoding="utf-8")))
    found = (each.names for each in tree if isinstance(each, ast.ImportFrom))
    return {alias.name for names in found for alias in names}


def _groups(template: Path, name: str) -> Iterator[str]:
    """The config groups that a template adds a choice to."""
    conf = template / name / "conf"
    return (file.parent.relative_to(conf).as_posix() for file in sorted(conf.rglob("*.yaml")))


def camel(name: str) -> str:
    """The name of its class: my_dataset is MyDataset."""
    return "".join(word.capitalize() for word in name.split("_"))


def _rename(folder: Path, replaced: dict[str, str]) -> None:
    """Replace names in all texts, and in the names of files and folders."""
    for path in sorted(folder.rglob("*"), reverse=True):  # the content of a folder before itself
        if path.is_file():
            path.write_text(_replace(path.read_text(encoding="utf-8"), replaced), encoding="utf-8")
        path.rename(path.with_name(_replace(path.name, replaced)))


def _replace(text: str, replaced: dict[str, str]) -> str:
    for old, new in replaced.items():
        text = text.replace(old, new)
    return text
