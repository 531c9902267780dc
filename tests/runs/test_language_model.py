"""The whole road of a language model: supervised start, RL, resume, overlap, export, evaluation.

With a tiny random Llama whose template is SmolLM2's, and with SmolLM2 itself where `make smollm2`
has put it into the cache, among the long tests.
"""

import dataclasses

import pytest
import torch
from conftest import assert_same_result, experiment, run
from language_models import smollm2_folder, tiny_llama
from transformers import AutoModelForCausalLM, AutoTokenizer

from rec_experiments.policy.chat import ChatTemplate
from rec_experiments.policy.warm_start import load_warm_start
from rec_experiments.runs import evaluation, saved

FEW = (
    "setting=lm/gsm8k", "threads=1", "model.warm_start.steps=2", "model.warm_start.batch_size=2",
    "steps=3", "batch_size=2", "group_size=2", "eval_every=1", "eval_problems=2",
    "checkpoint_every=1", "dataset.train_problems=8", "dataset.eval_problems=4",
    "dataset.max_response_tokens=12", "dataset.max_prompt_tokens=400",
    "optimizer.learning_rate=1.0e-4", "algo=asymre",  # which learns from failures alone, too
)  # fmt: skip
WAITING = ("sync.interval=2", "sync.offset=1")


def on_models(*models):
    return pytest.mark.parametrize("few", models, indirect=True)


with_smollm2 = on_models("tiny", pytest.param("smollm2", marks=pytest.mark.long))


@pytest.fixture(scope="module")
def few(request, tmp_path_factory):
    """The overrides of a short run on the model."""
    made = tmp_path_factory.mktemp("model") / "llama"
    return (*FEW, f"model.path={tiny_llama(made) if request.param == 'tiny' else smollm2_folder()}")


@pytest.fixture(scope="module")
def whole(few, tmp_path_factory):
    return run(tmp_path_factory.mktemp("whole") / "run", *few, *WAITING)


@with_smollm2
def test_every_step_moves_the_model(whole):
    assert [row["step"] for row in whole.metrics()] == [0, 1, 2, 3]
    assert all(row["train/grad_norm"] > 0 for row in whole.metrics()[1:])


@with_smollm2
def test_a_stopped_run_resumes_bit_for_bit(few, whole, tmp_path):
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "cut", *few, *WAITING, until=2)
    assert_same_result(run(tmp_path / "cut", *few, *WAITING), whole)


@pytest.mark.long
@with_smollm2
def test_overlapped_is_sequential(few, whole, tmp_path):
    assert_same_result(run(tmp_path / "run", *few, *WAITING, "pipeline=overlap"), whole)


@with_smollm2
def test_transformers_scores_the_exported_model_alike(few, whole, tmp_path):
    """And an evaluation of either has the same numbers, with pass@k."""
    out = tmp_path / "model"
    assert saved.export(whole.path, out, None) == 3
    model, tokenizer = (kind.from_pretrained(out) for kind in (AutoModelForCausalLM, AutoTokenizer))
    trained = torch.load(whole.checkpoints / "step_00000003" / "rank_0.pt", weights_only=True)
    ours = experiment(*few).model.model()
    ours.load_state_dict(trained["weights"]["model"])
    ids = torch.tensor([tokenizer.encode("12 + 9 = 21. The answer is 21.")])
    with torch.no_grad():
        torch.testing.assert_close(model(ids).logits, ours(ids).logits, rtol=0, atol=0)
    data = experiment(*few).dataset
    of_run = evaluation.evaluate(str(whole.path), 3, ["eval_samples=4"])
    of_model = evaluation.evaluate(
        str(out), 3, ["dataset=word_problems", "eval_problems=2", "threads=1", "eval_samples=4",
                      *(f"dataset.{each.name}={getattr(data, each.name)}"
                        for each in dataclasses.fields(data)
                        if isinstance(getattr(data, each.name), int))]
    )  # fmt: skip
    assert of_run.metrics == of_model.metrics
    assert {"eval/pass@2", "eval/pass@4"} < of_run.metrics.keys()


# The supervised start -----------------------------------------------------------------------------


@pytest.fixture
def tiny(tmp_path, monkeypatch):
    """Overrides, with a cache of the test's own."""
    monkeypatch.setenv("REC_EXPERIMENTS_CACHE", str(tmp_path / "cache"))
    return (*FEW, f"model.path={tiny_llama(tmp_path / 'llama')}")


def started(*overrides, model=None):
    """The weights after the supervised start, and what was said."""
    exp, said = experiment(*overrides), []
    model = model or exp.model.model()
    problems, _ = exp.dataset.load()
    chat = ChatTemplate(exp.model.tokenizer(), model)
    load_warm_start(
        exp.model, exp.dataset, model, chat, problems, said.append, lambda step, total: None
    )
    return model.state_dict(), said


def same(one, other):
    return all(torch.equal(one[name], other[name]) for name in one)


def test_runs_share_one_start(tiny):
    first, said = started(*tiny)
    assert "warm start: 2 supervised steps, once" in said[0]
    for way in ("model.shared_prompts=false", "model.compute_dtype=bfloat16", "seed=5"):
        again, said = started(*tiny, way)
        assert same(first, again)
        assert said == []


def test_other_weights_have_a_start_of_their_own(tiny):
    first, _ = started(*tiny)
    exp = experiment(*tiny)
    other = exp.model.model()
    with torch.no_grad():
        other.model.norm.weight.add_(0.1)
    second, said = started(*tiny, model=other)
    assert not same(first, second)
    assert "once" in said[0]


def test_solutions_become_likelier(tiny):
    def nats(weights):
        exp = experiment(*tiny)
        model = exp.model.model()
        model.load_state_dict(weights)
        problem = exp.dataset.load()[0][0]
        chat = ChatTemplate(exp.model.tokenizer(), model)
        prompt, solution = chat.encode(problem.messages), chat.encode_response(problem.solution)
        ids = torch.tensor([[*prompt, *solution]])
        with torch.no_grad():
            is_prompt = torch.arange(ids.shape[1]) < len(prompt)
            return model(ids, labels=ids.masked_fill(is_prompt, -100)).loss

    untrained = experiment(*tiny).model.model().state_dict()
    trained, _ = started(*tiny, "model.warm_start.steps=20", "model.warm_start.learning_rate=3e-3")
    assert nats(trained) < nats(untrained) - 0.5
