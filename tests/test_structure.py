"""Only what composes, prepares or reads a run knows the whole experiment.

Everything below (`training` and further down) is given the values that it uses.
"""

import ast
from pathlib import Path

import rec_experiments

PACKAGE = Path(rec_experiments.__file__).parent
ALLOWED = {"config", "runs", "plan", "sweeps", "cli", "analysis"}


def takes_experiment(source: str) -> list[str]:
    """Return the names of the functions that take an `Experiment`."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            given = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
            notes = [ast.unparse(each.annotation) for each in given if each.annotation]
            if any("Experiment" in note for note in notes):
                found.append(node.name)
    return found


def test_no_function_below_the_runs_takes_the_experiment():
    assert takes_experiment("def f(x: int, *, e: 'Experiment | None'): ...") == ["f"]
    files = [
        file for file in PACKAGE.rglob("*.py") if file.relative_to(PACKAGE).parts[0] not in ALLOWED
    ]
    assert len(files) > 50
    assert [str(file) for file in files if takes_experiment(file.read_text())] == []
