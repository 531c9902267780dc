"""The strict verifier of function calls: a table of responses with the result each must get.

1. Values: JSON equality with types, deep, whatever the order of keys.
2. Calls: a multiset; a missing, extra, misnamed or misbuilt call scores 0.
3. Texts: two forms are accepted, in any layout; anything around, between or broken is not.
"""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rec_experiments.datasets.verifiers import tool_call

Call = dict[str, Any]

# 1. Values of one argument, as JSON texts: gold, response.

SAME_VALUES = [
    ("1", "1"),
    ("1", "1.0"),
    ("0.5", "5e-1"),
    ("123456789012345678901", "123456789012345678901"),
    ('"é"', '"\\u00e9"'),
    ('{"a": {"x": 1, "y": [{"p": 1, "q": 2}]}}', '{"a": {"y": [{"q": 2, "p": 1}], "x": 1}}'),
    ('[{"a": 1, "b": null}]', '[{"b": null, "a": 1.0}]'),
]
DIFFERENT_VALUES = [
    ("1", "1.0000001"),
    ("123456789012345678901", "123456789012345678902"),
    ("1", '"1"'),
    ("1", "true"),
    ("true", "1"),
    ("null", "0"),
    ("[]", "{}"),
    ('"Rome"', '"rome"'),
    ('"Rome"', '"Rome "'),
    ('"é"', '"e\\u0301"'),
    ("[1, 2]", "[2, 1]"),
    ('{"a": 1}', '{"a": 1, "b": 2}'),
    ('{"a": 1}', '"{\\"a\\": 1}"'),
    ('{"a": {"b": 1}, "c": 2}', '{"a": {"c": 2}, "b": 1}'),
]
BROKEN_VALUES = [  # each with the value that a lax reader would take it for
    ("0", "NaN"),
    ("0", "1e999"),
    ("1", "01"),
    ("1000", "1,000"),
    ("null", "None"),
    ('"a"', "'a'"),
    ('"\\t"', '"\t"'),
    ("[1]", "[1,]"),
    ('{"a": 1}', '{"a": 1, "a": 2}'),
    ('{"b": {"a": 1}}', '{"b": {"a": 1, "a": 1}}'),
    ('[{"a": 1}]', '[{"a": 1, "\\u0061": 1}]'),
    ("1", "1 // one"),
    ("9", "9" * 5000),
    ("1", '1, "x": 1'),
]


def one_argument(value: str) -> str:
    return f'[{{"name": "f", "arguments": {{"x": {value}}}}}]'


VALUES = (
    [(one_argument(gold), one_argument(text), 1) for gold, text in SAME_VALUES]
    + [(one_argument(gold), one_argument(text), 0) for gold, text in DIFFERENT_VALUES]
    + [(one_argument(gold), one_argument(text), 0) for gold, text in BROKEN_VALUES]
)


# 2. Lists of calls: gold, response.


def f(name: str = "f", **arguments: Any) -> Call:
    return {"name": name, "arguments": arguments}


SAME_CALLS = [
    ([f(a=1, b=2)], [f(b=2, a=1)]),
    ([f("Get Weather/v2", city="Rome")], [f("Get Weather/v2", city="Rome")]),
    ([f(a=1), f(a=2), f(a=3)], [f(a=3), f(a=1), f(a=2)]),
    ([f(a=1), f(a=1), f("g")], [f(a=1), f("g"), f(a=1.0)]),
    ([f(a=1)], [{"arguments": {"a": 1}, "name": "f"}]),
    ([f(a=1)], [{"name": "f", "parameters": {"a": 1}}]),
    ([f(a=1), f("g")], [{"name": "f", "parameters": {"a": 1}}, f("g")]),
]
DIFFERENT_CALLS = [
    ([f()], []),
    ([f()], [f("F")]),
    ([f(a=1)], [f(b=1)]),
    ([f(a=1)], [f(a=1, b=None)]),
    ([f(a=None)], [f()]),
    ([f(a=1), f("g")], [f(), f("g", a=1)]),
    ([f(a=1), f(a=1), f("g")], [f(a=1), f("g"), f("g")]),
    ([f(a=1), f(b=2)], [f(a=1, b=2)]),
]
MISBUILT = [
    {"arguments": {"a": 1}},
    {"name": "f", "arguments": {"a": 1}, "id": 1},
    {"name": "f", "arguments": {"a": 1}, "parameters": {"a": 1}},
    {"name": "f", "arguments": '{"a": 1}'},
    {"name": "f", "arguments": None},
    {"name": ["f"], "arguments": {"a": 1}},
    {"type": "function", "function": {"name": "f", "arguments": {"a": 1}}},
    [f(a=1)],
]
CALLS = [
    (json.dumps(gold), json.dumps(response), result)
    for pairs, result in ((SAME_CALLS, 1), (DIFFERENT_CALLS, 0))
    for gold, response in pairs
] + [(json.dumps([f(a=1)]), json.dumps([call]), 0) for call in MISBUILT]


# 3. Texts that hold two right calls, CALLS being a JSON list and LINES one object a line.

RIGHT_CALLS = [f(city="Rome", days=2), f("g", x=["<tool>", {"y": None}])]
ONE, TWO = (json.dumps(call) for call in RIGHT_CALLS)

GOOD_TEXTS = [
    "[ONE, TWO]",
    "<tool_call>\nONE\nTWO\n</tool_call>",
    "<tool_call>\n\n  ONE  \n\n\tTWO\r\n</tool_call>\n",
    "<tool_call>\n[\n  TWO,\n  ONE\n]\n</tool_call>",
    "<think>Rome it is.</think>\n<tool_call>\nONE\nTWO\n</tool_call>",
    "<think>not <tool_call>ONE</tool_call></think><tool_call>\nONE\nTWO\n</tool_call>",
    "<think>a <tool_call> block</think>\n[ONE, TWO]",
    "<think>[] or [ONE]?</think>[ONE, TWO]",
    "no opening</think>[ONE, TWO]",
    "I call two.\n<tool_call>\nONE\nTWO\n</tool_call>",
    "<tool_call>\nONE\nTWO\n</tool_call>\n<response> Done. </response>",
    "<tool_call>\nONE\n</tool_call>\n<tool_call>\nTWO\n</tool_call>",
    "First: <tool_call>ONE</tool_call> then <tool_call>[TWO]</tool_call>",
    f"<tool_call>{ONE.replace('{', '{ ')} {TWO.replace(', ', ',  ')}</tool_call>".replace(
        " ", "\n"
    ),
]
BAD_TEXTS = [
    '[{"name": "g", "name": "f", "arguments": {"city": "Rome", "days": 2}}, TWO]',
    "",
    "[]",
    "ONE\nTWO",
    "[ONE]",
    "[ONE, TWO] Done.",
    "```json\n[ONE, TWO]\n```",
    '{"calls": [ONE, TWO]}',
    "[f(city='Rome', days=2), g(x=['<tool>', {'y': None}])]",
    "<think>[ONE, TWO]</think>",
    "<think>Maybe <tool_call>\nONE\nTWO\n</tool_call>",
    "[ONE, TWO]</think>",
    "<think><tool_call>\nONE\nTWO\n</tool_call>\n</think>",
    "ONE\nTWO\n</tool_call>",
    "</tool_call>\nONE\nTWO\n<tool_call>",
    "<tool_call>\nONE\nTWO\nDone.\n</tool_call>",
    "<tool_call>\n[ONE]\n[TWO]\n</tool_call>",
    "<tool_call>\n```json\nONE\nTWO\n```\n</tool_call>",
    "<tool_call>\nONE\nTWO\n</tool_call>\n<tool_call>\nONE\nTWO\n</tool_call>",
    "<tool_call><tool_call>\nONE\nTWO\n</tool_call>",
    "<TOOL_CALL>\nONE\nTWO\n</TOOL_CALL>",
    "[" * 100_000,
    '{"a":' * 100_000,
    "<tool_call>" * 100_000,  # in linear time
]


def filled(text: str) -> str:
    return text.replace("ONE", ONE).replace("TWO", TWO)


TEXTS = [
    (json.dumps(RIGHT_CALLS), filled(text), result)
    for texts, result in ((GOOD_TEXTS, 1), (BAD_TEXTS, 0))
    for text in texts
]

TABLE = VALUES + CALLS + TEXTS


def test_table() -> None:
    for gold, response, result in TABLE:
        found = tool_call.verify(response, gold)
        assert (found.accuracy, found.reward) == (result, result), response[:200]


# Properties


ARGUMENTS = st.dictionaries(
    st.text(max_size=3),
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
        max_leaves=6,
    ),
    max_size=4,
)


@given(calls=st.lists(ARGUMENTS, min_size=1, max_size=4), data=st.data())
def test_any_calls_in_any_order_equal_themselves_and_no_fewer(calls: list, data: Any) -> None:
    special = ("Infinity", "</think>", tool_call.OPEN, tool_call.CLOSE)  # wherever they stand
    plain = [a for a in calls if not any(text in json.dumps(a) for text in special)]
    gold = [f"call {i}" for i in range(len(plain))]
    lines = [tool_call.dumps(name, a) for name, a in zip(gold, plain, strict=True)]
    answer, shuffled = f"[{', '.join(lines)}]", data.draw(st.permutations(lines))
    assert tool_call.verify(f"[{', '.join(shuffled)}]", answer).accuracy == 1
    if len(lines) > 1:
        fewer = "\n".join(shuffled[1:])
        assert tool_call.verify(f"<tool_call>{fewer}</tool_call>", answer).accuracy == 0


@given(st.text(alphabet='[]{}",:<>/tolca_nme1 \n\\', max_size=60))
def test_no_text_makes_it_raise(text: str) -> None:
    assert tool_call.verify(text, json.dumps([f(a=1)])).accuracy == 0


@pytest.mark.parametrize("tags", ["</tool_call><tool_call>", "<think>", "</think>", "</answer>"])
def test_arguments_may_hold_the_tags(tags: str) -> None:
    code = tool_call.dumps("write", {"text": f"a {tags} b"})
    response = f"{tool_call.OPEN}\n{code}\n{tool_call.CLOSE}"
    for before in ("", "<think>Or <tool_call>{}</tool_call>?</think>"):
        assert tool_call.verify(f"{before}{response}", f"[{code}]").accuracy == 1
        assert tool_call.verify(f"{before}{response}", f"[{ONE}]").accuracy == 0
    assert tool_call.verify(f"<think>{response}", f"[{code}]").accuracy == 0
    assert tool_call.verify(f"<think>{response}</think>", f"[{code}]").accuracy == 0
