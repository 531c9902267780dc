"""Log-probabilities, entropy, KL and their gradients, with the head applied in chunks of tokens.

1. Scores and gradients equal those of all logits at once, for any chunk, with and without a bias,
   with tied and untied weights.
2. No tensor has the size of all logits, forward or backward.
3. Families whose head is more than a linear layer keep the library's logits.
4. Under autocast the products are bfloat16, log-softmax and gradients float32; the gradients of
   chunks are summed in float32.
"""

import copy
from typing import NamedTuple
from unittest import mock

import pytest
import torch
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st
from language_models import SHAPE
from torch import Tensor, nn
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from rec_experiments.common.batch import Sequences
from rec_experiments.policy import logprobs
from rec_experiments.policy.batching import collate
from rec_experiments.policy.logprobs import (
    Head,
    Wanted,
    at_target,
    compute_logprobs,
    entropy_and_kl,
    has_plain_head,
    tempered_logp,
    token_scores,
)

VOCABULARY = 97
STYLE = {**SHAPE, "vocab_size": VOCABULARY}
FAMILIES = {
    "qwen2 tied": lambda: transformers.Qwen2Config(**STYLE, tie_word_embeddings=True),
    "llama": lambda: transformers.LlamaConfig(**STYLE, tie_word_embeddings=False),
}
TOLERANCE = {torch.float64: 1e-10, torch.float32: 1e-5}


def build(config, seed=0, dtype=torch.float32):
    torch.manual_seed(seed)
    return transformers.AutoModelForCausalLM.from_config(config).to(dtype)


PROMPTS = [[5, 6, 7], [8, 9, 10, 11, 12, 13], [14]]
RESPONSES = [[20, 21, 22, 23, 24, 25, 26], [27], [28, 29, 30, 31]]


def rows():
    return collate(Sequences.of(PROMPTS, RESPONSES))


def live(batch):
    """The response tokens, B x T."""
    return torch.zeros(batch.shape).flatten().index_fill(0, batch.live_N, 1).view(batch.shape) > 0


def chunks_of(tokens):
    """The limit of the logits at once, which decides when to cut, and into how many tokens."""
    limit = tokens * VOCABULARY
    return mock.patch.multiple(logprobs, LOGITS_AT_ONCE=limit)


def measured(model, reference, batch, temperature):
    """Of the model alone, or with KL to the reference."""
    others = {} if reference is None else {"reference": reference}
    return compute_logprobs(model, batch, temperature, Wanted(others=others, kl=bool(others)))


def scored(model, reference, batch, tokens=None):
    """Scores of the live tokens and the gradient of a weighted sum; plain without `tokens`."""
    model = copy.deepcopy(model)
    with chunks_of(tokens or 10**9):
        scores = measured(model, reference, batch, temperature=0.7)
        live_BT = live(batch)
        torch.manual_seed(3)
        weight_BT = torch.randn(live_BT.shape)
        torch.where(live_BT, weight_BT * scores.logp_BT, 0.0).sum().backward()
    gradients = {name: p.grad for name, p in model.named_parameters()}
    values = [scores.logp_BT, scores.entropy_BT, scores.kl_BT]
    return [x if x is None else x[live_BT].detach() for x in values], gradients


class TokenScores(NamedTuple):
    """The columns of `token_scores` by name."""

    logp_N: Tensor
    entropy_N: Tensor
    kl_N: Tensor | None
    other_logp: list[Tensor]


def named(scores_NX, kl):
    logp_N, entropy_N, *rest = scores_NX.unbind(-1)
    return TokenScores(logp_N, entropy_N, rest.pop(0) if kl else None, rest)


# Names of other policies, whether KL is wanted, and what carries a gradient besides logp.
WANTED = [
    ((), False, ()),
    ((), False, ("entropy",)),
    (("reference",), False, ("entropy",)),
    (("reference",), True, ()),
    (("reference",), True, ("kl",)),
    (("proximal", "reference", "old"), True, ("entropy", "kl")),
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
        *entropy_and_kl(logp_NV, others_NV["reference"] if kl else None),
        [at_target(other_NV, target_N) for other_NV in others_NV.values()],
    )


def loss_of(scores, differentiable, weights):
    """A weighted sum of the log-probability and of what else carries a gradient."""
    values = {"logp": scores.logp_N, "entropy": scores.entropy_N, "kl": scores.kl_N}
    return sum(
        (values[name] * weight_N).sum()
        for name, weight_N in zip(("logp", *differentiable), weights, strict=False)
    )


@settings(max_examples=40, deadline=None)
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
def test_chunked_head(
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

    with mock.patch.object(logprobs, "LOGITS_AT_ONCE", chunk * vocabulary):
        scores = named(
            token_scores(
                ours, others, target_N, temperature, kl=kl, differentiable=set(differentiable)
            ),
            kl,
        )
        gradients = torch.autograd.grad(loss_of(scores, differentiable, weights), leaves)
    assert len(scores.other_logp) == len(names)
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


@pytest.mark.parametrize(("kept", "made"), [(2**20, 1), (5 * 7 - 1, 2)])
def test_kept_logits(kept, made, monkeypatch):
    leaves, target_N = leaves_of((5, 3), (7, 3), (7,)), torch.tensor([0, 6, 2, 2, 1])

    def gradients():
        scores_NX = token_scores(Head(*leaves), {}, target_N, 0.7, differentiable={"entropy"})
        score = named(scores_NX, kl=False)
        return torch.autograd.grad((score.logp_N * score.entropy_N).sum(), leaves)

    monkeypatch.setattr(logprobs, "LOGITS_KEPT", 0)
    before = gradients()
    monkeypatch.setattr(logprobs, "LOGITS_KEPT", kept)
    with mock.patch.object(logprobs, "tempered_logp", side_effect=tempered_logp) as logp:
        after = gradients()
    assert logp.call_count == made
    assert all(map(torch.equal, before, after))


def test_gradients_of_chunks_are_summed_in_float32():
    """The sum of a thousand small gradients, each with the rounding of bfloat16."""
    hidden_ND, weight_VD = (x.detach().bfloat16() for x in leaves_of((1000, 5), (VOCABULARY, 5)))
    target_N = torch.arange(1000) % VOCABULARY
    found = []
    for dtype, chunk in ((torch.float32, 1000), (torch.bfloat16, 1)):
        leaves = hidden_ND.to(dtype), weight_VD.to(dtype).requires_grad_()
        with mock.patch.object(logprobs, "LOGITS_AT_ONCE", chunk * VOCABULARY):
            scores_NX = token_scores(Head(*leaves, None), {}, target_N, 0.7)
        scores_NX[:, 0].sum().backward()
        found.append(leaves[1].grad.double())
    assert (found[0] - found[1]).norm() < 0.005 * found[0].norm()


@pytest.mark.parametrize("family", ["qwen2 tied", "llama"])
def test_chunked_model(family):
    """Scores and the gradient of every parameter, also of tied embeddings."""
    dtype, chunk = torch.float64, 5
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


@pytest.mark.parametrize("tokens", [5, 10**9])  # in chunks, and all at once
@pytest.mark.parametrize("differentiable", [set(), {"entropy"}, {"kl"}, {"entropy", "kl"}])
def test_gradients_are_those_asked_for(differentiable, tokens):
    model, reference = (build(FAMILIES["llama"](), seed) for seed in (0, 1))
    with chunks_of(tokens):
        wanted = Wanted(
            others={"reference": reference}, kl=True, differentiable=frozenset(differentiable)
        )
        scores = compute_logprobs(model, rows(), 0.7, wanted)
    assert scores.logp_BT.requires_grad
    assert scores.entropy_BT.requires_grad == ("entropy" in differentiable)
    assert scores.kl_BT.requires_grad == ("kl" in differentiable)
    assert not scores.others["reference"].requires_grad


def test_the_head_comes_back_after_an_error():
    model = build(FAMILIES["llama"]())
    with (
        mock.patch.object(logprobs, "tempered_logp", side_effect=RuntimeError("no luck")),
        chunks_of(2),
        pytest.raises(RuntimeError, match="no luck"),
    ):
        measured(model, None, rows(), 1.0)
    assert has_plain_head(model)


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


def test_largest_tensor():
    vocabulary, tokens, chunk = 1009, 320, 40
    config = transformers.Qwen2Config(**{**STYLE, "vocab_size": vocabulary, "hidden_size": 8})
    model, reference = build(config), build(config, seed=1)
    batch = collate(Sequences.of([[1, 2]] * 8, [list(range(40))] * 8))
    limit = chunk * vocabulary
    largest = {}
    for name, elements in {"plain": 10**9, "chunked": limit}.items():
        with (
            mock.patch.object(logprobs, "LOGITS_AT_ONCE", elements),
            Largest() as seen,
        ):
            measured(model, reference, batch, 1.0).logp_BT.sum().backward()
        largest[name] = seen.elements
    assert largest["plain"] >= tokens * vocabulary
    assert largest["chunked"] <= limit


def test_soft_cap():
    config = transformers.Gemma2Config(**STYLE, head_dim=8, final_logit_softcapping=2.0)
    model = build(config)
    assert not has_plain_head(model)
    batch = rows()
    with chunks_of(1), torch.no_grad():
        scores = compute_logprobs(model, batch, temperature=0.7)
        for i, (prompt, response) in enumerate(((3, 7), (6, 1), (1, 4))):
            ids = torch.tensor(PROMPTS[i] + RESPONSES[i])
            logits = model(ids[None]).logits[0, prompt - 1 : -1]
            assert logits.abs().max() <= 2.0
            expected = torch.log_softmax(logits / 0.7, -1)[range(response), ids[prompt:]]
            torch.testing.assert_close(scores.logp_BT[i, :response], expected)


def test_plain_heads():
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


def test_autocast():
    model, reference = build(FAMILIES["qwen2 tied"]()), build(FAMILIES["qwen2 tied"](), seed=1)
    precise, gradients = scored(model, reference, rows())
    with torch.autocast("cpu", torch.bfloat16):
        low, low_gradients = scored(model, reference, rows(), tokens=4)
    for one, two in zip(low, precise, strict=True):
        assert one.dtype == torch.float32
        torch.testing.assert_close(one, two, rtol=0.05, atol=0.1)
        assert not torch.equal(one, two)
    for name, gradient in low_gradients.items():
        assert gradient.dtype == torch.float32
        similarity = functional.cosine_similarity(gradient.flatten(), gradients[name].flatten(), 0)
        assert similarity > 0.99, name
