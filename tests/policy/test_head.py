"""Log-probabilities, entropy, KL and their gradient, with the head applied in chunks of tokens.

1. Chunked equals plain: numbers and gradients, any chunk, bias or none, tied weights or not.
2. Gradients of entropy and KL, alone and together; who asks for neither gets the bits of before.
3. No tensor of the size of all logits is made, and few of a chunk's, forward or backward.
4. What stands in the padding changes nothing.
5. Families that do more than a linear layer keep the library's own logits.
6. Under autocast the products are bfloat16, log-softmax and gradients float32.
7. It works on a model whose weights are sharded.
"""

import copy
import itertools
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
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from rec_experiments.policy import head
from rec_experiments.policy import logprobs as scores
from rec_experiments.policy.head import (
    REFERENCE,
    Head,
    TokenScores,
    at_target,
    entropy_and_kl,
    tempered_logp,
    token_scores,
)
from rec_experiments.policy.logprobs import collate, compute_logprobs, has_plain_head

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


def measured(model, reference, batch, temperature):
    """Of the model alone, or with KL to the reference."""
    others = {} if reference is None else {REFERENCE: reference}
    return compute_logprobs(model, batch, temperature, others=others, kl=reference is not None)


def scored(model, reference, batch, tokens=None):
    """Scores of the live tokens and the gradient of a weighted sum; plain without `tokens`."""
    model = copy.deepcopy(model)
    chunk, cut = chunks_of(tokens or 10**9)
    with chunk, cut:
        scores = measured(model, reference, batch, temperature=0.7)
        live_BT = batch.attention_mask[:, -batch.response_length :].bool()
        torch.manual_seed(3)
        weight_BT = torch.randn(live_BT.shape)
        torch.where(live_BT, weight_BT * scores.logp_BT, 0.0).sum().backward()
    gradients = {name: p.grad for name, p in model.named_parameters()}
    values = [scores.logp_BT, scores.entropy_BT, scores.kl_BT]
    return [x if x is None else x[live_BT].detach() for x in values], gradients


# Names of other policies, whether KL is wanted, and what carries a gradient besides logp.
WANTED = [
    ((), False, ()),
    ((), False, ("entropy",)),
    ((REFERENCE,), False, ("entropy",)),
    ((REFERENCE,), True, ()),
    ((REFERENCE,), True, ("kl",)),
    (("proximal", REFERENCE, "old"), True, ("entropy", "kl")),
]


def plain_scores(ours, others, target_N, temperature, kl):
    """All logits at once, in float64, every score left to autograd."""

    def logp_of(any_head):
        double = [x if x is None else x.double() for x in any_head]
        return tempered_logp(functional.linear(*double), temperature)

    logp_NV = logp_of(ours)
    others_NV = {name: logp_of(other) for name, other in others.items()}
    return TokenScores(
        at_target(logp_NV, target_N),
        *entropy_and_kl(logp_NV, others_NV[REFERENCE] if kl else None),
        {name: at_target(other_NV, target_N) for name, other_NV in others_NV.items()},
    )


def loss_of(scores, differentiable, weights):
    """A weighted sum of the log-probability and of what else carries a gradient."""
    values = {"logp": scores.logp_N, "entropy": scores.entropy_N, "kl": scores.kl_N}
    return sum(
        (values[name] * weight_N).sum()
        for name, weight_N in zip(("logp", *differentiable), weights, strict=False)
    )


@settings(max_examples=120, deadline=None)
@given(
    tokens=st.integers(1, 9),
    chunk=st.integers(1, 10),
    vocabulary=st.integers(2, 17),
    hidden=st.integers(1, 5),
    scale=st.sampled_from([0.1, 3.0, 40.0]),
    temperature=st.sampled_from([0.3, 1.0, 2.0]),
    bias=st.booleans(),
    wanted=st.sampled_from(WANTED),
    dtype=st.sampled_from([torch.float32, torch.float64]),
    seed=st.integers(0, 2**31),
)
def test_the_chunked_head_is_the_plain_one(
    tokens, chunk, vocabulary, hidden, scale, temperature, bias, wanted, dtype, seed
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

    names, kl, differentiable = wanted
    ours, others = a_head(True), {name: a_head(False) for name in names}
    target_N = torch.randint(vocabulary, (tokens,), generator=generator)
    weights = [normal(tokens, grad=False) for _ in range(3)]
    leaves = [x for x in ours if x is not None]
    plain = plain_scores(ours, others, target_N, temperature, kl)
    expected = torch.autograd.grad(loss_of(plain, differentiable, weights), leaves)

    with mock.patch.object(head, "LOGITS_AT_ONCE", chunk * vocabulary):
        scores = token_scores(
            ours, others, target_N, temperature, kl=kl, differentiable=set(differentiable)
        )
        gradients = torch.autograd.grad(loss_of(scores, differentiable, weights), leaves)
    assert scores.logp_N.requires_grad
    assert scores.entropy_N.requires_grad == ("entropy" in differentiable)
    assert (scores.kl_N is not None) == kl
    assert not kl or scores.kl_N.requires_grad == ("kl" in differentiable)
    assert tuple(scores.other_logp) == names
    assert not any(x_N.requires_grad for x_N in scores.other_logp.values())
    numbers, exact = (
        [x_N.detach() for x_N in tree_leaves(s) if x_N is not None] for s in (scores, plain)
    )
    limit = TOLERANCE[dtype] * max(1.0, *(float(x_N.abs().max()) for x_N in exact))
    for one, two in zip(numbers, exact, strict=True):
        torch.testing.assert_close(one.double(), two, rtol=TOLERANCE[dtype], atol=limit)
    for one, two in zip(gradients, expected, strict=True):
        assert one.dtype == dtype
        close = {"rtol": TOLERANCE[dtype], "atol": limit * max(1.0, float(two.abs().max()))}
        torch.testing.assert_close(one, two, **close)


def leaves_of(*shapes, seed=0):
    torch.manual_seed(seed)
    return [torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in shapes]


@pytest.mark.parametrize("at_once", [2 * 7, 5 * 7])  # chunks, and few enough to be kept
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(
    "outputs",
    [c for n in (1, 2, 3) for c in itertools.combinations(("logp_N", "entropy_N", "kl_N"), n)],
)
def test_the_gradients_pass_the_numerical_check(outputs, bias, at_once):
    shapes = ((5, 3), (7, 3), (7,))[: 2 + bias]
    target_N = torch.tensor([0, 6, 2, 2, 1])
    reference = Head(*(x.detach() for x in leaves_of((5, 3), (7, 3), (7,), seed=1)))
    differentiable = {name.removesuffix("_N") for name in outputs} - {"logp"}

    def scores(hidden_ND, weight_VD, bias_V=None):
        all_scores = token_scores(
            Head(hidden_ND, weight_VD, bias_V), {REFERENCE: reference}, target_N, 0.7,
            kl=True, differentiable=differentiable,
        )  # fmt: skip
        return tuple(getattr(all_scores, name) for name in outputs)

    with mock.patch.object(head, "LOGITS_AT_ONCE", at_once):
        assert torch.autograd.gradcheck(scores, leaves_of(*shapes))


@pytest.mark.parametrize(("kept", "made"), [(2**20, 1), (5 * 7 - 1, 2)])
def test_few_logits_are_made_once_and_the_gradient_is_the_same_bit_for_bit(kept, made, monkeypatch):
    leaves, target_N = leaves_of((5, 3), (7, 3), (7,)), torch.tensor([0, 6, 2, 2, 1])

    def gradients():
        score = token_scores(Head(*leaves), {}, target_N, 0.7, differentiable={"entropy"})
        return torch.autograd.grad((score.logp_N * score.entropy_N).sum(), leaves)

    monkeypatch.setattr(head, "LOGITS_KEPT", 0)
    before = gradients()
    monkeypatch.setattr(head, "LOGITS_KEPT", kept)
    with mock.patch.object(Head, "logp", autospec=True, side_effect=Head.logp) as logp:
        after = gradients()
    assert logp.call_count == made
    assert all(map(torch.equal, before, after))


def test_at_the_reference_the_gradient_of_kl_is_exactly_0():
    leaves = leaves_of((5, 3), (7, 3))
    reference = Head(*(x.detach() for x in leaves), None)
    scores = token_scores(
        Head(*leaves, None), {REFERENCE: reference}, torch.zeros(5, dtype=int), 0.7,
        kl=True, differentiable={"kl"},
    )  # fmt: skip
    gradients = torch.autograd.grad(scores.kl_N.sum(), leaves)
    assert not any(x.any() for x in (scores.kl_N, *gradients))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_who_asks_for_no_more_gradients_gets_the_bits_of_a_plain_chunk(dtype):
    """The formulas written out: one chunk, no gradient but that of the log-probability."""
    leaves = [x.to(dtype).detach().requires_grad_() for x in leaves_of((5, 3), (7, 3), (7,))]
    reference = Head(*(x.to(dtype).detach() for x in leaves_of((5, 3), (7, 3), (7,), seed=1)))
    target_N, weight_N = torch.tensor([0, 6, 2, 2, 1]), torch.arange(5.0)
    scores = token_scores(Head(*leaves), {REFERENCE: reference}, target_N, 0.7, kl=True)
    gradients = torch.autograd.grad((scores.logp_N * weight_N).sum(), leaves)

    with torch.no_grad():
        logp_NV, reference_NV = (
            torch.log_softmax(functional.linear(*h).float() / 0.7, -1) for h in (leaves, reference)
        )
        p_NV = logp_NV.exp()
        expected = (
            logp_NV.gather(1, target_N[:, None])[:, 0],
            -(p_NV * logp_NV).sum(-1),
            (p_NV * (logp_NV - reference_NV)).sum(-1),
        )
        grad_N1 = (weight_N / 0.7)[:, None]
        logits_grad_NV = (p_NV * -grad_N1).scatter_add(1, target_N[:, None], grad_N1).to(dtype)
        expected_gradients = (
            logits_grad_NV @ leaves[1],
            logits_grad_NV.mT @ leaves[0],
            logits_grad_NV.sum(0),
        )
    assert all(map(torch.equal, scores[:3], expected))
    assert all(map(torch.equal, gradients, expected_gradients))


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
    with mock.patch.object(Head, "logp", side_effect=RuntimeError("no luck")):
        chunk, cut = chunks_of(2)
        with chunk, cut, pytest.raises(RuntimeError, match="no luck"):
            measured(model, None, rows(), 1.0)
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
            measured(model, reference, batch, 1.0).logp_BT.sum().backward()
        largest[name] = seen.elements
    assert largest["plain"] >= tokens * vocabulary
    assert largest["chunked"] <= limit


class Live(TorchDispatchMode):
    """How many of the large tensors that operations have made were alive at once, at most."""

    def __init__(self, elements):
        super().__init__()
        self.elements, self.storages, self.most = elements, {}, 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        out = function(*args, **(kwargs or {}))
        for x in tree_leaves(out):
            if isinstance(x, torch.Tensor) and x.numel() >= self.elements:
                storage = StorageWeakRef(x.untyped_storage())
                self.storages[storage.cdata] = storage
        self.storages = {n: s for n, s in self.storages.items() if not s.expired()}
        self.most = max(self.most, len(self.storages))
        return out


@pytest.mark.parametrize("wanted", WANTED)
def test_few_logits_of_a_chunk_are_alive_at_once(wanted):
    """However many chunks and policies: the forward pass of KL holds the most, the backward pass no
    more; without KL 3 are enough, with the gradient of entropy too."""
    names, kl, differentiable = wanted
    tokens, chunk, vocabulary = 40, 4, 211
    leaves = leaves_of((tokens, 3), (vocabulary, 3))
    others = {
        name: Head(*(x.detach() for x in leaves_of((tokens, 3), (vocabulary, 3), seed=i)), None)
        for i, name in enumerate(names, 1)
    }
    target_N = torch.arange(tokens)
    with mock.patch.object(head, "LOGITS_AT_ONCE", chunk * vocabulary):
        with Live(chunk * vocabulary) as forward:
            scores = token_scores(
                Head(*leaves, None), others, target_N, 0.7,
                kl=kl, differentiable=set(differentiable),
            )  # fmt: skip
            loss = loss_of(scores, differentiable, [1.0] * 3)
        assert not {n: s for n, s in forward.storages.items() if not s.expired()}
        with Live(chunk * vocabulary) as backward:
            loss.backward()
    assert forward.most <= (5 if kl else 3)
    assert backward.most <= (4 if "kl" in differentiable else 3)


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
        scores = compute_logprobs(model, batch, temperature=0.7)
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
        scores = measured(model, reference, batch, 0.7)
        torch.manual_seed(3)
        torch.where(live_BT, torch.randn(live_BT.shape) * scores.logp_BT, 0.0).sum().backward()
    values = [scores.logp_BT, scores.entropy_BT, scores.kl_BT]
    for one, two in zip(values, expected, strict=True):
        torch.testing.assert_close(one[live_BT].detach(), two, rtol=1e-10, atol=1e-10)
    for name, parameter in model.named_parameters():
        gradient = parameter.grad.full_tensor()
        torch.testing.assert_close(gradient, expected_gradients[name], rtol=1e-9, atol=1e-9)
