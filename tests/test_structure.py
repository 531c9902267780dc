"""The structure of the package.

1. Only what composes, prepares or reads a run may know the whole experiment. Everything below
   (`training` and further down) is given the values it uses.
2. What docs/architecture.md names is there.
"""

import ast
import pkgutil
import re
from pathlib import Path

import pytest

import rec_experiments

PACKAGE = Path(rec_experiments.__file__).parent
ALLOWED = {"config", "runs", "plan", "sweeps", "cli", "analysis"}


def knows_experiment(source: str) -> list[str]:
    """Names of the functions that take an `Experiment`."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            given = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
            notes = [ast.unparse(each.annotation) for each in given if each.annotation]
            if any("Experiment" in note for note in notes):
                found.append(node.name)
    return found


@pytest.mark.parametrize(
    "room", sorted({p.parent.name for p in PACKAGE.glob("*/__init__.py")} - ALLOWED)
)
def test_no_function_takes_the_experiment(room):
    found = {
        str(file.relative_to(PACKAGE)): names
        for file in (PACKAGE / room).rglob("*.py")
        if (names := knows_experiment(file.read_text()))
    }
    assert found == {}


def test_the_check_sees_one():
    assert knows_experiment("def f(x: int, *, e: 'Experiment | None'): ...") == ["f"]


PAGE = (PACKAGE.parent / "docs" / "architecture.md").read_text()
ROOMS = "|".join([*(p.parent.name for p in PACKAGE.glob("*/__init__.py")), "conf", "tests"])
MODULES = "|".join(p.stem for p in PACKAGE.glob("[a-z]*.py"))


def exists(name: str) -> bool:
    """Whether a name is a file or folder, or a module, or what a module holds."""
    places = [root / name for root in (PACKAGE, PACKAGE.parent)]
    if any(place.exists() or Path(f"{place}.py").exists() for place in places):
        return True
    try:
        pkgutil.resolve_name(f"rec_experiments.{name.replace('/', '.')}")
    except (ImportError, AttributeError):
        return False
    return True


@pytest.mark.parametrize(
    "name",
    sorted({
        *re.findall(rf"\b(?:{ROOMS})/[\w/]*\w(?:\.\w+)*", PAGE),
        *re.findall(rf"`((?:{ROOMS}|{MODULES})\.\w+(?:\.\w+)*)", PAGE),
    }),
)  # fmt: skip
def test_the_architecture_page_names_what_exists(name):
    assert exists(name)


def test_a_name_that_is_gone_does_not_exist():
    assert exists("rollout/schedule.Schedule")
    assert not exists("rollout/schedule.Nothing")
    assert not exists("rollout/nothing")
