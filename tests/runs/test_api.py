"""Experiments with objects of Python in place of names.

1. A model, rows and a function give the same run as their files do, and stay as they are.
2. Equal objects resume a run; no other process can, and says so in one line.
"""

import json
import sys

import pytest
import torch
from conftest import command, timeless
from language_models import tiny_llama
from transformers import AutoModelForCausalLM, AutoTokenizer

import rec_experiments
from rec_experiments.common import live
from rec_experiments.common.errors import UserError
from rec_experiments.runs.evaluation import evaluate
from rec_experiments.runs.run_folder import RunFolder

TRAIN = [{"question": f"{a}+1=", "answer": a + 1} for a in range(8)]
HELD_OUT = [{"question": f"{a}+2=", "answer": a + 2} for a in range(4)]
SHORT = (
    "algo=grpo", "steps=2", "batch_size=2", "group_size=2", "eval_every=2", "kl_every=0",
    "dataset.max_response_tokens=4", "dataset.max_prompt_tokens=64",
)  # fmt: skip
JUDGE = "def judge(response, answer):\n    return float(len(response) % 2)\n"


@pytest.fixture
def place(tmp_path, monkeypatch):
    (tmp_path / "data").mkdir()
    for name, rows in (("train", TRAIN), ("test", HELD_OUT)):
        (tmp_path / f"data/{name}.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (tmp_path / "length_judge.py").write_text(JUDGE)
    tiny_llama(tmp_path / "model")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "length_judge", raising=False)
    return tmp_path


def of_objects(place, *overrides, verifier=lambda response, answer: float(len(response) % 2)):
    model = AutoModelForCausalLM.from_pretrained(place / "model")
    tokenizer = AutoTokenizer.from_pretrained(place / "model")
    return rec_experiments.Experiment.compose(
        *SHORT, *overrides, model=(model, tokenizer), rows=(TRAIN, HELD_OUT), verifier=verifier
    )


def test_objects_give_the_run_of_their_files(place):
    experiment = of_objects(place)
    found = RunFolder(experiment.run())
    named = rec_experiments.Experiment.compose(
        *SHORT, "model=pretrained", "model.path=model", "dataset=own", "dataset.path=data",
        "dataset.verifier=length_judge.judge",
    )  # fmt: skip
    expected = RunFolder(named.run())
    assert [*map(timeless, found.metrics())] == [*map(timeless, expected.metrics())]
    for one, other in zip(
        experiment.trained_model().parameters(), named.trained_model().parameters(), strict=True
    ):
        assert torch.equal(one, other)


def test_the_model_given_is_not_trained_and_equal_ones_resume(place, capsys):
    experiment = of_objects(place)
    original, _ = live.find(experiment.settings.model.path, "model.path")
    before = [each.clone() for each in original.parameters()]
    path = experiment.run()
    assert all(map(torch.equal, before, original.parameters()))
    capsys.readouterr()
    assert of_objects(place).run() == path
    assert "already finished" in capsys.readouterr().out


def test_no_other_process_has_them(place, monkeypatch):
    path = of_objects(place).run()
    monkeypatch.setattr(live, "_objects", {})
    with pytest.raises(UserError, match="was an object of the Python process that made the run"):
        evaluate(str(path), None, [])
    done = command("export", str(path), "out", cwd=place)
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].startswith("error: model.path=live:")


def test_a_function_that_can_be_imported_keeps_its_name(place):
    import length_judge

    chosen = of_objects(place, verifier=length_judge.judge).settings.dataset
    assert (chosen.verifier, chosen.verifier_workers) == ("length_judge.judge", 2)


def test_what_objects_cannot_do_is_one_line(place):
    with pytest.raises(UserError, match="pipeline=overlap: draws in another process"):
        of_objects(place, "pipeline=overlap")
    with pytest.raises(UserError, match="must be the dotted name of a function"):
        of_objects(place, verifier=lambda response: 1.0).settings.dataset.load()
