"""How many random faults the tests notice: python tests/mutants.py PACKAGE [--count 20] [--seed 0]

Draws mutants of rec_experiments/PACKAGE (a folder or a module): one operator, comparison, sign,
constant or truth value changed, or one statement dropped, inside a function. Each runs in a forked
process against the tests that reach its line, those that reach the fewest lines first, and prints
whether one of them failed. Survivors are printed with their change: read them, since some change no
behaviour. Which tests reach a line is measured once for each state of the code, by the tests that
`make test` runs (--fast: those of `make test-fast`), and kept in .mutants/.
"""

import argparse
import ast
import contextlib
import copy
import hashlib
import importlib
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import coverage

ROOT = Path(__file__).parents[1]
KEPT = ROOT / ".mutants"
COPIED = ("rec_experiments", "tests", "conf", "sweeps", "docs", "notebooks", "examples")
HEAVY = (
    "datasets", "hydra", "hypothesis", "matplotlib.pyplot", "pandas", "pytest", "scipy.stats",
    "transformers",
)  # fmt: skip
LIMIT = 240  # seconds of one mutant; then it is undecided
MOST_TESTS = 150  # of one mutant
OPERATORS = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult, ast.Mod: ast.FloorDiv, ast.Pow: ast.Mult,
    ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd,
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq, ast.In: ast.NotIn, ast.NotIn: ast.In, ast.Is: ast.IsNot, ast.IsNot: ast.Is,
    ast.And: ast.Or, ast.Or: ast.And,
}  # fmt: skip


@dataclass(frozen=True)
class Mutant:
    """file: relative to the project. node: what changes. text: what takes its place."""

    file: str
    node: ast.expr | ast.stmt
    text: str

    @property
    def change(self) -> str:
        before, after = ast.unparse(self.node).splitlines()[0], self.text.splitlines()[0]
        return f"{before}  ->  {after}"

    def applied(self, source: bytes) -> bytes:
        """The source of the file with this change; all other characters stay."""
        lines = source.splitlines(keepends=True)
        start = sum(map(len, lines[: self.node.lineno - 1])) + self.node.col_offset
        end = sum(map(len, lines[: self.node.end_lineno - 1])) + self.node.end_col_offset
        return source[:start] + self.text.encode() + source[end:]


def mutants(file: Path) -> Iterator[Mutant]:
    """All mutants of a file."""
    tree = ast.parse(file.read_text())
    inside: set[ast.AST] = set()
    left_out: set[ast.AST] = set()  # positions within f-strings are wrong in Python 3.11
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            inside |= {part for statement in node.body for part in ast.walk(statement)}
        if isinstance(node, ast.JoinedStr):
            left_out |= set(ast.walk(node))
    for node in ast.walk(tree):
        if node in inside - left_out:
            for changed, text in _changes(node):
                yield Mutant(str(file.relative_to(ROOT)), changed, text)


def _changes(node: ast.AST) -> Iterator[tuple[Any, str]]:
    """What may change at a node, and the text that takes its place."""

    def other(**fields: Any) -> str:
        changed = copy.copy(node)
        for name, value in fields.items():
            setattr(changed, name, value)
        text = ast.unparse(changed)
        return f"({text})" if isinstance(node, ast.expr) else text

    match node:
        case ast.BinOp(op=op) | ast.BoolOp(op=op) | ast.AugAssign(op=op) if type(op) in OPERATORS:
            yield node, other(op=OPERATORS[type(op)]())
        case ast.Compare(ops=[op]) if type(op) in OPERATORS:
            yield node, other(ops=[OPERATORS[type(op)]()])
        case ast.UnaryOp(op=ast.USub() | ast.Not(), operand=operand):
            yield node, f"({ast.unparse(operand)})"
        case ast.Constant(value=bool(value)):
            yield node, str(not value)
        case ast.Constant(value=int() | float() as value):
            yield node, repr(value + 1)
        case ast.If(test=test) | ast.IfExp(test=test):
            yield test, f"(not ({ast.unparse(test)}))"
        case ast.Expr(value=ast.Call()):
            yield node, "pass"


def reached(fast: bool, files: list[str]) -> dict[tuple[str, int], list[str]]:
    """(file, line) to the tests that reach it, those that reach the fewest lines first."""
    code = sorted(ROOT.glob("rec_experiments/**/*.py")) + sorted(ROOT.glob("tests/**/*.py"))
    content = b"".join(file.read_bytes() for file in code) + " ".join(files).encode()
    digest = hashlib.sha256(content).hexdigest()[:12]
    data = KEPT / f"{'fast' if fast else 'all'}_{digest}.coverage"
    if not data.exists():
        print("measuring once which tests reach which lines", flush=True)
        KEPT.mkdir(exist_ok=True)
        command = [
            sys.executable, "-m", "pytest", "-q", "-n", "2", "--dist", "loadscope",
            "--cov=rec_experiments", "--cov-context=test", "--cov-report=", *files,
        ]  # fmt: skip
        found = {**os.environ, "COVERAGE_FILE": str(data.with_suffix(".part"))}
        subprocess.run(command, cwd=ROOT, env=found, check=False)
        data.with_suffix(".part").rename(data)
    found = coverage.CoverageData(str(data))
    found.read()
    lines: dict[tuple[str, int], set[str]] = defaultdict(set)
    for file in found.measured_files():
        name = str(Path(file).relative_to(ROOT))
        for line, contexts in found.contexts_by_lineno(file).items():
            lines[name, line] |= {each.partition("|")[0] for each in contexts if each}
    size = Counter(test for tests in lines.values() for test in tests)
    return {place: sorted(tests, key=lambda t: (size[t], t)) for place, tests in lines.items()}


def verdict(mutant: Mutant, tests: list[str], folder: Path) -> tuple[str, float]:
    """killed, survived or undecided, and the seconds it took."""
    target = folder / mutant.file
    original = target.read_bytes()
    target.write_bytes(mutant.applied(original))
    started = time.monotonic()
    child = os.fork()
    if child == 0:
        os.setsid()
        _run(tests, folder)
    status = None
    while status is None and time.monotonic() - started < LIMIT:
        time.sleep(0.05)
        status = os.waitpid(child, os.WNOHANG)[1] if _ended(child) else None
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child, signal.SIGKILL)
    if status is None:
        with contextlib.suppress(ChildProcessError):
            os.waitpid(child, 0)
    target.write_bytes(original)
    word = "undecided" if status is None else "survived" if status == 0 else "killed"
    return word, time.monotonic() - started


def _ended(child: int) -> bool:
    found = os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    return found is not None


def _run(tests: list[str], folder: Path) -> None:
    """Run some tests in this process, which is a fork, and end it."""
    os.chdir(folder)
    with open(os.devnull, "w") as nothing:
        os.dup2(nothing.fileno(), 1)
        os.dup2(nothing.fileno(), 2)
    os.environ["PYTHONPATH"] = str(folder)
    sys.path[:0] = [str(folder)]
    import pytest

    code = 1
    try:
        code = pytest.main(["-x", "-q", "-p", "no:cacheprovider", "-m", "", *tests])
    finally:
        os._exit(int(code))


def copied() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="mutants_"))
    for name in COPIED:
        if (ROOT / name).exists():
            shutil.copytree(ROOT / name, folder / name, symlinks=True)
    for file in (*ROOT.glob("*.toml"), *ROOT.glob("*.txt"), *ROOT.glob("*.md"), ROOT / "Makefile"):
        shutil.copy(file, folder)
    return folder


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("package", help="a folder or module of rec_experiments, as algo")
    parser.add_argument("--count", type=int, default=20, help="number of mutants")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--fast", nargs="*", default=[], help="the files of make test-fast")
    chosen = parser.parse_args()
    place = ROOT / "rec_experiments" / chosen.package
    files = sorted(place.rglob("*.py")) if place.is_dir() else [place.with_suffix(".py")]
    tests_of = reached(bool(chosen.fast), chosen.fast)
    drawn = [mutant for file in files for mutant in mutants(file)]
    random.Random(chosen.seed).shuffle(drawn)
    for name in HEAVY:  # imported once, here; the process of each mutant begins with them
        importlib.import_module(name)
    import torch

    torch.set_num_threads(1)
    folder = copied()
    found: Counter[str] = Counter()
    try:
        for mutant in drawn[: chosen.count]:
            tests = tests_of.get((mutant.file, mutant.node.lineno), [])[:MOST_TESTS]
            word, seconds = verdict(mutant, tests, folder) if tests else ("survived", 0.0)
            found[word] += 1
            note = f"{len(tests)} tests, {seconds:.0f} s" if tests else "no test reaches it"
            print(
                f"{word:9} {mutant.file}:{mutant.node.lineno}  {mutant.change}  ({note})",
                flush=True,
            )
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    print(f"{chosen.package}: {found['killed']} of {sum(found.values())} killed, {dict(found)}")


if __name__ == "__main__":
    main()
