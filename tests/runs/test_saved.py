"""A run's model as a folder, and its scores.

1. The exported folder, loaded by transformers, has the checkpoint's weights and scores as the run
   said, at the newest checkpoint and at an earlier one.
2. A damaged state is passed over for the one before, as a run that resumes does, and is named.
3. Intervals are those of the books, pass@k that of enumeration.
4. What cannot be exported is one line, and leaves nothing behind.
"""

import json
import math
import resource
import shutil
from itertools import combinations
from statistics import fmean

import pytest
import torch
import yaml
from conftest import SMALL, experiment, refused, resolve, run
from transformers import AutoModelForCausalLM, GPT2Config, GPT2LMHeadModel

from rec_experiments.common.distributed import ALONE
from rec_experiments.common.errors import UserError
from rec_experiments.policy.models import byte_tokenizer
from rec_experiments.runs import evaluation, saved
from rec_experiments.runs.checkpoints import Checkpoints
from rec_experiments.runs.evaluation import Scores, difference, pass_at_powers

DATA = [each for each in SMALL if each.startswith(("dataset", "eval_"))]


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    return run(tmp_path_factory.mktemp("run") / "run", *SMALL, "eval_every=1")


@pytest.mark.parametrize("step", [2, 3])
def test_the_exported_folder_scores_as_the_run_said(done, tmp_path, step):
    out = tmp_path / "a model, {of} 'mine' (1)"
    assert saved.export(done.path, out, step if step == 2 else None) == step
    loaded = AutoModelForCausalLM.from_pretrained(out).state_dict()
    state = saved.model_of(done.path, saved.source_of(done.path), step)[0].state_dict()
    assert all(torch.equal(loaded[name], weight) for name, weight in state.items())
    said = {k: v for k, v in done.metrics()[step].items() if k.startswith("eval/")}
    assert said["eval/response_length"] > 1
    assert evaluation.evaluate(str(done.path), step, []).metrics == said
    assert evaluation.evaluate(str(out), step, DATA).metrics == said


@pytest.fixture
def damaged(done, tmp_path):
    """A copy of the run whose newest state is cut short."""
    shutil.copytree(done.path, tmp_path / "damaged")
    file = tmp_path / "damaged" / "checkpoints" / "step_00000003" / "rank_0.pt"
    file.write_bytes(file.read_bytes()[:-1])
    return tmp_path / "damaged"


PASSED_OVER = "checkpoint step_00000003 is damaged and was skipped\n"


def test_a_damaged_state_is_passed_over(done, damaged, tmp_path, capsys):
    assert saved.export(damaged, tmp_path / "model", None) == 2
    assert PASSED_OVER in capsys.readouterr().err
    found = evaluation.evaluate(str(damaged), None, [])
    assert PASSED_OVER in capsys.readouterr().err
    assert found == evaluation.evaluate(str(done.path), 2, [])


def test_a_damaged_state_that_is_asked_for_is_refused(damaged, tmp_path):
    with pytest.raises(UserError, match=r"checkpoints: step_00000003: damaged"):
        saved.export(damaged, tmp_path / "model", 3)
    (damaged / "checkpoints" / "step_00000002" / "rank_0.pt").unlink()
    with pytest.raises(UserError, match=r"checkpoints: step_00000003, step_00000002: damaged"):
        saved.export(damaged, tmp_path / "model", None)
    assert not (tmp_path / "model").exists()


def test_a_value_of_the_run_can_be_changed(done):
    found = evaluation.evaluate(str(done.path), None, ["eval_samples=2", "eval_problems=4"])
    assert len(found.means) == 4
    assert 0 <= found.low <= found.metrics["eval/accuracy"] <= found.high <= 1


def test_weights_without_finite_logits_are_one_line(done, tmp_path):
    saved.export(done.path, tmp_path / "model", None)
    broken = AutoModelForCausalLM.from_pretrained(tmp_path / "model")
    broken.lm_head.weight.data.fill_(torch.nan)
    broken.save_pretrained(tmp_path / "model")
    with pytest.raises(UserError, match="model: its weights give no finite logits"):
        evaluation.evaluate(str(tmp_path / "model"), None, DATA)


@pytest.mark.parametrize(("sampler", "place"), [("native", "meta"), ("vllm_beside", "cpu")])
def test_weights_that_vllm_copies_do_not_go_to_its_device(monkeypatch, sampler, place):
    """With 7B in float32 beside it vLLM would not find the 68 GB free that it asks for."""
    exp = experiment(*DATA, f"sampler={sampler}", "model.warm_start.steps=0")
    monkeypatch.setattr(evaluation, "pick_device", lambda name, world: torch.device("meta"))
    monkeypatch.setattr(evaluation, "make_worker", lambda *arguments: None)
    model = exp.model.model()
    evaluation.evaluator_of(exp, model)
    assert next(model.parameters()).device.type == place


def test_a_model_whose_context_is_too_short_is_one_line(tmp_path):
    tokenizer = byte_tokenizer()
    GPT2LMHeadModel(
        GPT2Config(n_layer=1, n_embd=16, n_head=2, n_positions=40, vocab_size=len(tokenizer))
    ).save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    with pytest.raises(UserError, match=r"max_prompt_tokens=16: .* context of 40 tokens"):
        evaluation.evaluate(str(tmp_path), None, DATA)


def test_a_full_disk_is_one_line_and_leaves_nothing_behind(done, tmp_path):
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, limits[1]))
    try:
        with pytest.raises(UserError, match=r"model: cannot be written \(.+\)"):
            saved.export(done.path, tmp_path / "a" / "model", None)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("name", "arguments", "line"),
    [
        ("export", ["{run}", "{tmp}/out", "--step=7"], "step=7: has no checkpoint; allowed: 3, 2"),
        ("export", ["{run}", "{tmp}"], "exists already"),
        ("export", ["{tmp}", "{tmp}/out"], "is not a run folder"),
        ("export", ["{run}", "{tmp}/out", "steps=7"], "steps=7: is not expected"),
        ("evaluate", ["{run}", "dataset=math"], "dataset=math: only single values of a run"),
        ("evaluate", ["{run}/missing"], "no such folder"),
        ("evaluate", [], "evaluate: takes one or two models, not 0"),
        ("evaluate", ["{run}", "seed=[1"], "seed=[1: cannot be read"),
        ("evaluate", ["{run}", "=3"], "=3: must be KEY=VALUE"),
        ("evaluate", ["{run}", "model.hidden_size=32"], "does not fit the model of the config"),
        ("evaluate", ["{run}", "eval_samples=1000000000000"], "eval_samples=1000000000000: "),
        ("export", ["{run}", "{tmp}/a/" + "b" * 300 + "/c"], "too long"),
    ],
)
def test_bad_input_is_one_line(done, tmp_path, name, arguments, line, monkeypatch, capfd):
    words = [word.format(run=done.path, tmp=tmp_path) for word in arguments]
    assert line in refused([name, *words], monkeypatch, capfd)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"model": [1]}, "model: its choice names no class"),
        ({"extra": {}}, "extra: names no class"),
        ({"steps": -1}, "steps=-1: must be at least 1"),
        ({"algo": {}}, "algo.name"),
        (None, "its config.yaml is not that of a run"),
    ],
)
def test_a_configuration_that_is_none_is_told_with_its_folder(tmp_path, change, told):
    config = resolve(*SMALL) | change if change else {"a": 1}
    (tmp_path / "config.yaml").write_text(json.dumps(config))
    with pytest.raises(UserError, match=f"run folder {tmp_path}: .*{told}"):
        saved.experiment_of(tmp_path, [])


def test_a_model_is_read_without_the_verifier_of_its_run(done, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(done.path, folder)
    config = yaml.safe_load((folder / "config.yaml").read_text())
    config["dataset"] |= {"_target_": "no_such_module.Rows", "verifier": "timeit.timeit"}
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    assert saved.export(folder, tmp_path / "out", None) > 0
    config["model"]["_target_"] = "os.system"
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    with pytest.raises(UserError, match=r"model=os\.system: only the run folder names it"):
        saved.export(folder, tmp_path / "other", None)


@pytest.mark.parametrize(
    "weights", [{}, {"model": [1]}, {"model": {"model.norm.weight": "a word"}}]
)
def test_a_state_of_something_else_is_told_with_its_folder(done, tmp_path, weights):
    run = tmp_path / "run"
    shutil.copytree(done.path, run)
    state = {"step": 3, "weights": weights}
    Checkpoints(run / "checkpoints", ALONE).save(3, state, None)
    with pytest.raises(UserError, match=f"{run}: the state after step 3 does not fit the model"):
        saved.export(run, tmp_path / "out", None)
    assert [each.name for each in tmp_path.iterdir()] == ["run"]


# Scores ------------------------------------------------------------------------------------------


def by_enumeration(k, values):
    """The share of all subsets of k responses with a right one."""
    return fmean(max(subset) for subset in combinations(values, k))


def test_pass_at_k_is_the_share_of_subsets_with_a_right_answer():
    answers = [[1.0] * c + [0.0] * (8 - c) for c in range(9)]
    found = pass_at_powers(answers)
    assert list(found) == ["eval/pass@2", "eval/pass@4", "eval/pass@8"]
    for k in (2, 4, 8):
        expected = fmean(by_enumeration(k, values) for values in answers)
        assert found[f"eval/pass@{k}"] == pytest.approx(expected)


def test_pass_at_k_needs_several_answers_that_are_right_or_wrong():
    assert pass_at_powers([[1.0], [0.0]]) == {}
    assert pass_at_powers([[1.0, 0.5], [0.0, 0.0]]) == {}
    assert list(pass_at_powers([[1.0] * 3, [0.0] * 5])) == ["eval/pass@2"]


def scores(means, data="same"):
    return Scores({}, 0.0, 1.0, means, data)


def test_difference_is_paired_by_problem():
    """A constant gap has no uncertainty, however much the problems differ."""
    mean, low, high = difference(scores([0.2, 0.5, 0.9]), scores([0.1, 0.4, 0.8]))
    assert (mean, low, high) == pytest.approx((0.1, 0.1, 0.1))


def test_interval_of_a_difference_is_students():
    gaps = [0.0, 0.25, 0.5, 0.25]
    mean, low, high = difference(scores(gaps), scores([0.0] * 4))
    half = 3.1824463 * math.sqrt(1 / 24) / 2  # t at .975 with 3 degrees of freedom
    assert (mean, low, high) == pytest.approx((0.25, 0.25 - half, 0.25 + half))


def test_different_problems_are_refused():
    with pytest.raises(UserError, match="different problems"):
        difference(scores([1.0]), scores([1.0], data="other"))


def test_intervals():
    """Wilson's of 8 of 10 (Wilson 1927); Student's of four means by hand: t = 3.1824."""
    assert evaluation.interval([1.0] * 8 + [0.0] * 2) == pytest.approx((0.4902, 0.9433), abs=1e-4)
    low, high = evaluation.interval([0.25, 0.5, 0.5, 0.75])
    assert (low, high) == pytest.approx(
        (0.5 - 3.1824 * 0.2041 / 2, 0.5 + 3.1824 * 0.2041 / 2), abs=1e-3
    )
    assert evaluation.interval([0.0] * 5)[0] == 0
