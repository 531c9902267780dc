"""A user's own rows and verifier.

1. Rows become problems; an answer that is no text becomes JSON.
2. A new user's folder with data, a verifier and a model can be checked and trained on.
3. A wrong verifier is one line that names the key.
"""

import json
import sys
from contextlib import closing
from pathlib import Path

import pytest
import torch
import yaml
from conftest import command, experiment
from transformers import Qwen2Config, Qwen2ForCausalLM

from rec_experiments.common.errors import UserError
from rec_experiments.common.files import cache_folder
from rec_experiments.common.problems import VerifierResult
from rec_experiments.datasets.own_data import result
from rec_experiments.datasets.verifiers.verifier_pool import inline_verifier, report_crashes
from rec_experiments.policy.models import byte_tokenizer
from rec_experiments.runs.prepare import prepare, verifier_for

JUDGE = """
def judge(response, answer):
    return 1.0 if response.strip() == answer else 0.0

def strict(response, answer, level): ...

number = 3
"""
FEW = (
    "dataset=own", "dataset.path=data", "dataset.verifier=my_verifier.judge", "steps=2",
    "batch_size=2", "group_size=2", "eval_every=1", "kl_every=0", "dataset.max_response_tokens=4",
    "dataset.verifier_workers=1",
)  # fmt: skip


def write_rows(folder: Path, rows: int = 8) -> None:
    """Sums of one digit, as train.jsonl and test.jsonl."""
    folder.mkdir(exist_ok=True)
    for name, first in (("train", 1), ("test", 2)):
        lines = [{"question": f"{first}+{i}=", "answer": str(first + i)} for i in range(rows)]
        (folder / f"{name}.jsonl").write_text("\n".join(map(json.dumps, lines)))


@pytest.fixture
def place(tmp_path, monkeypatch) -> Path:
    """A newcomer's folder: data, and a verifier in a file beside it."""
    write_rows(tmp_path / "data")
    (tmp_path / "my_verifier.py").write_text(JUDGE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "my_verifier", raising=False)
    return tmp_path


def test_rows_become_problems(place):
    own = experiment(*FEW).dataset
    train, evaluation = own.load()
    assert [p.messages for p in train[:2]] == [
        ({"role": "user", "content": "1+0="},),
        ({"role": "user", "content": "1+1="},),
    ]
    assert (train[1].answer, train[1].solution, evaluation[1].answer) == ("2", "2", "3")
    assert own.verify(" 2 ", "2") == VerifierResult(reward=1.0, accuracy=1.0)
    assert own.describe() == "data, judged by my_verifier.judge"


def test_fields_and_a_system_prompt_can_be_named_once(place):
    row = {"chat": [{"content": "2+2"}], "gold": {"value": 4, "unit": "€"}, "written": "four"}
    for name in ("train", "test"):
        (place / "data" / f"{name}.jsonl").write_text(json.dumps(row))
    fields = (
        "dataset.train.question=chat.0.content", "dataset.train.answer=gold",
        "dataset.train.solution=written", "dataset.system_prompt=Add.",
    )  # fmt: skip
    for [problem] in experiment(*FEW, *fields).dataset.load():
        assert [m["content"] for m in problem.messages] == ["Add.", "2+2"]
        assert json.loads(problem.answer) == {"value": 4, "unit": "€"}
        assert problem.solution == "four"


@pytest.mark.parametrize(
    ("overrides", "reason"),
    [
        (["dataset.verifier=my_verifier.juge"], "my_verifier.juge: must be the dotted name"),
        (["dataset.verifier=my_verifer.judge"], "No module named 'my_verifer'"),
        (["dataset.verifier=judge"], "verifier=judge: must be the dotted name"),
        (["dataset.verifier=my_verifier.strict"], "missing a required argument: 'level'"),
        (["dataset.verifier=my_verifier.number"], "my_verifier.number: must be the dotted name"),
        (["dataset.verifier=broken.judge"], "broken cannot be imported (ZeroDivisionError: "),
        (["dataset.verifier=leaving.judge"], "leaving cannot be imported (SystemExit: 0)"),
        (["dataset.train.question=prompt"], "line 1: field 'prompt' is missing; found question"),
        (["dataset.path=data/train.jsonl"], "must be a folder with train.jsonl and test.jsonl"),
        (["dataset.path=null"], "path=null: must be a local folder or file"),
        (["dataset.verifier_workers=-1"], "verifier_workers=-1: must be at least 0"),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_bad_values_are_one_line(place, overrides, reason):
    (place / "broken.py").write_text("1 / 0")
    (place / "leaving.py").write_text("raise SystemExit(0)")
    with pytest.raises(UserError) as told:
        experiment(*FEW, *overrides).dataset.load()
    assert reason in str(told.value)
    assert "\n" not in str(told.value)


def test_what_a_verifier_may_return():
    for said, reward, accuracy in ((True, 1, 1), (0.5, 0.5, 0), (-1, -1, 0), (2, 2, 1)):
        assert result(said) == VerifierResult(reward, accuracy)
    assert result(VerifierResult(0.1, 1.0)) == VerifierResult(0.1, 1.0)
    for said in (None, "1", float("nan"), float("inf")):
        with pytest.raises((TypeError, ValueError)):
            result(said)


def raises(response, answer):
    raise ZeroDivisionError("division by zero")


def exits(response, answer):
    sys.exit(0)


@pytest.mark.parametrize(
    ("judge", "reason"),
    [
        (raises, "ZeroDivisionError: division by zero"), (exits, "SystemExit: 0"),
        (lambda response, answer: result(None), "TypeError: "),
    ],
)  # fmt: skip
def test_a_verifier_that_always_fails_ends_the_run(judge, reason):
    with pytest.raises(UserError, match=f"verifier crashed on 2 of 2 responses: {reason}"):
        report_crashes(inline_verifier(judge)([("2", "2"), ("3", "2")]))


def test_the_first_crash_is_told_once_with_its_number(capsys):
    def odd(response, answer):
        return result(1.0 if response == "2" else int("odd"))

    report_crashes(inline_verifier(odd)([("2", "2"), ("3", "2"), ("4", "2")]))
    report_crashes(inline_verifier(odd)([("2", "2"), ("3", "2")]))
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith("the verifier crashed on 2 of 3 responses: ValueError: invalid literal")


def test_slow_imports_happen_before_the_first_timeout(place):
    (place / "slow_verifier.py").write_text(f"import time; time.sleep(2)\n{JUDGE}")
    overrides = ("dataset.verifier=slow_verifier.judge", "dataset.verifier_timeout=1")
    with closing(verifier_for(experiment(*FEW, *overrides).dataset)) as verify:
        assert [said.reward for said in verify([("2", "2"), ("3", "2")])] == [1, 0]


def test_the_warm_start_depends_on_the_rows(place):
    tiny = (*FEW, "model.warm_start.steps=1", "model.warm_start.batch_size=2")
    made = []
    for rows in (8, 8, 9):  # the second time from the cache
        write_rows(place / "data", rows)
        trainer = prepare(experiment(*tiny))
        trainer.rollouts.worker.close()
        made.append(len([*cache_folder().glob("warm_start_*.pt")]))
    assert made[1] == made[0]
    assert made[2] == made[1] + 1


def test_own_data_and_own_model(place):
    tokenizer = byte_tokenizer()
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 2, "max_position_embeddings": 2048}
    ends = {"eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id}
    model = Qwen2ForCausalLM(Qwen2Config(vocab_size=len(tokenizer), **sizes, **heads, **ends))
    model.save_pretrained("model")
    tokenizer.save_pretrained("model")
    own = (*FEW, "model=pretrained", "model.path=model")
    checked = command("check", *own, cwd=place)
    lines = checked.stdout.splitlines()
    assert checked.returncode == 1, checked.stderr
    assert lines[0] == "answers     16 of 16 gold answers accepted"
    assert lines[-1].startswith("try         every response was cut at dataset.max_response_tok")
    done = command(*own, cwd=place)
    assert done.returncode == 0, done.stderr
    assert "warning     no gradient in the first batches: every response was cut" in done.stdout
    assert "data        data, judged by my_verifier.judge: 8 training problems" in done.stdout
    [folder] = (place / "runs").iterdir()
    assert json.loads((folder / "status.json").read_text())["state"] == "done"
    config = yaml.safe_load((folder / "config.yaml").read_text())
    assert config["dataset"]["evaluation"]["question"] == "question"
