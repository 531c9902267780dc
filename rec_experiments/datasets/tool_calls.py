"""Requests whose answer is function calls: ToolACE, or your own rows in one of two formats.

ToolACE: `system` with the tools as a JSON list, `conversations` of {"from": …, "value": …} with
calls as `[function(argument=value, …)]`. Instruction: `instruction` as system prompt, `input`, and
`output` with the calls in a <tool_call> block. Conversations with several user turns and replies
without calls are skipped.
"""

import ast
import itertools
import json
import math
import re
import warnings
from typing import Annotated, Any

from pydantic import Field, PositiveInt

from rec_experiments.common.errors import UserError
from rec_experiments.common.problems import Problem, VerifierResult
from rec_experiments.datasets.loading import Located, Row, Source, text_of
from rec_experiments.datasets.text import TextDataset, prompt, split
from rec_experiments.datasets.verifiers import tool_call

INSTRUCTION = ("instruction", "input", "output")
LONGEST = 10_000  # characters of a reply; Python's parser can exhaust the memory on long texts
ENDS = 1000  # closing parentheses to try as the end of a call's arguments
STARTS = 100  # places to try as the start of a list of tools


class ToolCalls(TextDataset):
    """Raises ValueError for a number out of range or a wrong hub name.

    path: a local file, a folder with `source.file`, or null for the hub. system_prompt: of a
    ToolACE row, followed by the row's tools. train_problems: use only the first ones; null for all.
    held_out: one request in `held_out`, chosen by a hash of its text, is an evaluation problem.
    """

    path: str | None
    source: Source
    train_problems: PositiveInt | None
    held_out: Annotated[int, Field(ge=2)]

    def __post_init__(self) -> None:
        self.source.check("source", self.path)

    def load(self) -> tuple[list[Problem], list[Problem]]:
        """Training and evaluation problems, in file order."""
        rows = self.source.read("source", self.path)
        problems = [problem for problem in map(self.problem, rows) if problem is not None]
        requests = ((problem.messages[-1]["content"], problem) for problem in problems)
        train, evaluation = split(requests, (len(problems), len(problems)), self.held_out)
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

    def problem(self, located: Located) -> Problem | None:
        """The problem of a row, or None for a row to skip.

        Raises UserError that names the place of a row without the fields of either format.
        """
        where, row = located
        if "conversations" in row:
            return self._toolace(where, row)
        system, request, output = (text_of(row, field, where) for field in INSTRUCTION)
        try:
            calls = tool_call.calls(output)
        except ValueError:  # no call
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
    """The text of the first JSON list of objects in a system prompt, or None."""
    for start in itertools.islice(re.finditer(r"\[\s*\{", system), STARTS):
        try:
            _, end = json.JSONDecoder().raw_decode(system, start.start())
        except (ValueError, RecursionError):
            continue
        return system[start.start() : end]
    return None


def python_calls(text: str) -> list[str] | None:
    """The calls of `[Get Weather(city="Rome", days=2), f()]` as canonical JSON, or None.

    A function's name may contain anything but an opening parenthesis. Its arguments are parsed as
    Python, never run: they must be named literals, which may use JSON's true, false and null.
    """
    rest = text.strip()
    if not (rest.startswith("[") and rest.endswith("]")) or len(rest) > LONGEST:
        return None
    calls = []
    rest = f",{rest[1:-1].strip()}"
    while rest.startswith(","):
        name, _, rest = rest[1:].partition("(")
        call, rest = _parsed(rest)
        try:
            calls.append(tool_call.dumps(name.strip(), _keywords(call)))
        except ValueError:
            return None
        if not name.strip():
            return None
    return None if rest else calls


def _parsed(text: str) -> tuple[ast.expr | None, str]:
    """The syntax tree of arguments up to the parenthesis that closes them, and the text after it.

    It is the first parenthesis before which the text parses: earlier ones are nested or quoted.
    """
    for close in itertools.islice(re.finditer(r"\)", text), ENDS):
        try:
            with warnings.catch_warnings(action="ignore"):  # of "\d" in a text
                call = ast.parse(f"f({text[: close.start()]})", mode="eval").body
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            continue
        return call, text[close.end() :].lstrip()
    return None, ""


def _keywords(call: ast.expr | None) -> dict[str, Any]:
    """The arguments of a call. Raises ValueError if one has no name or is no literal."""
    if not isinstance(call, ast.Call) or call.args:
        raise ValueError("arguments must have names")
    return tool_call.unique_keys(
        [(_name(word.arg), _literal(word.value)) for word in call.keywords]
    )


def _literal(node: ast.expr | None) -> Any:
    """The JSON value of a literal. Raises ValueError for any other expression."""
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
    raise ValueError("not a JSON literal")


def _name(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError("names must be texts")
    return value
