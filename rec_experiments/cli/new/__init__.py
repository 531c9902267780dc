"""`python -m rec_experiments new`: write a package of your own to begin with.

Beside this file stands one whole package of each kind. A new one is its copy under another name.
"""

import ast
import importlib.util
import keyword
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from rec_experiments.cli import command, help
from rec_experiments.config.composition import choices_by_group
from rec_experiments.errors import UserError

TEMPLATES = Path(__file__).parent
KINDS = {"algorithm": "my_algorithm", "task": "my_task"}  # and the name in its template
# Words that Hydra or YAML reads as no text.
VALUES = ("false", "inf", "nan", "no", "null", "off", "on", "true", "yes")
NOT_COPIED = ("__pycache__", "*.pyc", ".*")
PAGE = help.Page(
    command="new",
    usage=("algorithm NAME", "task NAME"),
    about="Writes a small package of your own into the folder NAME: it works as it stands, and is "
    "to be changed. Installed beside this project (pip install ./NAME), its parts are chosen, "
    "swept and listed as the project's own.",
    entries={
        "algorithm": "a piece of a loss, a preset, a test against a closed form, and a sweep "
        "against GRPO and REC at three stalenesses",
        "task": "problems, a verifier and demonstrations of your own, with a test",
        "NAME": "of the package, its folder, and what it adds",
    },
)


def create(kind: str, name: str, parent: Path) -> Path:
    """A package in the folder `parent`/`name`, whole or not at all. Returns the folder.

    Raises UserError for a kind that there is not, a name that no package can have or another thing
    has, and a folder that is there or cannot be written.
    """
    if kind not in KINDS:
        raise UserError(f"new {kind}: no such kind; allowed: {', '.join(KINDS)}")
    folder = parent / name
    if reason := unfit(name) or ("is there already" if folder.exists() else taken(kind, name)):
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
        return "is a word of Python's own"
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
            return f"{group}={name} is there already"
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
    """As a class is called: my_task is MyTask."""
    return "".join(word.capitalize() for word in name.split("_"))


def _rename(folder: Path, replaced: dict[str, str]) -> None:
    """Put other names for some, in all texts and in the names of files and folders."""
    for path in sorted(folder.rglob("*"), reverse=True):  # what is in a folder before the folder
        if path.is_file():
            path.write_text(_replace(path.read_text(encoding="utf-8"), replaced), encoding="utf-8")
        path.rename(path.with_name(_replace(path.name, replaced)))


def _replace(text: str, replaced: dict[str, str]) -> str:
    for old, new in replaced.items():
        text = text.replace(old, new)
    return text


def run(arguments: list[str]) -> None:
    """Raises UserError for a wrong argument, and as `create` does."""
    line = command.parse(arguments)
    for override in line.overrides:
        raise UserError(f"{override}: is not understood; allowed: {'|'.join(KINDS)} NAME")
    match line.words:
        case [kind, name]:
            folder = create(kind, name, Path.cwd())
        case _:
            words = " ".join(["new", *line.words])
            raise UserError(f"{words}: a kind and a name are wanted, as in new algorithm my_idea")
    print((folder / "README.md").read_text(encoding="utf-8"), end="")


def main(arguments: list[str]) -> None:
    command.plain_main(run, PAGE, arguments)
