"""The forward pass: token ids in, log-probabilities of the response tokens out."""

from collections.abc import Callable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn
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
from rec_experiments.policy.head import (
    LOGITS_AT_ONCE,
    REFERENCE,
    Head,
    TokenScores,
    at_target,
    entropy_and_kl,
    tempered_logp,
    token_scores,
)
from rec_experiments.policy.token_batch import (
    Batch,
    TokenBatch,
    collate,
    packed,
    shared,
)

# Families whose logits are `lm_head` of the hidden states.
PLAIN_HEADS = (LlamaForCausalLM, MistralForCausalLM, Qwen2ForCausalLM, Qwen3ForCausalLM)
Models = Mapping[str, PreTrainedModel]

__all__ = ["ForwardPass", "Logprobs", "Models", "TokenBatch", "collate", "compute_logprobs"]


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
        return Logprobs(
            change(self.logp_BT),
            change(self.entropy_BT),
            None if self.kl_BT is None else change(self.kl_BT),
            {role: change(logp_BT) for role, logp_BT in self.others.items()},
        )

    def rows(self, index_B: Tensor) -> "Logprobs":
        """Select rows; an index may repeat."""
        return self.each(lambda x_BT: x_BT[index_B])

    def put(self, index_B: Tensor, rows: "Logprobs") -> None:
        """Overwrite these rows with `rows`, which may have fewer tokens."""
        width = rows.logp_BT.shape[1]
        for mine, theirs in zip(self._tensors(), rows._tensors(), strict=True):
            mine[index_B, :width] = theirs

    def _tensors(self) -> list[Tensor]:
        kl = [] if self.kl_BT is None else [self.kl_BT]
        return [self.logp_BT, self.entropy_BT, *kl, *self.others.values()]


@dataclass(frozen=True, kw_only=True, slots=True)
class ForwardPass:
    """How sequences go through a model.

    compute_dtype: of autocast; float32 keeps the dtype of the weights. packed: pack the sequences
    into one row, if every head is plain. shared: compute a prompt once for all of its responses;
    every head must be plain. fast_path: use `policy.tree` for models that it supports.
    """

    pad_id: int
    temperature: float
    compute_dtype: torch.dtype
    packed: bool = False
    shared: bool = False
    fast_path: bool = True

    def __call__(
        self,
        model: PreTrainedModel,
        rows: Sequences,
        *,
        others: Models | None = None,
        kl: bool = False,
        differentiable: AbstractSet[str] = frozenset(),
        chunked: bool | None = None,
    ) -> Logprobs:
        """`compute_logprobs` of these rows, in order."""
        batch = self.layout([model, *(others or {}).values()], rows)
        return self.score(
            model, batch, others=others, kl=kl, differentiable=differentiable, chunked=chunked
        )

    def score(
        self,
        model: PreTrainedModel,
        batch: Batch | tree.TreeBatch,
        *,
        others: Models | None = None,
        kl: bool = False,
        differentiable: AbstractSet[str] = frozenset(),
        chunked: bool | None = None,
    ) -> Logprobs:
        """`compute_logprobs` of a batch that `layout` made for these models."""
        if isinstance(batch, tree.TreeBatch):
            return _of_tree(model, batch, self.temperature, others or {}, kl, differentiable)
        if not isinstance(batch, TokenBatch):
            chunked = True
        low = self.compute_dtype != torch.float32
        device = next(model.parameters()).device
        # No cache: a pass reads each weight once, and cached copies would outlive their layer.
        with torch.autocast(
            device.type, dtype=self.compute_dtype, enabled=low, cache_enabled=False
        ):
            return compute_logprobs(
                model,
                batch.to(device),
                self.temperature,
                others=others,
                kl=kl,
                differentiable=differentiable,
                chunked=chunked,
            )

    def layout(self, models: list[PreTrainedModel], rows: Sequences) -> Batch | tree.TreeBatch:
        """The rows as the input of these models."""
        if self.packed and all(map(has_plain_head, models)):
            return packed(rows)
        if self.shared:
            return shared(rows, self.pad_id)
        low = self.compute_dtype != torch.float32
        if self.fast_path and not low and all(map(tree.supports, models)):
            return tree.TreeBatch.of(rows)
        return collate(rows, self.pad_id)


def is_large(sequences: int, response_length: int, vocabulary: int) -> bool:
    """Whether the logits of so many sequences are too many to compute at once."""
    return sequences * response_length * vocabulary > LOGITS_AT_ONCE


def compute_logprobs(
    model: PreTrainedModel,
    batch: Batch,
    temperature: float,
    *,
    others: Models | None = None,
    kl: bool = False,
    differentiable: AbstractSet[str] = frozenset(),
    chunked: bool | None = None,
) -> Logprobs:
    """One forward pass of each other policy, then one of the model.

    temperature: that of the sampler, or the ratio π_θ/π_old is wrong. others: further models by
    role. kl: whether to measure the divergence from others[REFERENCE]. differentiable: which of
    "entropy" and "kl" have a gradient. chunked: whether to compute the logits in chunks; None
    decides by their number, which is not allowed for ranks that share a model. Models without a
    plain head (a soft cap on the logits, a scale) always keep all logits in memory.
    """
    others = others or {}
    if chunked is None:
        chunked = is_large(*batch.shape, model.config.vocab_size)
    if chunked and all(map(has_plain_head, [model, *others.values()])):
        return _in_chunks(model, batch, temperature, others, kl, differentiable)
    assert isinstance(batch, TokenBatch), "models without a plain head take padded batches only"
    return _whole(model, batch, temperature, others, kl, differentiable)


def _whole(
    model: PreTrainedModel,
    batch: TokenBatch,
    temperature: float,
    others: Models,
    kl: bool,
    differentiable: AbstractSet[str],
) -> Logprobs:
    """`compute_logprobs` with all logits in memory."""
    target_BT = batch.input_ids[:, -batch.response_length :]
    other_BT, reference_BTV = {}, None
    for role, other in others.items():
        with torch.no_grad():
            theirs_BTV = tempered_logp(head_output(other, batch), temperature)
            other_BT[role] = at_target(theirs_BTV, target_BT)
        if kl and role == REFERENCE:
            reference_BTV = theirs_BTV
        del theirs_BTV  # before the next logits are computed
    logp_BTV = tempered_logp(head_output(model, batch), temperature)
    with torch.set_grad_enabled(torch.is_grad_enabled() and bool(differentiable)):
        entropy_BT, kl_BT = entropy_and_kl(logp_BTV, reference_BTV)
    return Logprobs(
        at_target(logp_BTV, target_BT),
        entropy_BT if "entropy" in differentiable else entropy_BT.detach(),
        kl_BT if kl_BT is None or "kl" in differentiable else kl_BT.detach(),
        other_BT,
    )


def has_plain_head(model: nn.Module) -> bool:
    """Whether the logits are exactly `lm_head`, a linear layer, of the hidden states."""
    if not isinstance(model, PLAIN_HEADS):
        return False
    return getattr(model.lm_head.forward, "__func__", None) is nn.Linear.forward


def _in_chunks(
    model: PreTrainedModel,
    batch: Batch,
    temperature: float,
    others: Models,
    kl: bool,
    differentiable: AbstractSet[str],
) -> Logprobs:
    """`compute_logprobs` with the head's forward replaced by one that returns scores, not logits.

    It runs inside the model's forward: only there does FSDP gather weights that are sharded over
    ranks, and return their gradient to the shards.
    """
    heads = {role: _other_head(other, batch) for role, other in others.items()}

    def scores_of(hidden_XXD: Tensor) -> Tensor:
        head = Head(batch.live(hidden_XXD), model.lm_head.weight, model.lm_head.bias)
        scores = token_scores(
            head, heads, batch.target_N, temperature, kl=kl, differentiable=differentiable
        )
        return _spread(scores, batch)

    with _head_forward(model, scores_of):
        scores_BTX = head_output(model, batch)
    return _named(scores_BTX, others, kl, differentiable)


def _of_tree(
    model: PreTrainedModel,
    batch: tree.TreeBatch,
    temperature: float,
    others: Models,
    kl: bool,
    differentiable: AbstractSet[str],
) -> Logprobs:
    """`compute_logprobs` of models that `policy.tree` supports."""
    with torch.no_grad():
        heads = {role: _tree_head(other, batch) for role, other in others.items()}
    scores = token_scores(
        _tree_head(model, batch),
        heads,
        batch.target_N,
        temperature,
        kl=kl,
        differentiable=differentiable,
    )
    return _named(_spread(scores, batch), others, kl, differentiable)


def _tree_head(model: PreTrainedModel, batch: tree.TreeBatch) -> Head:
    return Head(tree.hidden_states(model, batch), model.lm_head.weight, model.lm_head.bias)


def _spread(scores: TokenScores, batch: Batch | tree.TreeBatch) -> Tensor:
    """The scores as columns of B x T: logp, entropy, KL if measured, others; 0 at padding."""
    columns = [scores.logp_N, scores.entropy_N]
    columns += [] if scores.kl_N is None else [scores.kl_N]
    scores_NX = torch.stack([*columns, *scores.other_logp.values()], dim=-1)
    B, T = batch.shape
    row_N, column_N = batch.live_N // T, batch.live_N % T
    zeros = scores_NX.new_zeros(B, T, scores_NX.shape[1])
    return zeros.index_put((row_N, column_N), scores_NX)  # no view: FSDP2 warns of one


def _named(
    scores_BTX: Tensor, others: Models, kl: bool, differentiable: AbstractSet[str]
) -> Logprobs:
    """The columns of `_spread` by name."""
    logp_BT, entropy_BT, *rest = scores_BTX.unbind(-1)
    kl_BT = rest.pop(0) if kl else None
    return Logprobs(
        logp_BT,
        entropy_BT if "entropy" in differentiable else entropy_BT.detach(),
        kl_BT if kl_BT is None or "kl" in differentiable else kl_BT.detach(),
        {role: logp_BT.detach() for role, logp_BT in zip(others, rest, strict=True)},
    )


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
