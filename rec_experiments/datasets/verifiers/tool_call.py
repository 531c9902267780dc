"""Strict verifier for function calls written as JSON: all calls right and nothing else, or 0.

Calls in the reasoning do not count: the answer is what follows `</think>`. It holds the
calls as one JSON list and nothing around it, or in one or several blocks <tool_call>…</tool_call>,
each with one or more JSON objects or one JSON list. A call is {"name": …, "arguments": {…}};
"parameters" may replace "arguments". Text around the blocks is free. A string of an argument may
hold these tags, and those of reasoning behind the first block.

Two calls are equal if their JSON values are: the order of an object's keys does not matter, the
order of a list does, and so does every type ("1", 1, true and null differ). JSON has one kind of
number, so 1.0 is 1. The order of the calls does not matter, their number does.

Scored 0: malformed JSON, a repeated key in an object, NaN and infinities, arguments that are no
object, other keys in a call, other text inside a block, a missing tag.
"""

import json
import re
from collections import Counter
from typing import Any

from rec_experiments.common.problems import VerifierResult
from rec_experiments.datasets.verifiers.marks import after_reasoning

OPEN, CLOSE = "<tool_call>", "</tool_call>"
ARGUMENTS = ("arguments", "parameters")


def verify(response: str, answer: str) -> VerifierResult:
    """Judge a response against the gold calls, a text that `dumps` made. 1 or 0."""
    try:
        correct = float(Counter(calls(response)) == Counter(_calls_of(_json(answer))))
    except (ValueError, RecursionError):  # malformed, or nested deeper than any call
        correct = 0.0
    return VerifierResult(reward=correct, accuracy=correct)


def calls(response: str) -> list[str]:
    """The calls of a response, each as canonical JSON. Raises ValueError if it breaks a rule."""
    answer = after_reasoning(response, quoting=OPEN)
    if answer is None:
        raise ValueError("the reasoning does not end")
    found: list[str] = []
    place, blocks = 0, 0
    while (start := answer.find(OPEN, place)) >= 0:
        _refuse_closing(answer[place:start])
        values, place = _block(answer, start + len(OPEN))
        found += _calls_of(values)
        blocks += 1
    _refuse_closing(answer[place:])
    if blocks:
        return found
    if not answer.lstrip().startswith("["):
        raise ValueError("neither a JSON list nor a <tool_call> block")
    return _calls_of(_json(answer))


def _block(text: str, place: int) -> tuple[list[Any], int]:
    """The JSON values of a block, those of its list if it holds one, and where the block ends."""
    values: list[Any] = []
    while not text.startswith(CLOSE, place := _skip_space(text, place)):
        value, place = _DECODER.raw_decode(text, place)
        values.append(value)
    inside = values[0] if len(values) == 1 and isinstance(values[0], list) else values
    return inside, place + len(CLOSE)


def _skip_space(text: str, place: int) -> int:
    found = _SPACE.match(text, place)
    return found.end() if found else place


def _refuse_closing(text: str) -> None:
    if CLOSE in text:
        raise ValueError("a <tool_call> block is closed that was not opened")


def dumps(name: str, arguments: dict[str, Any]) -> str:
    """One call as canonical JSON. Raises ValueError for a value that JSON does not have."""
    return json.dumps({"name": name, "arguments": arguments}, sort_keys=True, allow_nan=False)


def _calls_of(values: Any) -> list[str]:
    return [_call(value) for value in values]


def _call(value: Any) -> str:
    if not isinstance(value, dict) or len(value) != 2:
        raise ValueError("a call is an object with a name and arguments")
    arguments = next((value[key] for key in ARGUMENTS if key in value), None)
    name = value.get("name")
    if not isinstance(name, str) or not isinstance(arguments, dict):
        raise ValueError("a call's name is a text, its arguments are an object")
    return dumps(name, arguments)


def _json(text: str) -> Any:
    """Strict JSON, with whole floats as integers. Raises ValueError."""
    return _DECODER.decode(text.strip())


def _number(text: str) -> float | int:
    number = float(text)
    return int(number) if number.is_integer() else number


def unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """The object of these pairs. Raises ValueError if a key comes twice."""
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("an object has a key twice")
    return found


_SPACE = re.compile(r"\s*")
_DECODER = json.JSONDecoder(parse_float=_number, object_pairs_hook=unique_keys)
