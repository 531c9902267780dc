"""Which code computes a run, and whether the run at hand was made by other code than this.

python -m rec_experiments.runs.code [RUN_FOLDER]

The code is the modules that a number of a run can depend on, and the releases of the packages that
compute it. A module counts by its syntax tree, without comments, docstrings and layout.
docs/operations.md says what follows from a change. Nothing heavy is imported here.
"""

import ast
import functools
import hashlib
import json
import sys
from collections.abc import Iterable, Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import yaml

from rec_experiments.cache import Kept
from rec_experiments.errors import USER_ERROR, UserError, printable
from rec_experiments.runs.reading import read_object, unreadable

PACKAGE = Path(__file__).parent.parent
EQUIVALENT = Path(__file__).with_name("equivalent_code.yaml")
DIGITS, COMMIT_DIGITS = 16, 7

# What no number of a run depends on. A module that is not named here counts, a new one too.
LEFT_OUT = {
    "__main__, cli, command, commands, composition": "choose a configuration, which is in a run's "
    "identity",
    "algorithms, help, new, pages": "words, and packages to begin with",
    "sweeps": "chooses configurations, and the machines that run them",
    "claims, figures, regime, report, results, tune, watch": "read what runs have written",
    "evaluate, evaluation, export, runs, records.joining": "read what runs have saved",
    "plan": "says what a run would need",
    "api, check_data, composed": "choose a configuration, or no run goes through them",
    "display": "words and pictures",
    "errors": "words and exit codes",
    "files": "writes bytes as they are",
    "records.checkout, records.code, records.identity, records.provenance": "say which run it is "
    "and who made it",
    "cache, installed": "keeps what can be made again, and finds what it is made of",
    "hub": "says whether anything can be fetched",
    "records.metrics": "says what the numbers are",
    "records.tracking, records.local_tracking": "tells others what is in metrics.jsonl",
}

# Packages that compute in every run, and those of the pieces that compute with others besides.
PACKAGES = ("numpy", "torch", "transformers")
PACKAGES_OF = {
    ("model", "pretrained"): ("jinja2", "tokenizers"),
    ("sampler", "vllm"): ("vllm",),
    ("dataset", "math_problems"): ("datasets", "latex2sympy2_extended", "math-verify", "sympy"),
    ("dataset", "own_data"): ("datasets",),
    ("dataset", "reasoning_gym"): ("reasoning-gym",),
    ("dataset", "tool_calls"): ("datasets",),
}

STRANGE = "it holds something else than a run writes there"

Origin = dict[str, Any]  # of provenance.json; {} if there is none
Start = dict[str, Any]  # one of its starts


def current(config: dict[str, Any], extra: tuple[Path, ...] = ()) -> dict[str, Any]:
    """The code of a run with this resolved configuration, as its provenance keeps it.

    extra: packages, or single modules, from elsewhere that compute a part of the run.
    """
    others = (PACKAGES_OF.get((slot, _kind(piece)), ()) for slot, piece in config.items())
    names = sorted({*PACKAGES, *(name for found in others for name in found)})
    found = modules(extra)
    return {
        "digest": digest(found),
        "modules": found,
        "versions": {name: release(name) for name in names},
    }


@functools.cache
def modules(extra: tuple[Path, ...] = ()) -> dict[str, str]:
    """The digest of each module that counts: those of this package, and all of `extra`."""
    left_out = [f"{PACKAGE.name}.{name}" for names in LEFT_OUT for name in names.split(", ")]
    return {
        name: _digest_of(file.read_bytes())
        for root in (PACKAGE, *extra)
        for name, file in _files(root)
        if not any(f"{name}.".startswith(f"{each}.") for each in left_out)
    }


def _digest_of(source: bytes) -> str:
    """Of a module. It takes long to find, so it is kept by what the module and this one hold."""
    kept, key = _kept(), hashlib.sha256(source).hexdigest()
    if key not in kept.values:
        kept.add(key, _digest(normal_form(source.decode())))
    return kept.values[key]


@functools.cache
def _kept() -> Kept:
    return Kept("modules", _digest(Path(__file__).read_text(encoding="utf-8")))


@functools.cache
def own_digest(extra: tuple[Path, ...] = ()) -> str:
    """Of the code of this process, and of `extra`."""
    return digest(modules(extra))


def digest(found: dict[str, str]) -> str:
    """One digest of all modules."""
    return _digest(json.dumps(found, sort_keys=True))


def normal_form(source: str) -> str:
    """What a module computes: its syntax tree without comments, docstrings, layout and positions.

    The same for every Python from 3.11 to 3.13. Annotations stay: those of a dataclass are the
    configuration's types.
    """
    return _form(ast.parse(source))


@functools.cache  # slow to find out, and asked for each run that is read
def release(package: str) -> str | None:
    """Its version without what follows a +, which names the device that it was built for."""
    try:
        return version(package).partition("+")[0]
    except (PackageNotFoundError, ValueError):  # the name may be anybody's
        return None


def starts(origin: Origin) -> list[Start]:
    """Every start of a run. A provenance.json without a list of them is one, by unknown code."""
    return origin.get("starts", [{"from_step": 0, **origin}] if origin else [])


def is_sound(origin: Origin) -> bool:
    """Whether the starts of an origin are what a run writes, as far as they are read here."""
    found = starts(origin)
    return isinstance(found, list) and all(map(_is_start, found))


def _is_start(start: Any) -> bool:
    if not isinstance(start, dict) or not isinstance(start.get("from_step"), int):
        return False
    made = start.get("code", {"digest": "", "modules": {}, "versions": {}})
    return (
        isinstance(start.get("commit"), str | None)
        and isinstance(made, dict)
        and isinstance(made.get("digest"), str)
        and all(isinstance(made.get(key), dict) for key in ("modules", "versions"))
    )


def made_by(origin: Origin, extra: tuple[Path, ...] = ()) -> str:
    """Who made a run, or a part of it, if not this code alone: "other code (commit …, …)".

    "" if this code did, or code that is declared to compute the same, and where nothing is known of
    the run at all. A package that is not installed here is not compared.
    """
    makers = _makers(starts(origin))
    words = {_words(start, extra): "code" in start for start in makers if _differs(start, extra)}
    if not words:
        return ""
    kind = "other code" if any(words.values()) else "unknown code"
    in_part = any(not _differs(start, extra) for start in makers)
    return f"{kind}{' in part' if in_part else ''} ({'; '.join(words)})"


def different_modules(start: Start, extra: tuple[Path, ...] = ()) -> list[str]:
    """The modules that a start had otherwise, or that only one of the two has."""
    there, here = start["code"]["modules"], modules(extra)
    return sorted(name for name in there | here if there.get(name) != here.get(name))


def different_packages(start: Start) -> list[str]:
    """The packages that a start had in another release, each with that release."""
    found = ((name, was, release(name)) for name, was in start["code"]["versions"].items())
    return [f"{name} {was}" for name, was, now in found if now and now != was]


def equivalents(code: str, declared: Iterable[tuple[str, str]]) -> set[str]:
    """The digests that compute the same as `code`: declared pairs, either way, link by link."""
    links, found = [set(pair) for pair in declared], {code}
    while grown := {name for link in links if link & found for name in link} - found:
        found |= grown
    return found


@functools.cache
def declared(file: Path = EQUIVALENT) -> tuple[tuple[str, str], ...]:
    """The pairs of the list of equivalent code. Raises UserError for an entry that is not whole."""
    keys = ("code", "same_as", "why", "evidence")
    entries = yaml.safe_load(file.read_text(encoding="utf-8")) or []
    for entry in entries:
        if not (isinstance(entry, dict) and entry.keys() == set(keys) and all(entry.values())):
            raise UserError(f"{file.name}: {entry}: an entry must have {', '.join(keys)}")
    return tuple((str(entry["code"]), str(entry["same_as"])) for entry in entries)


def _makers(found: list[Start]) -> list[Start]:
    """The starts that rows are left of: a later one may have begun further back."""
    makers: list[Start] = []
    for start in reversed(found):
        if not makers or start["from_step"] < makers[0]["from_step"]:
            makers.insert(0, start)
    return makers


def _differs(start: Start, extra: tuple[Path, ...]) -> bool:
    if "code" not in start:
        return True
    same = equivalents(own_digest(extra), declared())
    return start["code"]["digest"] not in same or bool(different_packages(start))


def _words(start: Start, extra: tuple[Path, ...]) -> str:
    """As in: commit 1f0c7d2 with changes, 3 modules and torch 2.12.0 differ."""
    commit = f"commit {start['commit'][:COMMIT_DIGITS]}" if start.get("commit") else "no commit"
    origin = commit + (" with changes" if start.get("diff") else "")
    if "code" not in start:
        return origin
    count, packages = len(different_modules(start, extra)), different_packages(start)
    names = [f"{count} module{'s' * (count > 1)}"] * (count > 0) + packages
    return f"{origin}, {' and '.join(names)} differ{'s' * (count + len(packages) == 1)}"


def _files(root: Path) -> Iterator[tuple[str, Path]]:
    """Full name and file of each module of a package, or of the single module `root`."""
    for file in sorted(root.rglob("*.py")) if root.is_dir() else [root]:
        parts = file.relative_to(root.parent).with_suffix("").parts
        yield ".".join(parts[:-1] if parts[-1] == "__init__" else parts), file


def _form(node: Any) -> str:
    """Fields that are empty are left out: which of them there are depends on Python's version."""
    if isinstance(node, list):
        return f"[{','.join(_form(each) for each in node if not _is_idle(each))}]"
    if not isinstance(node, ast.AST):
        return ascii(node)
    if isinstance(node, ast.JoinedStr):  # Python 3.12 ends some with an empty string
        node = ast.JoinedStr([each for each in node.values if not _is_empty(each)])
    fields = ((name, _form(value)) for name, value in ast.iter_fields(node))
    kept = (f"{name}={form}" for name, form in fields if form not in ("None", "[]"))
    return f"{type(node).__name__}({','.join(kept)})"


def _is_idle(node: Any) -> bool:
    """A statement that computes nothing: a docstring, `...` or `pass`."""
    return isinstance(node, ast.Pass) or (
        isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    )


def _is_empty(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value == ""


def _kind(piece: Any) -> str:
    return piece.get("kind", "") if isinstance(piece, dict) else ""


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:DIGITS]


def main(arguments: list[str]) -> None:
    """Print this code's digests; of a run folder, who made it. Raises UserError if it is none."""
    if not arguments:
        here = digest(modules())
        print(f"{here}  the code")
        for same in sorted(equivalents(here, declared()) - {here}):
            print(f"{same}  computes the same, says {EQUIVALENT.name}")
        for name, each in modules().items():
            print(f"{each}  {name}")
        return
    file = Path(arguments[0]) / "provenance.json"
    if len(arguments) > 1 or not file.is_file():
        raise UserError(f"{' '.join(arguments)}: must be one run folder with a provenance.json")
    origin: Origin = read_object(file)
    if not is_sound(origin):
        raise unreadable(file, STRANGE)
    print(f"made by {made_by(origin) or 'this code'}")
    for start in _makers(starts(origin)):
        if "code" in start:
            for each in different_modules(start) + different_packages(start):
                print(f"  {each}")


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except UserError as error:
        print(f"error: {printable(str(error))}", file=sys.stderr)
        sys.exit(USER_ERROR)
