"""The vLLM sampler, with the real engine on a CPU.

1. Log-probabilities are those of the trainer's forward pass, at the sampling temperature.
2. Loaded weights are the ones sampled from: tied or not, and nothing cached survives them.
3. A draw names its response; tokens come with their probability.
4. A response stops at any end token, which it includes, or at the limit.
5. Starting the engine disturbs nothing of the run around it.
6. A run goes through the command line, and resumes.
7. The folder that a run is exported to, with adapters merged, scores as the run said, in vLLM
   itself and in transformers.
8. Where adapters are trained, the engine draws with the newest ones, and a dropped push is seen.

Skipped where vLLM is not installed; `make test-vllm` makes an environment that has it.
"""

import contextlib
import copy
import dataclasses
import inspect
import json
import os
import random
import shutil
from collections import Counter

import numpy as np
import pytest
import torch
from conftest import SMALL, command, experiment, run, sample, timeless
from language_models import SHAPE
from transformers import AutoTokenizer, Qwen2Config, Qwen2ForCausalLM

from rec_experiments.common.batch import Responses, Rollouts, SampleKey, Sequences
from rec_experiments.common.errors import UserError
from rec_experiments.common.rng import TRAIN
from rec_experiments.policy.batching import collate
from rec_experiments.policy.chat import ChatTemplate
from rec_experiments.policy.logprobs import compute_logprobs
from rec_experiments.runs.evaluation import evaluate
from rec_experiments.runs.prepare import prepare
from rec_experiments.runs.saved import export
from rec_experiments.samplers.native import Native
from rec_experiments.samplers.vllm import Vllm, VllmSampler
from rec_experiments.training.metrics import response_metrics

pytest.importorskip("vllm", reason="vLLM is not installed: make test-vllm")

VOCABULARY, LONGEST, LIMIT = 61, 300, 14
EOS = [1, 2]
PROMPTS = [[3 + i % 50 for i in range(n)] for n in (3, 150, 7, 270, 1)]
DRAWS = [[SampleKey(0, TRAIN, 4, group, k) for k in range(4)] for group in range(len(PROMPTS))]
OPTIONS = {
    "temperature": 1.0,
    "eval_temperature": 1.0,
    "dtype": None,
    "max_num_seqs": 64,
    "batches_per_call": 1,
    "gpu_memory_utilization": 0.4,
    "kv_cache_memory_bytes": 64 << 20,
    "enforce_eager": True,
    "sleep": False,
}


def build(seed: int = 0, tied: bool = True, heads: int = 2) -> Qwen2ForCausalLM:
    torch.manual_seed(seed)
    own = {
        "vocab_size": VOCABULARY, "hidden_size": 64, "num_attention_heads": heads,
        "num_key_value_heads": heads, "max_position_embeddings": 512, "initializer_range": 0.15,
    }  # fmt: skip
    config = Qwen2Config(**{**SHAPE, **own}, tie_word_embeddings=tied)
    return Qwen2ForCausalLM(config).eval()


@contextlib.contextmanager
def engine(model: Qwen2ForCausalLM, eos: list[int] = EOS, **options):
    """A sampler of its own; a process holds one engine at a time, so it is shut down after."""
    sampler = Vllm(**{**OPTIONS, **options}).build(model, eos, LONGEST, LIMIT)
    yield sampler
    sampler.engine.llm_engine.engine_core.shutdown()


def native(model: Qwen2ForCausalLM, eos: list[int] = EOS):
    config = Native(temperature=1.0, eval_temperature=1.0, max_rows=None, bundle_bytes=0)
    return config.build(model, eos, LONGEST, LIMIT)


@pytest.fixture(scope="module", params=["tied", "untied"])
def pair(request):
    """A sampler, and whether it was built for tied embeddings."""
    tied = request.param == "tied"
    with engine(build(tied=tied)) as sampler:
        yield sampler, tied


@pytest.fixture(scope="module")
def sampler():
    with engine(build()) as sampler:
        yield sampler


def flat(groups):
    return [response for group in groups for response in group]


def tokens(groups):
    return [response.tokens for response in flat(groups)]


def assert_scored_by(model, groups, temperature):
    """Each response has the log-probabilities of the trainer's forward pass."""
    for prompt, group in zip(PROMPTS, groups, strict=True):
        for response in group:
            rows = collate(Sequences.of([prompt], [response.tokens]))
            with torch.no_grad():
                expected = compute_logprobs(model, rows, temperature).logp_BT[0]
            assert response.logp == pytest.approx(expected.tolist(), abs=1e-4)


@pytest.mark.parametrize("temperature", [0.7, 1.0])
def test_log_probabilities_are_the_trainers(pair, temperature):
    sampler, tied = pair
    model = build(seed=1, tied=tied)
    sampler.load(model.state_dict())
    assert_scored_by(model, sample(sampler, PROMPTS, DRAWS, temperature), temperature)


def test_greedy_tokens_and_log_probabilities_follow_each_push(pair):
    """Prompts of more than one cache block: a prefix kept from the old weights would show."""
    sampler, tied = pair
    seen = []
    for seed in (2, 3, 2):
        model = build(seed=seed, tied=tied)
        sampler.load(model.state_dict())
        ours = sample(sampler, PROMPTS, [draws[:1] for draws in DRAWS], 0.0)
        theirs = sample(native(model), PROMPTS, [draws[:1] for draws in DRAWS], 0.0)
        assert tokens(ours) == tokens(theirs)
        for a, b in zip(flat(ours), flat(theirs), strict=True):
            assert a.logp == pytest.approx(b.logp, abs=1e-4)
            assert a.finished == b.finished
        seen.append(tokens(ours))
    assert seen[0] == seen[2] != seen[1]


def test_the_callers_weights_and_the_samplers_stay_apart(pair):
    sampler, tied = pair
    trained = build(seed=4, tied=tied)
    sampler.load(trained.state_dict())
    before = sample(sampler, PROMPTS, DRAWS, 1.0)
    assert sample(sampler, PROMPTS, DRAWS, 1.0) == before
    kept = copy.deepcopy(trained.state_dict())
    for name, weight in trained.state_dict().items():
        assert torch.equal(weight, kept[name])
    with torch.no_grad():
        for parameter in trained.parameters():
            parameter.mul_(-2)
    assert tokens(sample(sampler, PROMPTS, DRAWS, 1.0)) == tokens(before)


def test_the_calls_that_only_a_gpu_runs_fit_the_engine():
    """Sleeping, held to this version's signatures."""
    from vllm import LLM, envs
    from vllm.engine.arg_utils import EngineArgs

    fields = {field.name for field in dataclasses.fields(EngineArgs)}
    assert {"enable_sleep_mode", "kv_cache_memory_bytes"} <= fields
    inspect.signature(LLM.sleep).bind(None, level=1)
    inspect.signature(LLM.wake_up).bind(None)
    assert (
        "VLLM_USE_V2_MODEL_RUNNER" in envs.environment_variables
    )  # of tests/benchmarks/gpu_day.py


def test_weights_that_do_not_fit_are_refused(sampler):
    weights = build().state_dict()
    missing = {name: w for name, w in weights.items() if name != "model.norm.weight"}
    with pytest.raises(ValueError, match=r"missing \{'model.norm.weight'\}"):
        sampler.load(missing)
    with pytest.raises(ValueError, match=r"unknown \{'extra'\}"):
        sampler.load({**weights, "extra": torch.zeros(1)})


def test_a_draw_names_its_response(sampler):
    """Alike whatever is sampled beside it; the same prompt with other draws gives others."""
    sampler.load(build().state_dict())
    together = sample(sampler, PROMPTS, DRAWS, 1.0)
    assert len({tuple(response.tokens) for response in together[0]}) == 4
    backwards = sample(sampler, PROMPTS[::-1], DRAWS[::-1], 1.0)
    assert tokens(backwards[::-1]) == tokens(together)
    alone = sample(sampler, [PROMPTS[0]] * 2, [DRAWS[0][1:2]] * 2, 1.0)
    assert tokens(alone) == [together[0][1].tokens] * 2
    assert sample(sampler, PROMPTS[:2], [[], DRAWS[1][:1]], 1.0)[0] == []


def test_tokens_come_with_their_probability(sampler):
    """Pearson's statistic of 4096 first tokens has 60 degrees of freedom: 110 is its 99.99 %."""
    model = build()
    sampler.load(model.state_dict())
    draws = [SampleKey(0, TRAIN, 0, 0, k) for k in range(4096)]
    counts = Counter(r.tokens[0] for r in sample(sampler, [[5, 6]], [draws], 0.7)[0])
    with torch.no_grad():
        expected = 4096 * torch.softmax(model(torch.tensor([[5, 6]])).logits[0, -1] / 0.7, -1)
    observed = torch.tensor([float(counts[token]) for token in range(VOCABULARY)])
    assert float(((observed - expected) ** 2 / expected).sum()) < 110


def test_a_long_prompt_leaves_less_room(sampler):
    sampler.load(build().state_dict())
    [[response]] = sample(sampler, [[5] * (LONGEST + LIMIT - 3)], [DRAWS[0][:1]], 1.0)
    assert len(response.tokens) <= 3


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_diverged_policy_is_reported(sampler, temperature):
    model = build()
    with torch.no_grad():
        model.model.norm.weight.fill_(float("nan"))
    sampler.load(model.state_dict())
    with pytest.raises(FloatingPointError, match="diverged"):
        sample(sampler, PROMPTS, DRAWS, temperature)


def test_stops_at_any_end_token_or_at_the_limit():
    ends = list(range(20, 26))
    draws = [[SampleKey(0, TRAIN, 0, group, k) for k in range(20)] for group in range(len(PROMPTS))]
    with engine(build(), ends) as sampler:
        sampler.load(build().state_dict())
        responses = flat(sample(sampler, PROMPTS, draws, 1.0))
    for response in responses:
        first = next((t for t, token in enumerate(response.tokens) if token in ends), None)
        assert response.finished == (first is not None)
        assert len(response.tokens) == (LIMIT if first is None else first + 1)
    assert len({response.tokens[-1] for response in responses if response.finished}) > 3
    assert {response.finished for response in responses} == {True, False}


def test_the_run_around_it_is_undisturbed():
    model = build()
    random.seed(1)
    np.random.seed(1)
    torch.manual_seed(1)
    before = random.getstate(), str(np.random.get_state()), torch.get_rng_state()
    function, affinity = torch.set_num_threads, os.sched_getaffinity(0)
    with engine(model):
        pass
    assert (random.getstate(), str(np.random.get_state())) == before[:2]
    assert torch.equal(torch.get_rng_state(), before[2])
    assert (torch.set_num_threads, torch.get_num_threads()) == (function, 1)
    assert os.sched_getaffinity(0) == affinity
    assert torch.get_default_dtype() == torch.float32
    assert torch.is_grad_enabled()


def test_a_head_size_that_vllm_has_not_is_refused_in_one_line():
    with pytest.raises(UserError, match="head_dim=16") as caught, engine(build(heads=4)):
        pass
    assert "\n" not in str(caught.value)


RUN = (
    *SMALL,
    "sampler=vllm",
    "sampler.enforce_eager=true",
    "sampler.kv_cache_memory_bytes=67108864",
    "model.heads=2",
    "sync.interval=2",
    "steps=4",
)


def rows_of(folder):
    return [timeless(json.loads(line)) for line in (folder / "metrics.jsonl").open()]


def test_a_run_ends_and_resumes_to_the_same_numbers(tmp_path):
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    done = command(*RUN, "run_dir=whole", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    assert json.loads((whole / "status.json").read_text())["state"] == "done"
    rows = rows_of(whole)
    assert [row["step"] for row in rows] == [0, 1, 2, 3, 4]
    assert ["train/mismatch" in row for row in rows] == [False, True, False, True, False]
    assert all(row.get("train/mismatch_max", 0) < 1e-4 for row in rows)

    shutil.copytree(whole, cut)  # as killed after the step of its last checkpoint but one
    shutil.rmtree(max((cut / "checkpoints").iterdir()))
    (cut / "status.json").write_text('{"state": "running"}')
    resumed = command(*RUN, "run_dir=cut", cwd=tmp_path)
    assert resumed.returncode == 0, resumed.stderr
    assert "resumed after gradient step 3" in resumed.stdout
    assert rows_of(cut) == rows


@pytest.fixture(scope="module")
def adapters(tmp_path_factory):
    """Overrides of a run that trains adapters beside a model of transformers."""
    path = tmp_path_factory.mktemp("model") / "tiny"
    start = prepare(experiment(*SMALL, "model.heads=2", "model.warm_start.steps=100"))
    start.model.save_pretrained(path)
    start.evaluator.chat.tokenizer.save_pretrained(path)
    return (
        *(each for each in SMALL if not each.startswith("model.")), "model=pretrained",
        f"model.path={path}", "adapter=lora", "model.lora.rank=4", "model.lora.alpha=16",
        "optimizer.learning_rate=0.01", "algo=asymre",
    )  # fmt: skip


@pytest.mark.parametrize("dropped", [False, True])
def test_the_engine_draws_with_the_newest_adapters(dropped, adapters, tmp_path, monkeypatch):
    build, load, samplers, pushes = Vllm.build, VllmSampler.load, [], []

    def kept(*arguments):
        samplers.append(build(*arguments))
        return samplers[-1]

    def some(sampler, weights):
        pushes.append(1)
        if not dropped or len(pushes) == 1:
            load(sampler, weights)

    monkeypatch.setattr(Vllm, "build", kept)
    monkeypatch.setattr(VllmSampler, "load", some)
    own = ("sampler=vllm", "sampler.enforce_eager=true", "sampler.kv_cache_memory_bytes=67108864")
    try:
        done = run(tmp_path / "run", *adapters, *own, "sync=on_policy")
    finally:
        for sampler in samplers:
            sampler.engine.llm_engine.engine_core.shutdown()
    first, *later = [row["train/mismatch_max"] for row in done.metrics()[1:]]
    assert first < 1e-4
    assert len(later) == 2
    assert all(gap > 1e-2 if dropped else gap < 1e-4 for gap in later), later


@pytest.mark.parametrize("kind", ["all weights", "adapters"])
def test_an_exported_folder_scores_as_the_run_said(kind, request, tmp_path):
    """Weights, tokenizer and end tokens are those of the folder; nothing is pushed."""
    from vllm import LLM, SamplingParams

    all_weights = (*SMALL, "model.heads=2", "model.warm_start.steps=100")
    own = all_weights if kind == "all weights" else request.getfixturevalue("adapters")
    overrides = (*own, "sampler.eval_temperature=0", "eval_problems=16", "eval_every=1")
    done = run(tmp_path / "run", *overrides)
    step = export(done.path, tmp_path / "model", None)
    engine = LLM(
        str(tmp_path / "model"), dtype="float32", enforce_eager=True, max_model_len=512,
        kv_cache_memory_bytes=64 << 20,
    )  # fmt: skip
    task = experiment(*overrides).dataset
    problems = task.load()[1][:16]
    trained = Qwen2ForCausalLM.from_pretrained(tmp_path / "model")
    chat = ChatTemplate(AutoTokenizer.from_pretrained(tmp_path / "model"), trained)
    greedy = SamplingParams(
        temperature=0, max_tokens=task.max_response_tokens, stop_token_ids=chat.eos_ids
    )
    prompts = chat.encode_all([problem.messages for problem in problems])
    drawn = [
        output.outputs[0]
        for output in engine.generate(
            [{"prompt_token_ids": prompt} for prompt in prompts], greedy, use_tqdm=False
        )
    ]
    engine.llm_engine.engine_core.shutdown()
    tokens = [list(each.token_ids) for each in drawn]
    results = [
        task.verify(chat.decode(ids), problem.answer)
        for ids, problem in zip(tokens, problems, strict=True)
    ]
    rollouts = Rollouts.verified(
        Responses.of(tokens, finished=[each.finish_reason == "stop" for each in drawn]),
        prompts=prompts,
        groups=list(range(len(prompts))),
        results=results,
    )
    said = {k: v for k, v in done.metrics()[step].items() if k.startswith("eval/")}
    assert response_metrics("eval", rollouts) == said
    data = [each for each in overrides if each.startswith(("dataset", "eval_", "sampler"))]
    assert evaluate(str(tmp_path / "model"), step, data).metrics == said
    assert said["eval/response_length"] > 1
