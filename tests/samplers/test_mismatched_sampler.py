"""The sampler that differs from the trainer on purpose.

1. Rounded weights lie on the grid of their format; noise has the stated size, on logits exactly.
2. The probabilities that it reports are those of the perturbed model, and loading is repeatable.
3. Noise on logits is the same whatever is drawn beside a response, and when weights are swapped.
"""

import copy
import dataclasses
from itertools import chain

import pytest
import torch
import transformers
from conftest import said, sample
from language_models import SHAPE

from rec_experiments.common.batch import SampleKey
from rec_experiments.common.rng import TRAIN
from rec_experiments.samplers.mismatch import logit_noise, noisy, quantized
from rec_experiments.samplers.native import Mismatched, Native, NoisyLogits

EOS, LIMIT = [1, 2], 10
PROMPTS = [[3, 4, 5], [6, 7, 8, 9, 10]]
KEYS = [[SampleKey(0, TRAIN, 0, group, k) for k in range(4)] for group in range(len(PROMPTS))]
NATIVE = Native(temperature=1.0, eval_temperature=1.0, max_rows=None, bundle_bytes=0)
KINDS = {
    "bfloat16": {"compute_dtype": "bfloat16"},
    "int8": {"quantization": "int8"},
    "fp8": {"quantization": "fp8"},
    "noise": {"noise": 0.01},
    "logits": {"logit_noise": 0.1},
}


def mismatched(**values):
    unperturbed = {"compute_dtype": None, "quantization": None, "noise": 0.0, "noise_seed": 0}
    kind = NoisyLogits if "logit_noise" in values else Mismatched
    return kind(**dataclasses.asdict(NATIVE), **unperturbed | values)


@pytest.fixture(scope="module", params=[True, False], ids=["tied", "untied"])
def model(request):
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        **{**SHAPE, "vocab_size": 61, "initializer_range": 0.15}, tie_word_embeddings=request.param
    )
    return transformers.LlamaForCausalLM(config).eval()


def build(choice, model):
    return choice.build(model, EOS, 8, LIMIT)


def responses(sampler):
    drawn = sample(sampler, PROMPTS, KEYS, 1.0)
    return [(r.tokens, r.logp) for group in drawn for r in group]


def log_probabilities(model, prompt, tokens):
    ids = torch.tensor([prompt + tokens])
    with torch.no_grad():
        logp = model(input_ids=ids).logits[0].float().log_softmax(-1)
    positions = range(len(prompt) - 1, len(prompt) + len(tokens) - 1)
    return [logp[at, token].item() for at, token in zip(positions, tokens, strict=True)]


def gap(sampler, model):
    """Mean |log π_trainer − log π_sampler| over the tokens drawn."""
    drawn = sample(sampler, PROMPTS, KEYS, 1.0)
    gaps = [
        abs(own - exact)
        for prompt, group in zip(PROMPTS, drawn, strict=True)
        for r in group
        for own, exact in zip(r.logp, log_probabilities(model, prompt, r.tokens), strict=True)
    ]
    return sum(gaps) / len(gaps)


def test_int8_has_255_levels_and_errs_by_half_a_step_at_most():
    weight = torch.randn(5, 400, generator=torch.Generator().manual_seed(0))
    step = weight.abs().amax(1, keepdim=True) / 127
    levels = quantized(weight, "int8") / step
    assert torch.allclose(levels, levels.round(), atol=1e-4)
    assert ((quantized(weight, "int8") - weight).abs() <= step * 0.5001).all()


def test_fp8_errs_by_a_sixteenth_at_most_where_numbers_are_normal():
    weight = torch.randn(5, 400, generator=torch.Generator().manual_seed(0))
    scale = weight.abs().amax(1, keepdim=True) / 448
    normal = weight.abs() > scale * 2**-6
    error = (quantized(weight, "fp8") - weight).abs() / weight.abs()
    assert error[normal].max() <= 1 / 16 + 1e-6
    assert error[normal].max() > 1 / 32


def test_noise_has_its_size_and_a_name():
    weight = torch.randn(200, 300, generator=torch.Generator().manual_seed(0)) * 3
    noise = noisy(weight, 0.1, 0, "a") - weight
    assert noise.std().item() == pytest.approx(0.3, rel=0.02)
    assert torch.equal(noisy(weight, 0.1, 0, "a"), weight + noise)
    for seed, name in [(0, "b"), (1, "a")]:
        other = noisy(weight, 0.1, seed, name) - weight
        assert abs(torch.corrcoef(torch.stack([noise.flatten(), other.flatten()]))[0, 1]) < 0.02


@pytest.mark.parametrize("kind", sorted(KINDS.keys() - {"logits"}))
def test_it_reports_the_probabilities_of_the_perturbed_model(model, kind):
    sampler = build(mismatched(**KINDS[kind]), model)
    assert gap(sampler, model) > 1e-4
    assert gap(sampler, sampler.model) < (2e-2 if kind == "bfloat16" else 1e-5)
    embeddings = sampler.model.get_input_embeddings().weight.float()
    if kind != "bfloat16":
        assert torch.equal(embeddings, model.get_input_embeddings().weight)


@pytest.mark.parametrize("kind", KINDS)
def test_loading_again_changes_nothing(model, kind):
    choice = mismatched(**KINDS[kind])
    sampler, fresh = build(choice, model), build(choice, model)
    other = copy.deepcopy(model)
    for weight in other.parameters():
        weight.data.mul_(1.5)
    sampler.load(other.state_dict())
    assert responses(sampler) != responses(fresh)
    sampler.load(model.state_dict())
    assert responses(sampler) == responses(fresh)


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_noise_on_logits_is_what_the_responses_were_drawn_with(model, temperature):
    """log softmax((logits + noise)/temperature) of the unperturbed model, token by token."""
    sampler = build(mismatched(logit_noise=0.5, noise_seed=3), model)
    drawn = sample(sampler, PROMPTS, KEYS, temperature)
    furthest = 0.0
    for prompt, group in zip(PROMPTS, drawn, strict=True):
        for r in group:
            places = range(len(prompt) - 1, len(prompt) + len(r.tokens) - 1)
            with torch.no_grad():
                logits_TV = model(input_ids=torch.tensor([prompt + r.tokens])).logits[0][places]
            before = [prompt + r.tokens[:t] for t in range(len(r.tokens))]
            noise_TV = logit_noise(before, 61, 0.5, 3)
            exact, expected = (
                (x / temperature).log_softmax(-1)[range(len(r.tokens)), r.tokens]
                for x in (logits_TV, logits_TV + noise_TV)
            )
            assert r.logp == pytest.approx(expected.tolist(), abs=1e-5)
            furthest = max(furthest, float((exact - expected).abs().max()))
    assert furthest > 0.3


def test_noise_on_logits_does_not_depend_on_what_is_drawn_together(model):
    config = mismatched(logit_noise=0.5)
    together, apart = (
        chain.from_iterable(sample(build(each, model), PROMPTS, KEYS, 1.0))
        for each in (config, dataclasses.replace(config, max_rows=3))
    )
    for one, other in zip(together, apart, strict=True):
        assert one.tokens == other.tokens
        assert one.logp == pytest.approx(other.logp, abs=1e-5)


@pytest.mark.parametrize("keeps_cache", [True, False])
def test_noise_on_logits_in_flight(model, keeps_cache):
    """A swap to the same weights, within a response, changes nothing."""
    sampler, weights = build(mismatched(logit_noise=0.5), model), model.state_dict()
    whole, flown = (
        said(sampler.sample_in_flight(PROMPTS, KEYS, 1.0, each, keeps_cache))
        for each in ((), [(0, weights), (3, weights)])
    )
    for one, other in zip(whole, flown, strict=True):
        assert one.tokens == other.tokens
        assert one.logp == pytest.approx(other.logp, abs=1e-5)
