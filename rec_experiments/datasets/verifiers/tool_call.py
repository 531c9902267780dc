"""Strict verifier for function calls written as JSON: all calls right and nothing else, or 0.

The answer is what follows the last `</think>`, or the whole response without one. It holds the
calls either as one JSON list and nothing around it, or in one block <tool_call>…</tool_call>: there
one JSON object a line, or one JSON list. A call is {"name": …, "arguments": {…}}; "parameters" may
stand for "arguments". Text around the block is free, a second tag is not.

Two calls are equal if their JSON values are: the order of an object's keys does not matter, the
order of a list does, and so does every type ("1", 1, true and null differ). JSON has one kind of
number, so 1.0 is 1. The order of the calls does not matter, their number does.

Refused, so scored 0: malformed JSON, a key twice in an object, NaN and infinities, arguments that
are no object, other keys in a call, text beside the calls inside the block, a missing tag.
"""

import json
from collections import Counter
from typing import Any

from rec_experiments.types import VerifierResult

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
    answer = response.rpartition("</think>")[2].strip()
    if OPEN not in answer and CLOSE not in answer:
        if not answer.startswith("["):
            raise ValueError("neither a JSON list nor a <tool_call> block")
        return _calls_of(_json(answer))
    if answer.count(OPEN) != 1 or answer.count(CLOSE) != 1:
        raise ValueError("not one <tool_call> block")
    block = answer.partition(OPEN)[2].partition(CLOSE)[0].strip()
    if block.startswith("["):
        return _calls_of(_json(block))
    return _calls_of([_json(line) for line in block.split("\n") if line.strip()])


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
    return json.loads(text, parse_float=_number, object_pairs_hook=unique_keys)


def _number(text: str) -> float | int:
    number = float(text)
    return int(number) if number.is_integer() else number


def unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """The object of these pairs. Raises ValueError if a key comes twice."""
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a key stands twice in an object")
    return found
