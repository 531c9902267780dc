"""The forward pass: token ids in, log-probabilities of the response tokens out.

Logits are the largest tensor of a training step: 4,096 tokens of a vocabulary of 151,936 take
2.5 GB in float32, and log-softmax with its gradient holds several tensors of that size. The head
therefore reads the hidden states in chunks, so that at most `LOGITS_AT_ONCE` logits exist at a
time: the backward pass recomputes the logits of each chunk, unless there are few.
"""

import copy
import functools
from collections.abc import Callable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional
from torch.utils._pytree import tree_leaves, tree_map_only
from torch.utils.checkpoint import checkpoint
from transformers import (
    LlamaForCausalLM,
    MistralForCausalLM,
    PreTrainedModel,
    Qwen2ForCausalLM,
    Qwen3ForCausalLM,
)

from rec_experiments.common.batch import Sequences
from rec_experiments.common.distributed import whole
from rec_experiments.policy import tree
from rec_experiments.policy.batching import Batch, collate, packed, shared

# 256 MiB in float32: 441 tokens of a vocabulary of 151,936. Smaller chunks would save little next
# to the weights of such a model, and would be slow: every chunk reads the head's weight and adds to
# its gradient.
LOGITS_AT_ONCE = 2**26
# Up to this many, 4 MiB in float32, are kept for the backward pass instead of recomputed.
LOGITS_KEPT = 2**20
# Families whose logits are `lm_head` of the hidden states.
PLAIN_HEADS = (LlamaForCausalLM, MistralForCausalLM, Qwen2ForCausalLM, Qwen3ForCausalLM)
Models = Mapping[str, PreTrainedModel]


class Head(NamedTuple):
    """A linear head and the hidden states that it reads: logits = hidden · weightᵀ + bias."""

    hidden_ND: Tensor
    weight_VD: Tensor
    bias_V: Tensor | None

    def low(self) -> "Head":
        """Cast to the dtype that autocast gives a linear layer, if it is on."""
        device = self.hidden_ND.device.type
        on = torch.is_autocast_enabled(device)
        dtype = torch.get_autocast_dtype(device) if on else None
        bias_V = None if self.bias_V is None else self.bias_V.to(dtype=dtype)
        return Head(self.hidden_ND.to(dtype=dtype), self.weight_VD.to(dtype=dtype), bias_V)

    def logp(self, temperature: float) -> Tensor:
        """`tempered_logp` of every token."""
        return tempered_logp(functional.linear(*self), temperature)


class _Sum:
    """The gradient of a weight, summed over chunks in float32 at least; one buffer for all."""

    def __init__(self, chunks: int) -> None:
        self.chunks, self.left = chunks, chunks
        self.total: Tensor | None = None

    def add(self, part: Tensor, dtype: torch.dtype) -> Tensor | None:
        """The sum with the last part, None before."""
        if self.total is None:
            self.total = part.to(torch.promote_types(dtype, torch.float32))
        else:
            self.total += part
        self.left -= 1
        if self.left:
            return None
        total, self.total, self.left = self.total, None, self.chunks
        return total.to(dtype)


class _Linear(torch.autograd.Function):
    """hidden · lowᵀ of one chunk, where `low` is a copy of the weight in the dtype of products."""

    @staticmethod
    def forward(
        ctx: Any, hidden_CD: Tensor, weight_VD: Tensor, low_VD: Tensor, total: _Sum
    ) -> Tensor:
        ctx.save_for_backward(hidden_CD, low_VD)
        ctx.total, ctx.dtype = total, weight_VD.dtype
        return functional.linear(hidden_CD, low_VD)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_CV: Tensor) -> tuple[Tensor | None, ...]:
        hidden_CD, low_VD = ctx.saved_tensors
        # A frozen head, as beside adapters, needs no gradient, which is as large as its weights.
        weight_grad_VD = None
        if ctx.needs_input_grad[1]:
            weight_grad_VD = ctx.total.add(grad_CV.mT @ hidden_CD, ctx.dtype)
        return grad_CV @ low_VD, weight_grad_VD, None, None


def tempered_logp(logits: Tensor, temperature: float) -> Tensor:
    """log softmax(logits / temperature) over the last dimension, in float32 at least."""
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    if temperature != 1:  # a division by 1 would copy the largest tensor of the step
        logits = logits / temperature
    return torch.log_softmax(logits, dim=-1)


def entropy_and_kl(logp: Tensor, reference_logp: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """Entropy and KL(p ‖ reference) in nats over the last dimension; None without a reference."""
    p = logp.exp()
    kl = None if reference_logp is None else (p * (logp - reference_logp)).sum(-1)
    differentiable = p.requires_grad or (kl is not None and kl.requires_grad)
    weighted = p * logp if differentiable else p.mul_(logp)
    return -weighted.sum(-1), kl


def at_target(logp: Tensor, target: Tensor) -> Tensor:
    """Each target's entry of the last dimension of `logp`."""
    return logp.gather(-1, target[..., None]).squeeze(-1)


def token_scores(
    head: Head,
    others: Mapping[str, Head],
    target_N: Tensor,
    temperature: float,
    *,
    kl: bool = False,
    differentiable: AbstractSet[str] = frozenset(),
) -> Tensor:
    """Scores of N targets in nats, computed in chunks of tokens, as columns of N x X: the target's
    log-probability, the entropy, KL(π_θ ‖ π_reference) if requested, and the target's
    log-probability under each other policy.

    They equal those of all logits at once up to rounding. The weight's gradient is summed over the
    chunks in float32 or higher precision.

    others: policies to compare with; they get no gradient. kl: whether to measure the divergence
    from others["reference"]. differentiable: which of "entropy" and "kl" have a gradient; the
    log-probability always has one.
    """
    assert "reference" in others or not kl
    assert differentiable <= ({"entropy", "kl"} if kl else {"entropy"}), differentiable
    tokens, vocabulary = len(target_N), len(head.weight_VD)
    size = max(1, LOGITS_AT_ONCE // vocabulary)
    chunks = [slice(start, start + size) for start in range(0, tokens, size)]
    total, low = _Sum(len(chunks)), head._replace(weight_VD=head.weight_VD.detach()).low()
    low_others = {name: other.low() for name, other in others.items()}  # once for all chunks

    def scores_of(hidden_CD: Tensor, chunk: slice) -> list[Tensor]:
        """The columns for one chunk. What has no gradient comes last: a checkpoint recomputes
        nothing after the last operation that has one."""
        logits_CV = _Linear.apply(hidden_CD, head.weight_VD, low.weight_VD, total)
        if low.bias_V is not None:
            logits_CV = logits_CV + low.bias_V
        logp_CV, target_C = tempered_logp(logits_CV, temperature), target_N[chunk]
        del logits_CV
        logp_C = at_target(logp_CV, target_C)

        def logp_of(name: str) -> Tensor:
            other = low_others[name]
            return other._replace(hidden_ND=other.hidden_ND[chunk]).logp(temperature)

        reference_CV, other_logp = None, {}
        with torch.no_grad():
            if kl:
                reference_CV = logp_of("reference")
                other_logp["reference"] = at_target(reference_CV, target_C)
        with torch.set_grad_enabled(torch.is_grad_enabled() and bool(differentiable)):
            entropy_C, kl_C = entropy_and_kl(logp_CV, reference_CV)
        del logp_CV, reference_CV  # before the next policy's logits are computed
        with torch.no_grad():
            for name in others:
                if name not in other_logp:
                    other_logp[name] = at_target(logp_of(name), target_C)
        entropy_C = entropy_C if "entropy" in differentiable else entropy_C.detach()
        kl_C = kl_C if kl_C is None or "kl" in differentiable else kl_C.detach()
        divergence = [] if kl_C is None else [kl_C]
        return [logp_C, entropy_C, *divergence, *(other_logp[name] for name in others)]

    pieces = zip(low.hidden_ND.split(size), chunks, strict=True)
    if tokens * vocabulary <= min(LOGITS_KEPT, LOGITS_AT_ONCE):  # one chunk
        found = [scores_of(*piece) for piece in pieces]
    else:
        again = functools.partial(checkpoint, use_reentrant=False, preserve_rng_state=False)
        found = [again(scores_of, *piece) for piece in pieces]
    return torch.stack([torch.cat(column) for column in zip(*found, strict=True)], dim=-1)


def head_output(model: PreTrainedModel, batch: Batch) -> Tensor:
    """The output of the head, by default logits: B x T x V before each response token of a padded
    batch, 1 x N x V of a packed one, and G x L x V of every token with shared prompts."""
    return model(**batch.inputs(), use_cache=False).logits


class Logprobs(NamedTuple):
    """Scores of each response token, B x T, in nats; arbitrary at padding.

    logp_BT: log-probability under the model, with gradient. entropy_BT: of the model's distribution
    at that position. kl_BT: KL(π_θ ‖ π_reference), or None. The latter two have a gradient only if
    it was requested. others: log-probability under each other policy, without gradient.
    """

    logp_BT: Tensor
    entropy_BT: Tensor
    kl_BT: Tensor | None
    others: dict[str, Tensor]

    def each(self, change: Callable[[Tensor], Tensor]) -> "Logprobs":
        """Apply `change` to every tensor."""
        changed = tree_map_only(Tensor, change, self)
        assert isinstance(changed, Logprobs)
        return changed

    def rows(self, index_B: Tensor) -> "Logprobs":
        """Select rows; an index may repeat."""
        return self.each(lambda x_BT: x_BT[index_B])

    def put(self, index_B: Tensor, rows: "Logprobs") -> None:
        """Overwrite these rows with `rows`, which may have fewer tokens."""
        width = rows.logp_BT.shape[1]
        for mine, theirs in zip(tree_leaves(self), tree_leaves(rows), strict=True):
            if mine is not None:
                mine[index_B, :width] = theirs


@dataclass(frozen=True, kw_only=True, slots=True)
class Wanted:
    """What to compute beside log-probabilities of the policy.

    others: further models by role. kl: whether to measure the divergence from others["reference"].
    differentiable: which of "entropy" and "kl" have a gradient.
    """

    others: Models = field(default_factory=dict)
    kl: bool = False
    differentiable: AbstractSet[str] = frozenset()

    def named(self, scores_BTX: Tensor) -> Logprobs:
        """The columns of `token_scores` by name."""
        logp_BT, entropy_BT, *rest = scores_BTX.unbind(-1)
        kl_BT = rest.pop(0) if self.kl else None
        other_logp = (each_BT.detach() for each_BT in rest)
        return self.detached(
            logp_BT, entropy_BT, kl_BT, dict(zip(self.others, other_logp, strict=True))
        )

    def detached(
        self, logp_BT: Tensor, entropy_BT: Tensor, kl_BT: Tensor | None, others: dict[str, Tensor]
    ) -> Logprobs:
        """Without the gradients that were not requested."""
        return Logprobs(
            logp_BT,
            entropy_BT if "entropy" in self.differentiable else entropy_BT.detach(),
            kl_BT if kl_BT is None or "kl" in self.differentiable else kl_BT.detach(),
            others,
        )


POLICY_ALONE = Wanted()


@dataclass(frozen=True, kw_only=True, slots=True)
class ForwardPass:
    """How sequences go through a model.

    compute_dtype: of autocast; float32 keeps the dtype of the weights. packed: pack the sequences
    into one row, if every head is plain. shared: compute a prompt once for all of its responses;
    every head must be plain. fast_path: use `policy.tree` for models that it supports.
    """

    temperature: float
    compute_dtype: torch.dtype
    packed: bool = False
    shared: bool = False
    fast_path: bool = True

    def __call__(
        self,
        model: PreTrainedModel,
        rows: Sequences,
        wanted: Wanted = POLICY_ALONE,
        chunked: bool | None = None,
    ) -> Logprobs:
        """`compute_logprobs` of these rows, in order."""
        return self.score(
            model, self.layout([model, *wanted.others.values()], rows), wanted, chunked
        )

    def score(
        self,
        model: PreTrainedModel,
        batch: Batch | tree.TreeBatch,
        wanted: Wanted = POLICY_ALONE,
        chunked: bool | None = None,
    ) -> Logprobs:
        """`compute_logprobs` of a batch that `layout` made for these models."""
        if isinstance(batch, tree.TreeBatch):
            return _of_tree(model, batch, self.temperature, wanted)
        low = self.compute_dtype != torch.float32
        device = next(model.parameters()).device
        # No cache: a pass reads each weight once, and cached copies would outlive their layer.
        with torch.autocast(
            device.type, dtype=self.compute_dtype, enabled=low, cache_enabled=False
        ):
            return compute_logprobs(model, batch.to(device), self.temperature, wanted, chunked)

    def layout(self, models: list[PreTrainedModel], rows: Sequences) -> Batch | tree.TreeBatch:
        """The rows as the input of these models."""
        if self.packed and all(map(has_plain_head, models)):
            return packed(rows)
        if self.shared:
            return shared(rows)
        low = self.compute_dtype != torch.float32
        if self.fast_path and not low and all(map(tree.supports, models)):
            return tree.TreeBatch.of(rows)
        return collate(rows)


def frozen_copy(model: PreTrainedModel, compute_dtype: torch.dtype) -> PreTrainedModel:
    """A copy for forward passes alone. A linear layer is kept in the dtype it computes in, which
    autocast would convert it to anyway: the same bits in less memory. The head, which may be tied
    to the embeddings, is kept as it is."""
    linear = [
        module.weight
        for module in model.modules()
        if isinstance(module, nn.Linear) and module is not model.get_output_embeddings()
        if compute_dtype.itemsize < module.weight.dtype.itemsize  # float32 leaves any dtype
    ]
    lower = {id(weight): nn.Parameter(weight.detach().to(compute_dtype)) for weight in linear}
    return copy.deepcopy(model, lower).eval().requires_grad_(False)


def is_large(sequences: int, response_length: int, vocabulary: int) -> bool:
    """Whether the logits of so many sequences are too many to compute at once."""
    return sequences * response_length * vocabulary > LOGITS_AT_ONCE


def compute_logprobs(
    model: PreTrainedModel,
    batch: Batch,
    temperature: float,
    wanted: Wanted = POLICY_ALONE,
    chunked: bool | None = None,
) -> Logprobs:
    """One forward pass of each other policy, then one of the model.

    temperature: that of the sampler, or the ratio π_θ/π_old is wrong. chunked: whether to compute
    the logits in chunks; None decides by their number, which is not allowed for ranks that share a
    model. Models without a plain head (a soft cap on the logits, a scale) always keep all logits in
    memory.
    """
    if chunked is None:
        chunked = is_large(*batch.shape, model.config.vocab_size)
    plain = all(map(has_plain_head, [model, *wanted.others.values()]))
    if plain and (chunked or not batch.padded):
        return _in_chunks(model, batch, temperature, wanted)
    assert batch.padded, "models without a plain head take padded batches only"
    return _whole(model, batch, temperature, wanted)


def _whole(model: PreTrainedModel, batch: Batch, temperature: float, wanted: Wanted) -> Logprobs:
    """`compute_logprobs` with all logits in memory."""
    B, T = batch.shape
    target_BT = batch.live_N.new_zeros(B * T).index_copy(0, batch.live_N, batch.target_N).view(B, T)
    other_BT, reference_BTV = {}, None
    for role, other in wanted.others.items():
        with torch.no_grad():
            theirs_BTV = tempered_logp(head_output(other, batch), temperature)
            other_BT[role] = at_target(theirs_BTV, target_BT)
        if wanted.kl and role == "reference":
            reference_BTV = theirs_BTV
        del theirs_BTV  # before the next logits are computed
    logp_BTV = tempered_logp(head_output(model, batch), temperature)
    with torch.set_grad_enabled(torch.is_grad_enabled() and bool(wanted.differentiable)):
        entropy_BT, kl_BT = entropy_and_kl(logp_BTV, reference_BTV)
    return wanted.detached(at_target(logp_BTV, target_BT), entropy_BT, kl_BT, other_BT)


def has_plain_head(model: nn.Module) -> bool:
    """Whether the logits are exactly `lm_head`, a linear layer, of the hidden states."""
    if not isinstance(model, PLAIN_HEADS):
        return False
    return getattr(model.lm_head.forward, "__func__", None) is nn.Linear.forward


def _in_chunks(
    model: PreTrainedModel, batch: Batch, temperature: float, wanted: Wanted
) -> Logprobs:
    """`compute_logprobs` with the head's forward replaced by one that returns scores, not logits.

    It runs inside the model's forward: only there does FSDP gather weights that are sharded over
    ranks, and return their gradient to the shards.
    """
    heads = {role: _other_head(other, batch) for role, other in wanted.others.items()}

    def scores_of(hidden_XXD: Tensor) -> Tensor:
        head = Head(batch.live(hidden_XXD), model.lm_head.weight, model.lm_head.bias)
        return _scores(head, heads, batch, temperature, wanted)

    with _head_forward(model, scores_of):
        return wanted.named(head_output(model, batch))


def _of_tree(
    model: PreTrainedModel, batch: tree.TreeBatch, temperature: float, wanted: Wanted
) -> Logprobs:
    """`compute_logprobs` of models that `policy.tree` supports."""
    with torch.no_grad():
        heads = {role: _tree_head(other, batch) for role, other in wanted.others.items()}
    return wanted.named(_scores(_tree_head(model, batch), heads, batch, temperature, wanted))


def _tree_head(model: PreTrainedModel, batch: tree.TreeBatch) -> Head:
    return Head(tree.hidden_states(model, batch), model.lm_head.weight, model.lm_head.bias)


def _scores(
    head: Head,
    others: Mapping[str, Head],
    batch: Batch | tree.TreeBatch,
    temperature: float,
    wanted: Wanted,
) -> Tensor:
    """`token_scores` of N tokens in their places in B x T; 0 at padding."""
    scores = token_scores(
        head, others, batch.target_N, temperature,
        kl=wanted.kl, differentiable=wanted.differentiable,
    )  # fmt: skip
    B, T = batch.shape
    row_N, column_N = batch.live_N // T, batch.live_N % T
    zeros = scores.new_zeros(B, T, scores.shape[1])
    return zeros.index_put((row_N, column_N), scores)  # no view: FSDP2 warns of one


@torch.no_grad()
def _other_head(other: PreTrainedModel, batch: Batch) -> Head:
    """The head of another policy with its weights gathered, and the hidden states that it reads."""
    with _head_forward(other, lambda hidden: hidden):
        hidden_ND = batch.live(head_output(other, batch))
    weight_VD, bias_V = other.lm_head.weight, other.lm_head.bias
    return Head(hidden_ND, whole(weight_VD), None if bias_V is None else whole(bias_V))


@contextmanager
def _head_forward(model: PreTrainedModel, forward: Callable[[Tensor], Tensor]) -> Iterator[None]:
    """Within, the head computes `forward`; its weights, names and hooks stay as they are."""
    model.lm_head.forward = forward
    try:
        yield
    finally:
        del model.lm_head.forward
