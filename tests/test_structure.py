"""Who may know the whole experiment: only what composes, prepares or reads a run. Everything below
(`training` and further down) is given the values it uses."""

import ast
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
