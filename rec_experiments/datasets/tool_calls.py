"""Requests that are answered by function calls: ToolACE, or your own rows in one of two formats.

ToolACE: `system` with the tools as a JSON list, `conversations` of {"from": …, "value": …} with
calls as `[function(argument=value, …)]`. Instruction: `instruction` as system prompt, `input`, and
`output` with the calls in a <tool_call> block. Only requests that are answered by calls at once are
kept: conversations with one user turn whose first reply is a call.
"""

import ast
import itertools
import json
import math
import re
import warnings
import zlib
from dataclasses import dataclass
from typing import Any

from rec_experiments.datasets.loading import Named, Row, Source, text_of
from rec_experiments.datasets.text import TextDataset, prompt
from rec_experiments.datasets.verifiers import tool_call
from rec_experiments.errors import UserError
from rec_experiments.types import Problem, VerifierResult

INSTRUCTION = ("instruction", "input", "output")

# What arguments are written with: texts, names before =, words of JSON and Python, numbers.
TOKEN = re.compile(
    r"""
      (?: [rRuU]? (?: \"{3} (?:\\.|[^\\])*? \"{3} | '{3} (?:\\.|[^\\])*? '{3}
                  | "(?:\\.|[^"\\\n])*+" | '(?:\\.|[^'\\\n])*+' ) )
    | [^\W\d]\w* (?= \s*= )
    | (?: True | False | None | true | false | null ) \b
    | -? \s*+ (?: \d[\w.]*+ (?: (?<=[eE]) [-+] \d++ )? | \.\d\w*+ )
    | [=,:()\[\]{}]
    | \s++
    """,
    re.VERBOSE | re.DOTALL,
)
OPENING, CLOSING = "([{", ")]}"
DEEPEST = 64  # brackets in brackets
STARTS = 100  # places where a list of tools may begin


@dataclass(kw_only=True)
class ToolCalls(TextDataset):
    """Raises ValueError for a number out of range or no hub name.

    path: a local file, or a folder that holds `source.file`; null for the hub. system_prompt: opens
    the prompt of a ToolACE row, followed by its tools. train_problems: at most, the first ones;
    null for all. held_out: one request in so many, by a hash of its text, is for evaluation.
    """

    path: str | None
    source: Source
    train_problems: int | None
    held_out: int

    def __post_init__(self) -> None:
        TextDataset.__post_init__(self)
        self.source.check("source", self.path)
        if self.train_problems is not None and self.train_problems < 1:
            raise ValueError(
                f"train_problems={self.train_problems}: must be at least 1, or null for all"
            )
        if self.held_out < 2:
            raise ValueError(f"held_out={self.held_out}: must be at least 2")

    def load(self) -> tuple[list[Problem], list[Problem]]:
        """Training and evaluation problems, in file order."""
        rows = self.source.read("source", self.path)
        problems = [p for p in (self.problem(named) for named in rows) if p is not None]
        sides: tuple[list[Problem], list[Problem]] = ([], [])
        for problem in problems:
            request = problem.messages[-1]["content"]
            sides[zlib.crc32(request.encode()) % self.held_out == 0].append(problem)
        train, evaluation = sides
        if not (train and evaluation):
            raise UserError(
                f"dataset.held_out={self.held_out}: leaves {len(train)} training and "
                f"{len(evaluation)} evaluation problems of {len(problems)} usable among "
                f"{len(rows)} rows; both must be at least 1"
            )
        return train[: self.train_problems], evaluation

    def verify(self, response: str, answer: str) -> VerifierResult:
        return tool_call.verify(response, answer)

    def describe(self) -> str:
        return self.path or str(self.source.hub)

    def problem(self, named: Named) -> Problem | None:
        """The problem of a row, or None for a row of another kind than asked for here.

        Raises UserError that names the row if it has the fields of neither format.
        """
        where, row = named
        if "conversations" in row:
            return self._toolace(where, row)
        system, request, output = (text_of(row, field, where) for field in INSTRUCTION)
        try:
            calls = tool_call.calls(output)
        except ValueError:  # it answers without a call
            return None
        return _problem(system, request, calls, output)

    def _toolace(self, where: str, row: Row) -> Problem | None:
        if not isinstance(row["conversations"], list):
            raise UserError(f"{where}: field 'conversations' is not a list")
        turns = range(len(row["conversations"]))
        speakers = [text_of(row, f"conversations.{i}.from", where) for i in turns]
        if speakers[:2] != ["user", "assistant"] or speakers.count("user") != 1:
            return None
        request, reply = (text_of(row, f"conversations.{i}.value", where) for i in (0, 1))
        tools, calls = tool_list(text_of(row, "system", where)), python_calls(reply)
        if tools is None or calls is None:
            return None
        solution = "\n".join([tool_call.OPEN, *calls, tool_call.CLOSE])
        return _problem(f"{self.system_prompt}\n{tools}", request, calls, solution)


def _problem(system: str, request: str, calls: list[str], solution: str) -> Problem:
    return Problem(prompt(system, request), answer=f"[{', '.join(calls)}]", solution=solution)


def tool_list(system: str) -> str | None:
    """The first JSON list of objects in a system prompt, as it stands there, or None."""
    for start in itertools.islice(re.finditer(r"\[\s*\{", system), STARTS):
        try:
            _, end = json.JSONDecoder().raw_decode(system, start.start())
        except (ValueError, RecursionError):
            continue
        return system[start.start() : end]
    return None


def python_calls(text: str) -> list[str] | None:
    """The calls of `[Get Weather(city="Rome", days=2), f()]` as canonical JSON, or None.

    A function's name may hold anything but an opening parenthesis. Its arguments are read as
    Python, never run: they must be named and literal; JSON's true, false and null count as such.
    """
    rest = text.strip()
    if not (rest.startswith("[") and rest.endswith("]")):
        return None
    calls = []
    rest = f",{rest[1:-1].strip()}"
    while rest.startswith(","):
        name, _, rest = rest[1:].partition("(")
        found = _arguments(rest)
        if found is None or not name.strip():
            return None
        arguments, rest = found
        calls.append(tool_call.dumps(name.strip(), arguments))
    return None if rest else calls


def _arguments(text: str) -> tuple[dict[str, Any], str] | None:
    """Arguments up to the parenthesis that ends them, and the text after it."""
    end = _end_of_arguments(text)
    if end is None:
        return None
    try:
        with warnings.catch_warnings(action="ignore"):  # of "\d" in a text
            call = ast.parse(f"f({text[:end]})", mode="eval").body
        return _keywords(call), text[end + 1 :].lstrip()
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _end_of_arguments(text: str) -> int | None:
    """Where the parenthesis stands that ends the arguments, if all before it is what literals and
    their names are written with.

    So what Python's parser is given is short of what would fill the memory: nothing deep, and none
    of its operators. The time is proportional to the text's length.
    """
    depth = place = 0
    while found := TOKEN.match(text, place):
        if found[0] in OPENING:
            depth += 1
        elif found[0] in CLOSING:
            if not depth:
                return place if found[0] == ")" else None
            depth -= 1
        if depth > DEEPEST:
            return None
        place = found.end()
    return None


def _keywords(call: ast.expr) -> dict[str, Any]:
    if not isinstance(call, ast.Call) or call.args:
        raise ValueError("arguments must have names")
    return tool_call.unique_keys(
        [(_name(word.arg), _literal(word.value)) for word in call.keywords]
    )


def _literal(node: ast.expr | None) -> Any:
    """The JSON value that an expression writes down. Raises ValueError for anything else."""
    match node:
        case ast.Constant(value=None | bool() | int() | str() as value):
            return value
        case ast.Constant(value=float(value)) if math.isfinite(value):
            return value
        case ast.Name(id="true" | "false" | "null" as word):
            return json.loads(word)
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float() as value)):
            return -value
        case ast.List(elts=items) | ast.Tuple(elts=items):
            return [_literal(item) for item in items]
        case ast.Dict(keys=keys, values=values):
            names = [_name(_literal(key)) for key in keys]
            return tool_call.unique_keys(
                [(n, _literal(value)) for n, value in zip(names, values, strict=True)]
            )
    raise ValueError("not a literal that JSON has")


def _name(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError("names must be texts")
    return value
