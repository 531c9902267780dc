"""Log-probabilities, entropy, KL and their gradient, with the head applied in chunks of tokens.

1. Chunked equals plain: numbers and gradients, any chunk, bias or none, tied weights or not.
2. No tensor of the size of all logits is made, forward or backward.
3. What stands in the padding changes nothing.
4. Families that do more than a linear layer keep the library's own logits.
5. Under autocast the products are bfloat16, log-softmax and gradients float32.
6. It works on a model whose weights are sharded.
"""

import copy
from unittest import mock

import pytest
import torch
import torch.distributed
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from rec_experiments.policy import head
from rec_experiments.policy import logprobs as scores
from rec_experiments.policy.head import Head, token_scores
from rec_experiments.policy.logprobs import collate, has_plain_head, score

VOCABULARY = 97
SHAPE = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 48,
    "max_position_embeddings": 64,
    "initializer_range": 0.2,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}
FAMILIES = {
    "qwen2 tied": lambda: transformers.Qwen2Config(**SHAPE, tie_word_embeddings=True),
    "qwen2": lambda: transformers.Qwen2Config(**SHAPE, tie_word_embeddings=False),
    "qwen3": lambda: transformers.Qwen3Config(**SHAPE, head_dim=8, tie_word_embeddings=True),
    "llama": lambda: transformers.LlamaConfig(**SHAPE, tie_word_embeddings=False),
    "mistral": lambda: transformers.MistralConfig(**SHAPE, tie_word_embeddings=False),
}
TOLERANCE = {torch.float64: 1e-10, torch.float32: 1e-5}


def build(config, seed=0, dtype=torch.float32):
    torch.manual_seed(seed)
    return transformers.AutoModelForCausalLM.from_config(config).to(dtype)


def rows(pad_id=0):
    prompts = [[5, 6, 7], [8, 9, 10, 11, 12, 13], [14]]
    responses = [[20, 21, 22, 23, 24, 25, 26], [27], [28, 29, 30, 31]]
    return collate(prompts, responses, pad_id)


def chunks_of(tokens):
    """Both limits: when to cut, and how many tokens a chunk has."""
    limit = tokens * VOCABULARY
    return mock.patch.multiple(head, LOGITS_AT_ONCE=limit), mock.patch.multiple(
        scores, LOGITS_AT_ONCE=limit
    )


def scored(model, reference, batch, tokens=None):
    """Scores of the live tokens and the gradient of a weighted sum; plain without `tokens`."""
    model = copy.deepcopy(model)
    chunk, cut = chunks_of(tokens or 10**9)
    with chunk, cut:
        scores = score(model, reference, batch, temperature=0.7)
        live_BT = batch.attention_mask[:, -batch.response_length :].bool()
        torch.manual_seed(3)
        weight_BT = torch.randn(live_BT.shape)
        torch.where(live_BT, weight_BT * scores.logp_BT, 0.0).sum().backward()
    gradients = {name: p.grad for name, p in model.named_parameters()}
    return [x if x is None else x[live_BT].detach() for x in scores], gradients


@settings(max_examples=60, deadline=None)
@given(
    tokens=st.integers(1, 9),
    chunk=st.integers(1, 10),
    vocabulary=st.integers(2, 17),
    hidden=st.integers(1, 5),
    scale=st.sampled_from([0.1, 3.0, 40.0]),
    temperature=st.sampled_from([0.3, 1.0, 2.0]),
    bias=st.booleans(),
    reference=st.booleans(),
    dtype=st.sampled_from([torch.float32, torch.float64]),
    seed=st.integers(0, 2**31),
)
def test_the_chunked_head_is_the_plain_one(
    tokens, chunk, vocabulary, hidden, scale, temperature, bias, reference, dtype, seed
):
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape, grad=True):
        x = torch.randn(shape, generator=generator, dtype=torch.float64)
        return x.to(dtype).requires_grad_(grad)

    def a_head(grad):
        return Head(
            normal(tokens, hidden, grad=grad),
            normal(vocabulary, hidden, grad=grad).data.mul_(scale).requires_grad_(grad),
            normal(vocabulary, grad=grad) if bias else None,
        )

    ours, other = a_head(True), a_head(False) if reference else None
    target_N = torch.randint(vocabulary, (tokens,), generator=generator)
    weight_N = normal(tokens, grad=False)

    logp_NV = [
        torch.log_softmax(functional.linear(*(x if x is None else x.double() for x in h))
                          / temperature, -1)
        for h in (ours, other) if h is not None
    ]  # fmt: skip
    p_NV = logp_NV[0].exp()
    expected = [logp_NV[0][range(tokens), target_N], -(p_NV * logp_NV[0]).sum(-1)]
    if other:
        expected.append((p_NV * (logp_NV[0] - logp_NV[1])).sum(-1))
    leaves = [x for x in ours if x is not None]
    expected_gradients = torch.autograd.grad((expected[0] * weight_N).sum(), leaves)

    with mock.patch.object(head, "LOGITS_AT_ONCE", chunk * vocabulary):
        scores = token_scores(ours, other, target_N, temperature)
        gradients = torch.autograd.grad((scores[0] * weight_N).sum(), leaves)
    assert (scores[2] is None) == (other is None)
    assert [x.requires_grad for x in scores if x is not None] == [True, False, False][
        : len(expected)
    ]
    size = max(1.0, *(float(x.detach().abs().max()) for x in logp_NV))
    for one, two in zip(scores, expected, strict=False):
        limit = TOLERANCE[dtype] * size
        torch.testing.assert_close(one.double(), two.detach(), rtol=TOLERANCE[dtype], atol=limit)
    for one, two in zip(gradients, expected_gradients, strict=True):
        assert one.dtype == dtype
        limit = TOLERANCE[dtype] * size * max(1.0, float(two.abs().max()))
        torch.testing.assert_close(one, two.to(dtype), rtol=TOLERANCE[dtype], atol=limit)


def test_the_gradient_passes_the_numerical_check():
    torch.manual_seed(0)
    leaves = [
        torch.randn(shape, dtype=torch.float64, requires_grad=True)
        for shape in ((5, 3), (7, 3), (7,))
    ]
    target_N = torch.tensor([0, 6, 2, 2, 1])
    with mock.patch.object(head, "LOGITS_AT_ONCE", 2 * 7):
        assert torch.autograd.gradcheck(
            lambda *h: token_scores(Head(*h), None, target_N, 0.7)[0], leaves
        )


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("chunk", [1, 5])
def test_a_chunked_model_scores_as_the_plain_one(family, dtype, chunk):
    """Every parameter's gradient too: that of tied embeddings comes from both ends."""
    model, reference = (build(FAMILIES[family](), seed, dtype) for seed in (0, 1))
    assert has_plain_head(model)
    plain, plain_gradients = scored(model, reference, rows())
    chunked, chunked_gradients = scored(model, reference, rows(), chunk)
    close = {"rtol": TOLERANCE[dtype], "atol": TOLERANCE[dtype]}
    for one, two in zip(chunked, plain, strict=True):
        torch.testing.assert_close(one, two, **close)
    assert chunked_gradients.keys() == plain_gradients.keys()
    for name, gradient in plain_gradients.items():
        size = float(gradient.abs().max())
        torch.testing.assert_close(chunked_gradients[name] / size, gradient / size, **close)
    assert scored(model, None, rows(), chunk)[0][2] is None


def test_a_scored_model_is_left_as_it_was():
    model = build(FAMILIES["llama"]())
    names, before = list(model.state_dict()), model(torch.tensor([[1, 2, 3]])).logits
    scored(model, model, rows(), tokens=2)
    with mock.patch.object(head, "tempered_logp", side_effect=RuntimeError("no luck")):
        chunk, cut = chunks_of(2)
        with chunk, cut, pytest.raises(RuntimeError, match="no luck"):
            score(model, None, rows(), 1.0)
    assert list(model.state_dict()) == names
    assert torch.equal(model(torch.tensor([[1, 2, 3]])).logits, before)


class Largest(TorchDispatchMode):
    """The size of the largest tensor that any operation returns."""

    def __init__(self):
        super().__init__()
        self.elements = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        out = function(*args, **(kwargs or {}))
        sizes = [x.numel() for x in tree_leaves(out) if isinstance(x, torch.Tensor)]
        self.elements = max([self.elements, *sizes])
        return out


def test_all_logits_never_exist_at_once():
    vocabulary, tokens, chunk = 1009, 320, 40
    config = transformers.Qwen2Config(**{**SHAPE, "vocab_size": vocabulary, "hidden_size": 8})
    model, reference = build(config), build(config, seed=1)
    batch = collate([[1, 2]] * 8, [list(range(40))] * 8, 0)
    limit = chunk * vocabulary
    largest = {}
    for name, elements in {"plain": 10**9, "chunked": limit}.items():
        with (
            mock.patch.object(head, "LOGITS_AT_ONCE", elements),
            mock.patch.object(scores, "LOGITS_AT_ONCE", elements),
            Largest() as seen,
        ):
            score(model, reference, batch, 1.0).logp_BT.sum().backward()
        largest[name] = seen.elements
    assert largest["plain"] >= tokens * vocabulary
    assert largest["chunked"] <= limit


@pytest.mark.parametrize("chunk", [None, 3])
def test_what_stands_in_the_padding_changes_nothing(chunk):
    model, reference = build(FAMILIES["llama"]()), build(FAMILIES["llama"](), seed=1)
    one, one_gradients = scored(model, reference, rows(pad_id=0), chunk)
    two, two_gradients = scored(model, reference, rows(pad_id=77), chunk)
    for x, y in zip(one, two, strict=True):
        assert torch.equal(x, y)
    for name, gradient in one_gradients.items():
        assert torch.equal(gradient, two_gradients[name]), name


def test_a_family_with_a_soft_cap_keeps_the_librarys_logits():
    config = transformers.Gemma2Config(**SHAPE, head_dim=8, final_logit_softcapping=2.0)
    model = build(config)
    assert not has_plain_head(model)
    chunk, cut = chunks_of(1)
    batch = rows()
    with chunk, cut, torch.no_grad():
        scores = score(model, None, batch, temperature=0.7)
        for i, (prompt, response) in enumerate(((3, 7), (6, 1), (1, 4))):
            ids = batch.input_ids[i][batch.attention_mask[i].bool()]
            logits = model(ids[None]).logits[0, prompt - 1 : -1]
            assert logits.abs().max() <= 2.0
            expected = torch.log_softmax(logits / 0.7, -1)[range(response), ids[prompt:]]
            torch.testing.assert_close(scores.logp_BT[i, :response], expected)


def test_a_head_of_another_kind_is_not_taken_for_a_plain_one():
    class Scaled(nn.Linear):
        def forward(self, x):
            return 2 * super().forward(x)

    model = build(FAMILIES["llama"]())
    model.lm_head = Scaled(32, VOCABULARY, bias=False)
    assert not has_plain_head(model)
    model.lm_head = nn.Linear(32, VOCABULARY)
    assert has_plain_head(model)
    model.lm_head.forward = lambda x: x
    assert not has_plain_head(model)


@pytest.mark.parametrize("chunk", [None, 4])
def test_autocast_keeps_log_softmax_and_gradients_in_float32(chunk):
    model, reference = build(FAMILIES["qwen2 tied"]()), build(FAMILIES["qwen2 tied"](), seed=1)
    precise, gradients = scored(model, reference, rows())
    with torch.autocast("cpu", torch.bfloat16):
        low, low_gradients = scored(model, reference, rows(), chunk)
    for one, two in zip(low, precise, strict=True):
        assert one.dtype == torch.float32
        torch.testing.assert_close(one, two, rtol=0.05, atol=0.1)
        assert not torch.equal(one, two)
    for name, gradient in low_gradients.items():
        assert gradient.dtype == torch.float32
        similarity = functional.cosine_similarity(gradient.flatten(), gradients[name].flatten(), 0)
        assert similarity > 0.99, name


@pytest.fixture
def one_rank(tmp_path):
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{tmp_path / 'store'}", rank=0, world_size=1
    )
    yield init_device_mesh("cpu", (1,))
    torch.distributed.destroy_process_group()


@pytest.mark.parametrize("family", ["qwen2 tied", "llama"])
def test_a_sharded_model_scores_as_a_whole_one(one_rank, family):
    """The weights of a sharded model are whole only inside its own forward pass."""
    model, reference = (build(FAMILIES[family](), seed, torch.float64) for seed in (0, 1))
    expected, expected_gradients = scored(model, reference, rows(), tokens=4)
    for sharded in (model, reference):
        for layer in sharded.model.layers:
            fully_shard(layer, mesh=one_rank)
        fully_shard(sharded, mesh=one_rank, reshard_after_forward=True)
    chunk, cut = chunks_of(4)
    with chunk, cut:
        assert has_plain_head(model)
        batch = rows()
        live_BT = batch.attention_mask[:, -batch.response_length :].bool()
        scores = score(model, reference, batch, 0.7)
        torch.manual_seed(3)
        torch.where(live_BT, torch.randn(live_BT.shape) * scores.logp_BT, 0.0).sum().backward()
    for one, two in zip(scores, expected, strict=True):
        torch.testing.assert_close(one[live_BT].detach(), two, rtol=1e-10, atol=1e-10)
    for name, parameter in model.named_parameters():
        gradient = parameter.grad.full_tensor()
        torch.testing.assert_close(gradient, expected_gradients[name], rtol=1e-9, atol=1e-9)
