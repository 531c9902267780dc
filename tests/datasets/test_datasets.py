"""Data sets that are read from files, and what all data sets share.

1. A YAML file and one class define a math data set: any local format, nested fields, a filter.
2. Tool calls load from ToolACE rows and instruction rows; Python calls are parsed, never run.
3. Generated problems are split by a hash of their texts; long prompts are refused or dropped.
4. In the real files, found through REC_DATA, every gold answer scores.
"""

import dataclasses
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import datasets
import pyarrow as pa
import pytest
from conftest import experiment
from pyarrow import parquet

from rec_experiments.cli.check import check_gold
from rec_experiments.common.errors import UserError
from rec_experiments.common.problems import Problem
from rec_experiments.datasets.loading import text_of
from rec_experiments.datasets.math_problems import MathProblems, gold_answer
from rec_experiments.datasets.text import GeneratedDataset
from rec_experiments.datasets.tool_calls import ToolCalls, python_calls, tool_list
from rec_experiments.datasets.verifiers.verifier_pool import inline_verifier
from rec_experiments.runs.checks import short_enough


def dataset(name: str, **changes: Any) -> Any:
    return dataclasses.replace(experiment(f"dataset={name}").dataset, **changes)


def write(folder: Path, name: str, rows: list[dict]) -> None:
    path = folder / name
    if path.suffix == ".parquet":
        parquet.write_table(pa.Table.from_pylist(rows), path)
    else:
        jsonl = "\n".join(json.dumps(row) for row in rows)
        path.write_text(jsonl if path.suffix == ".jsonl" else json.dumps(rows))


# 1. Math data sets

MATH = {"problem": "Half?", "solution": "It is \\boxed{2} over 4, so $\\boxed{\\frac{1}{2}}$."}
PLAIN = {"problem": "Half?", "solution": "It is one over two.", "answer": "$\\frac12$"}
GURU = {
    "prompt": [{"role": "user", "content": "Half?"}],
    "reward_model": {"ground_truth": "\\frac12", "style": "rule"},
    "data_source": "math__deepscaler_preview",
}
CODE = {**GURU, "data_source": "codegen__math__taco"}
ROWS = {"math": [MATH], "guru_math": [GURU, CODE], "deepscaler": [PLAIN], "aime24": [PLAIN]}


@pytest.mark.parametrize(
    ("name", "suffix"), zip(ROWS, [".jsonl", ".json", ".parquet", ".json"], strict=True)
)
def test_a_local_folder(name: str, suffix: str, tmp_path: Path) -> None:
    made = dataset(name, path=str(tmp_path))
    made.train.file, made.evaluation.file = f"train{suffix}", f"test{suffix}"
    write(tmp_path, f"train{suffix}", ROWS[name])
    write(tmp_path, f"test{suffix}", [PLAIN, PLAIN])
    train, evaluation = made.load()
    assert [p.answer for p in train] == ["\\frac{1}{2}" if name == "math" else "\\frac12"]
    assert [p.answer for p in evaluation] == ["\\frac12"] * 2
    for problem in train + evaluation:
        assert [message["content"] for message in problem.messages] == [made.system_prompt, "Half?"]
    assert check_gold(train + evaluation, inline_verifier(made.verify)) == []


def test_aime24_trains_and_evaluates_on_the_same_file(tmp_path: Path) -> None:
    write(tmp_path, "test.jsonl", [PLAIN])
    for path in (tmp_path, tmp_path / "test.jsonl"):
        train, evaluation = dataset("aime24", path=str(path)).load()
        assert train == evaluation
        assert len(train) == 1


GSM8K = {"question": "Half of 2,144?", "answer": "$2,144/2 = <<2144/2=1072>>1,072\n#### 1,072"}


def test_gsm8k(tmp_path: Path) -> None:
    write(tmp_path, "train.jsonl", [GSM8K])
    write(tmp_path, "test.jsonl", [GSM8K] * 2)
    gsm8k = dataset("gsm8k", path=str(tmp_path), format_bonus=0.1)
    [problem], evaluation = gsm8k.load()
    assert evaluation == [problem] * 2
    assert problem.answer == "1072"
    assert [m["content"] for m in problem.messages] == [gsm8k.system_prompt, "Half of 2,144?"]
    assert problem.solution == ("<think>\n$2,144/2 = 1,072\n</think>\n<answer>\n1072\n</answer>")
    assert gsm8k.verify(problem.solution, "1072").reward == 1.1
    assert gsm8k.verify("72", "1072").reward == -0.1
    wrong = dataclasses.replace(problem, solution="<answer>73</answer>")
    assert check_gold([problem, wrong, problem], inline_verifier(gsm8k.verify)) == [wrong]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        (
            "guru_math",
            [
                ("LLM360/guru-RL-92k", None, "train/math__combined_54.4k.parquet", "train"),
                ("HuggingFaceH4/MATH-500", None, None, "test"),
            ],
        ),
        ("gsm8k", [("openai/gsm8k", "main", None, split) for split in ("train", "test")]),
    ],
)
def test_what_the_hub_is_asked_for(name: str, expected: list, monkeypatch) -> None:
    asked = []

    def load(*names: str, **options: Any) -> datasets.Dataset:
        asked.append((*names, options["data_files"], options["split"]))
        plain = GSM8K if name == "gsm8k" else PLAIN
        return datasets.Dataset.from_list([GURU if options["data_files"] else plain])

    monkeypatch.setattr(datasets, "load_dataset", load)
    dataset(name).load()
    assert asked == expected


@pytest.mark.parametrize(
    ("name", "row", "said"),
    [
        ("math", {**MATH, "solution": "no box"}, "1: field 'solution' must hold the answer in"),
        ("deepscaler", {**PLAIN, "answer": " "}, "line 1: field 'answer' must hold an answer"),
        ("guru_math", {**GURU, "prompt": []}, "line 1: field 'prompt.0.content' is missing"),
        ("guru_math", {**GURU, "reward_model": "x"}, "'reward_model.ground_truth' is missing"),
        ("guru_math", CODE, "dataset.train.filter={'data_source': '^math__'}: keeps none of 1"),
    ],
)
def test_malformed_rows(name: str, row: dict, said: str, tmp_path: Path) -> None:
    made = dataset(name, path=str(tmp_path))
    made.train.file = "train.jsonl"
    write(tmp_path, "train.jsonl", [row])
    write(tmp_path, "test.jsonl", [PLAIN])
    with pytest.raises(UserError) as error:
        made.load()
    assert said in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("file", "content", "said"),
    [
        ("test.txt", "a,b", "must end in .jsonl, .json, .csv, .parquet"),
        ("test.csv", "problem,answer\n", "holds no data"),
        ("test.json", '{"problem": "?"}\noops', "line 2: not valid JSON"),
        ("test.json", "[1]", "item 1: a JSON object is expected"),
        ("test.json", "[" * 100_000, "test.json: not valid JSON"),
        ("test.parquet", "no table", "cannot be read: "),
    ],
)
def test_malformed_files(file: str, content: str, said: str, tmp_path: Path) -> None:
    (tmp_path / file).write_text(content)
    made = dataset("aime24", path=str(tmp_path / file))
    with pytest.raises(UserError) as error:
        made.load()
    assert said in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("test.jsonl", b'\xef\xbb\xbf{"problem": "2+2?", "answer": 4}\n'),  # a byte-order mark
        ("test.json", b'{"problem": "2+2?", "answer": "4"}\n\n{"problem": "1+3?", "answer": "4"}'),
        ("test.json", b'\n[{"problem": "2+2?", "answer": 4}]'),
        ("test.csv", b'\xef\xbb\xbfproblem,answer\n"2+2, or\n4?",4\n'),
    ],
)
def test_files_as_people_write_them(file: str, content: bytes, tmp_path: Path) -> None:
    (tmp_path / file).write_bytes(content)
    made = dataset("aime24", path=str(tmp_path / file))
    made.train.solution = made.evaluation.solution = None
    train, _ = made.load()
    assert {problem.answer for problem in train} == {"4"}


@pytest.mark.parametrize(
    ("text", "form", "answer"),
    [
        ("first \\boxed{1}, then \\boxed{2}", "boxed", "2"),
        ("\\boxed{\\frac{1}{\\sqrt{2}}}", "boxed", "\\frac{1}{\\sqrt{2}}"),
        ("\\boxed{\\left\\{ x \\right.}", "boxed", "\\left\\{ x \\right."),
        ("so $\\boxed 3$.", "boxed", "3"),
        ("\\boxed{}", "boxed", None),
        (" $x^2$ ", "plain", "x^2"),
        ("$1$ and $2$", "plain", "$1$ and $2$"),
        ("1 #### 2", "hashed", "2"),
        ("2", "hashed", None),
    ],
)
def test_gold_answers(text: str, form: str, answer: str | None) -> None:
    assert gold_answer(text, form) == answer


# 2. Tool calls

TOOLS = '[{"name": "Get Weather", "parameters": {"city": "string [ISO]"}}]'
SYSTEM = f"You know [these] functions:\n{TOOLS}. Put it in the format of [f(a=b)]."


def conversation(reply: str, request: str = "Rome?", *more: dict) -> dict:
    turns = [{"from": "user", "value": request}, {"from": "assistant", "value": reply}, *more]
    return {"system": SYSTEM, "conversations": turns}


def turn(speaker: str) -> dict:
    return {"from": speaker, "value": "…"}


def tool_calls(path: Path, **changes: Any) -> ToolCalls:
    return dataset("toolace", path=str(path), **changes)


CALL = '[Get Weather(city="Rome")]'


def test_toolace_rows(tmp_path: Path) -> None:
    rows = [conversation(CALL, f"Rome {i}?") for i in range(40)]
    write(tmp_path, "data.json", rows)
    made = tool_calls(tmp_path, held_out=4)
    train, evaluation = made.load()
    assert {len(train), len(evaluation)} != {40, 0}
    assert len(train) + len(evaluation) == 40
    requests = [problem.messages[1]["content"] for problem in train]
    assert requests == sorted(requests, key=lambda text: int(text[5:-1]))
    first = train[0]
    assert first.messages[0]["content"] == f"{made.system_prompt}\n{TOOLS}"
    assert json.loads(first.answer) == [{"name": "Get Weather", "arguments": {"city": "Rome"}}]
    assert check_gold(train + evaluation, inline_verifier(made.verify)) == []
    capped, same = tool_calls(tmp_path, held_out=4, train_problems=5).load()
    assert (capped, same) == (train[:5], evaluation)
    write(tmp_path, "reversed.json", rows[::-1])
    moved, kept = tool_calls(tmp_path / "reversed.json", held_out=4).load()
    assert (moved[::-1], kept[::-1]) == (train, evaluation)


@pytest.mark.parametrize(
    ("row", "kept"),
    [
        (conversation(CALL), True),
        (conversation(CALL, "Rome?", turn("tool"), turn("assistant")), True),
        (conversation(CALL, "Rome?", turn("tool"), turn("assistant"), turn("user")), False),
        (conversation("It is warm."), False),
        ({"system": "no tools", "conversations": conversation(CALL)["conversations"]}, False),
        ({"system": SYSTEM, "conversations": [turn("assistant"), turn("user")]}, False),
        ({"instruction": "i", "input": "?", "output": "no call"}, False),
        ({"instruction": "i", "input": "?", "output": '[{"name": "f", "arguments": {}}]'}, True),
    ],
)
def test_which_rows_are_kept(row: dict, kept: bool, tmp_path: Path) -> None:
    found = tool_calls(tmp_path).problem(("here", row))
    assert isinstance(found, Problem) if kept else found is None


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ([{"instruction": "i"}], "data.json item 1: field 'input' is missing; found instruction"),
        ([{"conversations": "x"}], "item 1: field 'conversations' is not a list"),
        ([conversation("no")], "0 evaluation problems of 0 usable among 1 rows"),
    ],
)
def test_bad_tool_rows(rows: list[dict], said: str, tmp_path: Path) -> None:
    write(tmp_path, "data.json", rows)
    with pytest.raises(UserError) as error:
        tool_calls(tmp_path).load()
    assert said in str(error.value)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[f()]", [("f", {})]),
        ('[Get Weather/now.v2(city="Rome")]', [("Get Weather/now.v2", {"city": "Rome"})]),
        ('[f(a="x"), g(b=2), f(a="x")]', [("f", {"a": "x"}), ("g", {"b": 2}), ("f", {"a": "x"})]),
        ("[f(a=1, b=-2.5, c=True, d=None)]", [("f", {"a": 1, "b": -2.5, "c": True, "d": None})]),
        ("[f(a=[1, (2, 3)], b={'k': {}})]", [("f", {"a": [1, [2, 3]], "b": {"k": {}}})]),
        ("[f(a=')], g(', b=\"(\")]", [("f", {"a": ")], g(", "b": "("})]),
        ('[f(a="it\'s \\"so\\"", b="\\n")]', [("f", {"a": 'it\'s "so"', "b": "\n"})]),
        ("f()", None),
        ("[f(]", None),
        ("[f(1)]", None),
        ("[f(**x)]", None),
        ("[f(a=1, a=2)]", None),
        ("[f(a={1: 2})]", None),
        ("[f(a=b)]", None),
        ("[f(a=1e999)]", None),
        ("[f(a=open('made', 'w'))]", None),
        ("[f(a=" + "-" * 5000 + "1)]", None),
    ],
)
def test_python_calls(text: str, expected: list | None) -> None:
    found = python_calls(text)
    calls = found and [tuple(json.loads(call).values()) for call in found]
    assert calls == (expected and [(arguments, name) for name, arguments in expected])


def test_long_or_deep_arguments_are_rejected() -> None:
    """Without a limit, some of them exhaust Python's parser."""
    for arguments in ("-" * 100_000 + "1", "lambda:" * 100_000 + "1", "')" * 50_001, "\ud800"):
        assert python_calls(f"[f(a={arguments})]") is None


def test_long_calls_are_read() -> None:
    text = "it's (a) [b] {c} -- # no end, \\n" * 200
    many = ", ".join(f"a{n}=[-1.5e-3, {{'k': (true, None)}}]" for n in range(200))
    [one] = python_calls(f"[f(a={text!r})]") or []
    assert json.loads(one)["arguments"] == {"a": text}
    [two] = python_calls(f"[f({many})]") or []
    assert json.loads(two)["arguments"]["a199"] == [-0.0015, {"k": [True, None]}]


def test_lone_surrogate_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"row 1: field 'output' holds half of a character"):
        text_of({"output": "\ud800"}, "output", "row 1")


def test_tool_list() -> None:
    assert tool_list("[{" * 50_000) is None
    assert tool_list('[{"a":' * 50_000) is None
    assert tool_list(SYSTEM) == TOOLS
    assert tool_list('[{broken] then [ {"a": [1]} ] and [{"b": 2}]') == '[ {"a": [1]} ]'
    assert tool_list("[1, 2] {} []") is None


# 3. What all share


def sums(train: int, evaluation: int, number: int) -> tuple[list[Problem], list[Problem]]:
    """The split of so many problems, each text twice."""
    made = GeneratedDataset(
        system_prompt="", max_prompt_tokens=64, long_prompts="refuse", max_response_tokens=64,
        verifier_workers=1, verifier_timeout=1.0, train_problems=train, eval_problems=evaluation,
    )  # fmt: skip
    texts = [f"What is {n // 2} + 1?" for n in range(number)]
    return made.split(((t, Problem(({"role": "user", "content": t},), "")) for t in texts), "sums")


def test_no_text_is_in_both_splits_and_one_in_eight_is_held_out() -> None:
    train, held_out = sums(600, 60, 1600)
    assert (len(train), len(held_out)) == (600, 60)
    assert not {str(each.messages) for each in train} & {str(each.messages) for each in held_out}
    with pytest.raises(UserError, match=r"dataset.eval_problems=400: sums has only \d+ of 400"):
        sums(600, 400, 1600)
    with pytest.raises(UserError, match=r"dataset.train_problems=1600: sums has only"):
        sums(1600, 60, 1600)
    assert sums(100, 10, 400) == sums(100, 10, 1600)


@pytest.mark.parametrize(
    ("overrides", "kept"),
    [
        (["dataset.long_prompts=drop"], "dropped 2 of 4 training prompts: longer than dataset.max"),
        ([], r"a prompt has 9 tokens .* or use dataset.long_prompts=drop"),
        (["dataset.long_prompts=drop", "dataset.max_prompt_tokens=2"], "a prompt has 3 tokens"),
        (["dataset.max_prompt_tokens=9"], ""),
    ],
)
def test_long_prompts_are_refused_or_dropped(overrides: list[str], kept: str) -> None:
    problems = [Problem(({"role": "user", "content": "x" * n},), "") for n in (3, 9, 5, 8)]
    chat = SimpleNamespace(encode_all=lambda prompts: [list(p[-1]["content"]) for p in prompts])
    said: list[str] = []
    exp = experiment("dataset=gsm8k", "dataset.max_prompt_tokens=5", *overrides)
    if kept.startswith("a prompt"):
        with pytest.raises(UserError, match=kept):
            short_enough(exp.dataset, chat, problems, "training", said.append)
    else:
        found = short_enough(exp.dataset, chat, problems, "training", said.append)
        assert found == (problems[::2] if kept else problems)
        assert "".join(said).startswith(kept)


# 4. Real files


@pytest.mark.parametrize("name", ["gsm8k", "aime24"])
def test_real_numbers(name: str, data_folder: Path) -> None:
    made: MathProblems = dataset(name, path=str(data_folder / name))
    train, evaluation = made.load()
    assert (len(train), len(evaluation)) == ((7473, 1319) if name == "gsm8k" else (30, 30))
    some = evaluation if name == "aime24" else (train + evaluation)[::40]
    assert check_gold(some, inline_verifier(made.verify)) == []
    for change in (lambda n: n + 1, lambda n: 10 * n + 1, lambda n: -n - 1):
        wrong = [(f"\\boxed{{{change(int(p.answer))}}}", p.answer) for p in some]
        assert not any(result.accuracy for result in inline_verifier(made.verify)(wrong))


def test_real_tool_calls(data_folder: Path) -> None:
    made = tool_calls(data_folder / "tool_calls" / "rlla_sft.json", train_problems=None)
    rows = json.loads((data_folder / "tool_calls" / "rlla_sft.json").read_text(encoding="utf-8"))
    train, evaluation = made.load()
    problems = train + evaluation
    assert len(rows) == 400
    assert len(problems) == sum("</tool_call>" in row["output"] for row in rows) == 346
    assert check_gold(problems, inline_verifier(made.verify)) == []
    for problem in problems:
        calls = json.loads(problem.answer)
        assert made.verify(json.dumps(calls[::-1]), problem.answer).accuracy == 1
        assert made.verify(json.dumps(calls[1:]), problem.answer).accuracy == 0
