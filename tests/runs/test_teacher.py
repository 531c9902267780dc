"""Distillation: a frozen teacher, whose tokens the student draws itself.

1. The student comes close to the teacher, also on old data and in a model of transformers.
2. The teacher is the newest state of a run, or a folder of transformers, and stays as it is.
3. A run whose teacher has changed is not resumed.
4. A teacher that cannot teach is one line.
"""

import json

import pytest
import torch
from conftest import SMALL, experiment, refused, run
from language_models import tiny_llama
from transformers import AutoModelForCausalLM

from rec_experiments.runs import provenance
from rec_experiments.runs.prepare import prepare
from rec_experiments.runs.run import digests_of
from rec_experiments.runs.saved import model_of, source_of

DISTILL = (*SMALL, "algo=opd", "reference=teacher", "optimizer.learning_rate=3.0e-3")
LONGER = ("dataset.max_prompt_tokens=64",)  # for a chat template


@pytest.fixture(scope="module")
def taught(tmp_path_factory):
    """A run of one step from a model that has learnt more."""
    folder = tmp_path_factory.mktemp("runs") / "teacher"
    return run(folder, *SMALL, "steps=1", "model.warm_start.steps=40").path


@pytest.mark.parametrize("sync", ["on_policy", "interval5"])
def test_the_student_comes_close(sync, taught, tmp_path):
    exact = "steps=15", "eval_every=15", "checkpoint_every=15", f"sync={sync}"
    rows = run(tmp_path / "run", *DISTILL, f"reference.path={taught}", *exact).metrics()
    assert rows[15]["train/kl"] < 0.5 * rows[1]["train/kl"]


def test_the_teacher_is_the_newest_state_of_its_run(taught):
    trainer = prepare(experiment(*DISTILL, f"reference.path={taught}"))
    model, step = model_of(taught, source_of(taught), None)
    found = trainer.policies.models["reference"].state_dict()
    assert step == 1
    assert all(torch.equal(found[name], each) for name, each in model.state_dict().items())
    assert trainer.policies.state() == {}  # checkpoints do not hold it


@pytest.fixture(scope="module")
def llama(tmp_path_factory):
    return tiny_llama(tmp_path_factory.mktemp("llama"))


def test_a_model_of_transformers_teaches_one(llama, tmp_path):
    teacher = AutoModelForCausalLM.from_pretrained(llama)
    with torch.no_grad():
        for weight in teacher.parameters():
            weight.mul_(1.1)
    teacher.save_pretrained(tmp_path / "teacher")
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        (tmp_path / "teacher" / name).write_bytes((llama / name).read_bytes())
    small = [each for each in DISTILL if not each.startswith("model.")]
    words = [*small, *LONGER, "model=pretrained", f"model.path={llama}", "steps=2"]
    trainer = prepare(experiment(*words, f"reference.path={tmp_path / 'teacher'}"))
    found = trainer.policies.models["reference"].state_dict()
    assert all(torch.equal(found[name], each) for name, each in teacher.state_dict().items())
    rows = run(tmp_path / "run", *words, f"reference.path={tmp_path / 'teacher'}").metrics()
    assert rows[1]["train/kl"] > 0


def test_a_changed_teacher_is_noticed(taught, tmp_path):
    other = run(tmp_path / "other", *SMALL, "steps=1").path
    digests = [
        digests_of(prepare(experiment(*DISTILL, f"reference.path={path}")))["teacher"]
        for path in (taught, taught, other)
    ]
    assert digests[0] == digests[1]
    origin = json.loads(json.dumps(provenance.after({}, {"teacher": digests[0]}, 0)))
    assert provenance.changed(origin, {"teacher": digests[1]}) is None
    assert provenance.changed(origin, {"teacher": digests[2]}) == "teacher"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["algo=opd"], "reference=initial: the policy begins as this model"),
        (["algo=opd", "reference=teacher"], "reference.path: has no value"),
        (["algo=grpo", "reference=teacher", "reference.path=x"], "no piece of the algorithm reads"),
        (["algo=opd", "reference=teacher", "reference.path=nowhere"], "reference.path=nowhere: is"),
        (["algo=opd", "reference=teacher", "reference.swap_every=2", "reference.path=x"],
         "reference.swap_every=2: must be null"),
    ],
)  # fmt: skip
def test_a_teacher_that_cannot_teach(words, message, monkeypatch, capfd, tmp_path):
    line = refused([*SMALL, f"output_dir={tmp_path}", *words], monkeypatch, capfd)
    assert message in line


def test_a_teacher_of_other_tokens(llama, taught, monkeypatch, capfd, tmp_path):
    small = [each for each in DISTILL if not each.startswith("model.")]
    words = [*LONGER, "model=pretrained", f"model.path={llama}", f"output_dir={tmp_path}"]
    line = refused([*small, *words, f"reference.path={taught}"], monkeypatch, capfd)
    assert line.endswith("its tokens are not those of the model that it would teach")
