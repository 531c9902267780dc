"""The native sampler.

1. Tokens and log-probabilities equal those of a plain loop without a cache, for any architecture.
2. A response does not depend on the other responses; a shared prefix is computed once.
3. A response ends with any end token, or at the limit.
4. Samples come from the loaded weights, also for tied and fused parameters.
5. The fused step equals the library's forward; it is used only for models that it supports.
6. A token is drawn with exactly its probability, in a vocabulary of any size.
"""

import contextlib
import copy
import math
from itertools import chain

import numpy as np
import pytest
import torch
import transformers
from conftest import Said, sample
from hypothesis import given, settings
from hypothesis import strategies as st
from language_models import SHAPE
from transformers import PreTrainedModel

from rec_experiments.common.batch import SampleKey
from rec_experiments.common.rng import TRAIN, uniforms
from rec_experiments.samplers import decoding
from rec_experiments.samplers.decoding import NativeSampler, choose
from rec_experiments.samplers.native import Native

VOCABULARY, LIMIT = 61, 14
EOS = [1, 2]
PROMPTS = [list(range(3, 3 + n)) for n in (3, 7, 5, 9, 1)]
DRAWS = [[SampleKey(0, TRAIN, 4, group, k) for k in range(3)] for group in range(len(PROMPTS))]

LLAMA_STYLE = {**SHAPE, "vocab_size": VOCABULARY, "initializer_range": 0.15}
GPT2_STYLE = {
    "vocab_size": VOCABULARY,
    "n_embd": 32,
    "n_layer": 2,
    "n_head": 4,
    "n_positions": 64,
    "initializer_range": 0.15,
    "bos_token_id": None,
    "eos_token_id": None,
}
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}
DYNAMIC_ROPE = {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 2.0}
CONFIGS = {
    "qwen2": lambda: transformers.Qwen2Config(**LLAMA_STYLE, tie_word_embeddings=True),
    "qwen2-sliding": lambda: transformers.Qwen2Config(
        **LLAMA_STYLE, use_sliding_window=True, sliding_window=4, max_window_layers=1
    ),
    "llama": lambda: transformers.LlamaConfig(**LLAMA_STYLE, head_dim=12),
    "llama-biased": lambda: transformers.LlamaConfig(
        **LLAMA_STYLE, attention_bias=True, mlp_bias=True, rope_parameters=LLAMA3_ROPE
    ),
    "llama-dynamic": lambda: transformers.LlamaConfig(**LLAMA_STYLE, rope_parameters=DYNAMIC_ROPE),
    "llama-gelu": lambda: transformers.LlamaConfig(**LLAMA_STYLE, hidden_act="gelu"),
    "mistral-sliding": lambda: transformers.MistralConfig(**LLAMA_STYLE, sliding_window=4),
    "gemma2": lambda: transformers.Gemma2Config(**LLAMA_STYLE, head_dim=8, sliding_window=5),
    "gpt2": lambda: transformers.GPT2Config(**GPT2_STYLE),
}
FUSED = {"qwen2", "llama", "llama-biased"}


def build(name: str, seed: int = 0) -> PreTrainedModel:
    """A tiny random model. Norms and biases are random too, so that none can be forgotten."""
    torch.manual_seed(seed)
    model = transformers.AutoModelForCausalLM.from_config(CONFIGS[name]()).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter.add_(torch.randn_like(parameter) * 0.2)
    return model


def sampler_of(model: PreTrainedModel, max_rows: int | None = None) -> NativeSampler:
    return NativeSampler(copy.deepcopy(model), EOS, LIMIT, max_rows)


def flat(groups: list[list[Said]]) -> list[Said]:
    return list(chain.from_iterable(groups))


def tokens(groups: list[list[Said]]) -> list[list[list[int]]]:
    return [[response.tokens for response in group] for group in groups]


def reference(
    model: PreTrainedModel, prompt: list[int], draw: SampleKey, temperature: float
) -> Said:
    """One response by full forwards, with a CDF in float64."""
    ids, logp = list(prompt), []
    for uniform in uniforms([draw], LIMIT)[:, 0]:
        with torch.no_grad():
            logits = model(torch.tensor([ids])).logits[0, -1].double()
        logp_V = torch.log_softmax(logits / (temperature or 1), dim=-1).numpy()
        if temperature == 0:
            token = int(logp_V.argmax())
        else:
            token = int(np.searchsorted(np.cumsum(np.exp(logp_V)), uniform, side="right"))
        ids.append(token)
        logp.append(float(logp_V[token]))
        if token in EOS:
            break
    return Said(ids[len(prompt) :], logp, ids[-1] in EOS, [True] * len(logp))


@pytest.mark.parametrize(
    ("name", "temperature"), [*((name, 1.0) for name in CONFIGS), ("qwen2", 0.0), ("qwen2", 0.7)]
)
def test_agrees_with_a_loop_without_a_cache(name, temperature):
    model = build(name)
    sampled = sample(sampler_of(model), PROMPTS, DRAWS, temperature)
    split = sample(sampler_of(model, max_rows=7), PROMPTS, DRAWS, temperature)
    assert tokens(split) == tokens(sampled)
    for prompt, draws, group in zip(PROMPTS, DRAWS, sampled, strict=True):
        for draw, response in zip(draws, group, strict=True):
            expected = reference(model, prompt, draw, temperature)
            assert response.tokens == expected.tokens
            assert response.finished == expected.finished
            assert response.logp == pytest.approx(expected.logp, abs=1e-5)


def test_rows_at_once(monkeypatch):
    """A token's keys and values in two layers: 2 heads of 8 numbers each, 4 bytes a number."""
    model = build("qwen2")
    whole = sample(sampler_of(model), PROMPTS, DRAWS, 1.0)
    a_row = (max(map(len, PROMPTS)) + LIMIT) * 2 * 2 * 2 * 8 * 4
    monkeypatch.setattr(decoding, "CACHE_AT_ONCE", 5 * a_row - 1)
    sampler, widths = sampler_of(model), []
    embeddings = sampler.model.get_input_embeddings()
    embeddings.register_forward_hook(lambda _, inputs, output: widths.append(len(inputs[0])))
    found = sample(sampler, PROMPTS, DRAWS, 1.0)
    assert max(widths) == 4
    assert tokens(found) == tokens(whole)


@pytest.mark.parametrize("name", ["qwen2", "gemma2"])
def test_prefixes_are_computed_once(name):
    """A forward pass holds the prefixes that differ, and no others."""
    sampler, widths = sampler_of(build(name)), []
    embeddings = sampler.model.get_input_embeddings()
    embeddings.register_forward_hook(lambda _, inputs, output: widths.append(len(inputs[0])))
    for temperature in (0.0, 0.3):
        widths.clear()
        sampled = sample(sampler, PROMPTS, DRAWS, temperature)
        for t, width in enumerate(widths):
            going_on = {
                (n, *response.tokens[:t])
                for n, group in enumerate(sampled)
                for response in group
                if len(response.tokens) > t
            }
            assert width == len(going_on)


def fill(weights, value):
    return {name: torch.full_like(x, value) for name, x in weights.items()}


def huge_keys(weights, value):
    """A policy whose logits are finite all the same."""
    return {name: x * (value if "k_proj.weight" in name else 1) for name, x in weights.items()}


@pytest.mark.parametrize(("broken", "value"), [(fill, math.nan), (huge_keys, 1e36)])
@pytest.mark.parametrize("name", ["qwen2", "gemma2"])
def test_reused_memory_changes_no_bit(name, broken, value, monkeypatch):
    """After calls with other prompts, and after an interrupted call of a diverged policy."""
    model = build(name)
    used, fresh = sampler_of(model), sampler_of(model)
    sample(used, PROMPTS, DRAWS, 1.0)
    weights = {name: x.clone() for name, x in used.model.state_dict().items()}
    calls = iter(range(1000))

    def until_interrupted(*given):
        if next(calls) == 3:
            raise KeyboardInterrupt
        return choose(*given)

    for few in (PROMPTS[:1], PROMPTS):
        used.load(broken(weights, value))
        monkeypatch.setattr(decoding, "choose", until_interrupted)
        with contextlib.suppress(FloatingPointError, KeyboardInterrupt):
            sample(used, PROMPTS, DRAWS, 1.0)
        monkeypatch.undo()
        used.load(weights)
        assert sample(used, few, DRAWS[: len(few)], 1.0) == sample(
            fresh, few, DRAWS[: len(few)], 1.0
        )


@pytest.mark.parametrize("name", ["qwen2", "gpt2"])
def test_end_tokens(name):
    """With 6 end tokens of 61 most rows end early, at different lengths, and are dropped."""
    model = build(name)
    draws = [[SampleKey(0, TRAIN, 0, group, k) for k in range(20)] for group in range(len(PROMPTS))]
    endless = sample(NativeSampler(copy.deepcopy(model), [], LIMIT, None), PROMPTS, draws, 1.0)
    ends = list(range(20, 26))
    stopped = sample(NativeSampler(copy.deepcopy(model), ends, LIMIT, None), PROMPTS, draws, 1.0)
    for full, response in zip(flat(endless), flat(stopped), strict=True):
        assert len(full.tokens) == LIMIT
        assert not full.finished
        first = next((t for t, token in enumerate(full.tokens) if token in ends), None)
        assert response.finished == (first is not None)
        cut = LIMIT if first is None else first + 1
        assert response.tokens == full.tokens[:cut]
        assert response.logp == pytest.approx(full.logp[:cut], abs=1e-5)
    assert len({response.tokens[-1] for response in flat(stopped) if response.finished}) > 3
    assert {response.finished for response in flat(stopped)} == {True, False}


@pytest.mark.parametrize("name", ["qwen2", "llama-biased", "gpt2"])
def test_samples_from_the_loaded_weights(name):
    sampler, new = sampler_of(build(name)), build(name, seed=1)
    sampler.load(new.state_dict())
    assert sample(sampler, PROMPTS, DRAWS, 1.0) == sample(sampler_of(new), PROMPTS, DRAWS, 1.0)


@pytest.mark.parametrize("absent", ["lm_head.weight", "model.embed_tokens.weight"])
def test_tied_parameter(absent):
    sampler, new = sampler_of(build("qwen2")), build("qwen2", seed=1)
    weights = {name: weight for name, weight in new.state_dict().items() if name != absent}
    sampler.load(weights)
    assert sample(sampler, PROMPTS, DRAWS, 1.0) == sample(sampler_of(new), PROMPTS, DRAWS, 1.0)


def test_wrong_weights():
    weights = build("llama").state_dict()
    missing = {name: weight for name, weight in weights.items() if name != "lm_head.weight"}
    with pytest.raises(ValueError, match=r"missing \['lm_head.weight'\]"):
        sampler_of(build("llama")).load(missing)
    with pytest.raises(ValueError, match=r"unknown \['extra'\]"):
        sampler_of(build("llama")).load({**weights, "extra": torch.zeros(1)})


@pytest.mark.parametrize("name", CONFIGS)
def test_models_of_the_fused_step(name):
    sampler = sampler_of(build(name))
    assert (sampler.decoder is not None) == (name in FUSED)
    assert sampler_of(build(name).to(torch.bfloat16)).decoder is None


@pytest.mark.parametrize("name", sorted(FUSED))
def test_fused_step(name):
    """Over a span that the fused step rounds up, past its first multiple."""
    prompts = [list(range(2, 2 + n)) for n in (30, 24, 1)]
    fused, library = (sampler_of(build(name)) for _ in range(2))
    library.decoder = None
    ours, theirs = (sample(s, prompts, DRAWS[:3], 1.0) for s in (fused, library))
    assert tokens(ours) == tokens(theirs)
    for a, b in zip(flat(ours), flat(theirs), strict=True):
        assert a.logp == pytest.approx(b.logp, abs=1e-5)


def draw_tokens(logits_BV, uniform_B, temperature=1.0):
    scratch_XV = torch.empty(logits_BV.shape, dtype=torch.long)
    token_B1, logp_B1 = choose(logits_BV, uniform_B[:, None], temperature, scratch_XV)
    return token_B1[:, 0], logp_B1[:, 0]


def test_probability_of_tokens():
    """Evenly spaced uniforms hit each token in proportion to its probability, exactly."""
    share = torch.tensor([0.0, 0.25, 0.0, 0.5, 0.125, 0.125, 0.0])
    uniform_B = (torch.arange(1000, dtype=torch.float64) + 0.5) / 1000
    token_B, logp_B = draw_tokens(share.log().expand(1000, -1), uniform_B)
    assert torch.bincount(token_B, minlength=7).tolist() == [0, 250, 0, 500, 125, 125, 0]
    assert logp_B.tolist() == pytest.approx(share[token_B].log().tolist(), abs=1e-6)


def test_large_vocabulary():
    """A flat distribution over Qwen's vocabulary, where a float32 CDF is off by many tokens."""
    vocabulary = 151_936
    expected_B = torch.arange(0, vocabulary, 1187)
    uniform_B = (expected_B.double() + 0.5) / vocabulary
    token_B, logp_B = draw_tokens(torch.zeros(len(expected_B), vocabulary), uniform_B)
    assert token_B.tolist() == expected_B.tolist()
    assert logp_B.tolist() == pytest.approx([-math.log(vocabulary)] * len(token_B), abs=1e-6)


@settings(max_examples=50, deadline=None)
@given(seed=st.integers(0, 2**31), size=st.integers(1, 3000), spread=st.floats(0, 30))
def test_float64_cdf(seed, size, spread):
    generator = np.random.default_rng(seed)
    logits = (generator.standard_normal(size) * spread).astype(np.float32)
    uniform = generator.random()
    logits_BV = torch.from_numpy(logits)[None]
    token_B, logp_B = draw_tokens(logits_BV, torch.tensor([uniform]).double(), 0.8)
    logp_V = torch.log_softmax(logits_BV[0].double() / 0.8, dim=-1).numpy()
    below = np.exp(logp_V[: int(token_B)]).sum()
    assert below - 1e-6 <= uniform <= below + np.exp(logp_V[int(token_B)]) + 1e-6
    assert float(logp_B) == pytest.approx(logp_V[int(token_B)], abs=1e-5)


@pytest.mark.parametrize(("bad", "temperature"), [(math.nan, 1.0), (math.inf, 0.0)])
def test_diverged_policy(bad, temperature):
    model = build("qwen2")
    with torch.no_grad():
        model.model.norm.weight.fill_(bad)
    with pytest.raises(FloatingPointError, match="diverged"):
        sample(sampler_of(model), PROMPTS, DRAWS, temperature)


@pytest.mark.parametrize(("room", "batches"), [(0, 1), (299, 2), (300, 3)])
def test_bundle(room, batches):
    """In batches of 7 tokens; a token's keys and values are counted on a cache."""
    model = build("gpt2")
    cache = model(torch.tensor([[1, 2, 3]]), use_cache=True).past_key_values
    a_token = sum(x.nbytes for layer in cache.layers for x in (layer.keys, layer.values)) // 3
    size = room * 7 * a_token // 100
    config = Native(temperature=1.0, eval_temperature=1.0, max_rows=None, bundle_bytes=size)
    assert config.bundle(model, tokens=7) == batches
