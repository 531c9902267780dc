"""The language-model head and the scores read off its logits, one chunk of tokens at a time.

Logits are the largest tensor of a training step: 4,096 tokens of a vocabulary of 151,936 take
2.5 GB in float32, and log-softmax with its gradient holds several tensors of that size. Here at
most `LOGITS_AT_ONCE` logits exist at a time: the forward pass keeps a few numbers per token, and
the backward pass recomputes the logits of each chunk, unless there are few.
"""

from collections.abc import Iterator, Mapping, Set
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional

# 256 MiB in float32: 441 tokens of a vocabulary of 151,936. Smaller chunks would save little next
# to the weights of such a model, and would be slow: every chunk reads the head's weight and adds to
# its gradient.
LOGITS_AT_ONCE = 2**26
# Up to this many, 4 MiB in float32, are kept for the backward pass instead of recomputed.
LOGITS_KEPT = 2**20
REFERENCE = "reference"  # the policy that KL is measured to


class Head(NamedTuple):
    """A linear head and the hidden states that it reads: logits = hidden · weightᵀ + bias."""

    hidden_ND: Tensor
    weight_VD: Tensor
    bias_V: Tensor | None

    def logp(self, rows: slice, temperature: float) -> Tensor:
        """`tempered_logp` of some tokens; the logits are divided in place."""
        logits_CV = functional.linear(self.hidden_ND[rows], self.weight_VD, self.bias_V)
        logits_CV = logits_CV.to(torch.promote_types(logits_CV.dtype, torch.float32))
        if temperature != 1:
            logits_CV.div_(temperature)
        return torch.log_softmax(logits_CV, dim=-1)

    def to(self, dtype: torch.dtype | None) -> "Head":
        """Cast to this dtype; None keeps each tensor's own."""
        bias_V = None if self.bias_V is None else self.bias_V.to(dtype=dtype)
        return Head(self.hidden_ND.to(dtype=dtype), self.weight_VD.to(dtype=dtype), bias_V)


class TokenScores(NamedTuple):
    """Scores of N tokens in nats: the target's log-probability, entropy, KL(π_θ ‖ π_reference) or
    None, and the target's log-probability under each other policy."""

    logp_N: Tensor
    entropy_N: Tensor
    kl_N: Tensor | None
    other_logp: dict[str, Tensor]  # name -> N


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
    differentiable: Set[str] = frozenset(),
) -> TokenScores:
    """Scores of each target, computed in chunks of tokens.

    They equal those of all logits at once up to rounding. The weight's gradient is summed over the
    chunks in float32 or higher precision.

    others: policies to compare with; they get no gradient. kl: whether to measure the divergence
    from others[REFERENCE]. differentiable: which of "entropy" and "kl" have a gradient; the
    log-probability always has one.
    """
    assert REFERENCE in others or not kl
    assert differentiable <= ({"entropy", "kl"} if kl else {"entropy"}), differentiable
    logp_N, entropy_N, kl_N, *other = _TokenScores.apply(
        *head, target_N, temperature, others, kl, differentiable
    )
    return TokenScores(logp_N, entropy_N, kl_N, dict(zip(others, other, strict=True)))


class _TokenScores(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden_ND: Tensor,
        weight_VD: Tensor,
        bias_V: Tensor | None,
        target_N: Tensor,
        temperature: float,
        others: Mapping[str, Head],
        kl: bool,
        differentiable: Set[str],
    ) -> tuple[Tensor | None, ...]:
        """`token_scores` as a flat tuple."""
        head = Head(hidden_ND, weight_VD, bias_V)
        ctx.low, ctx.temperature = _autocast_dtype(hidden_ND.device), temperature
        low_head = head.to(ctx.low)  # cast once for all chunks
        low_others = {name: other.to(ctx.low) for name, other in others.items()}
        few = len(target_N) * len(weight_VD) <= min(LOGITS_KEPT, LOGITS_AT_ONCE)  # one chunk
        ctx.kept = kept_NV = None
        if few and any(ctx.needs_input_grad):
            ctx.kept = kept_NV = low_head.logp(slice(None), temperature)
        columns: list[Tensor] = []
        for rows in _chunks(len(target_N), len(weight_VD)):
            found = _scores_of(rows, low_head, kept_NV, low_others, target_N, temperature, kl)
            columns = columns or [x_C.new_empty(len(target_N)) for x_C in found]
            for column_N, x_C in zip(columns, found, strict=True):
                column_N[rows] = x_C
        logp_N, entropy_N, *other = columns
        kl_N = other.pop(0) if kl else None
        named = {"entropy": entropy_N, "kl": kl_N}
        fixed = [x_N for name, x_N in named.items() if name not in differentiable]
        ctx.mark_non_differentiable(*(x_N for x_N in (*fixed, *other) if x_N is not None))
        ctx.save_for_backward(
            *head,
            target_N,
            *(x_N if name in differentiable else None for name, x_N in named.items()),
            *(others[REFERENCE] if "kl" in differentiable else ()),
        )
        return logp_N, entropy_N, kl_N, *other

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, logp_grad_N: Tensor, entropy_grad_N: Tensor, kl_grad_N: Tensor, *_: Tensor
    ) -> tuple[Tensor | None, ...]:
        """Backpropagate to the logits of each chunk, then through the linear layer."""
        hidden_ND, weight_VD, bias_V, target_N, entropy_N, kl_N, *saved = ctx.saved_tensors
        head = Head(hidden_ND, weight_VD, bias_V).to(ctx.low)
        reference = Head(*saved).to(ctx.low) if saved else None
        logp_grad_N = logp_grad_N / ctx.temperature
        entropy = kl = None
        if entropy_N is not None:
            entropy = _Pull(entropy_N, entropy_grad_N / ctx.temperature)
        if kl_N is not None:
            kl = _Pull(kl_N, kl_grad_N / ctx.temperature)
        precise = torch.promote_types(weight_VD.dtype, torch.float32)
        kept_NV, ctx.kept = ctx.kept, None  # it is overwritten
        hidden_grad_ND = torch.empty_like(hidden_ND)
        # A frozen head, as beside adapters, needs no gradient, which is as large as its weights.
        weight_grad_VD = None
        if ctx.needs_input_grad[1]:
            weight_grad_VD = torch.zeros_like(weight_VD, dtype=precise)
        bias_grad_V = None if bias_V is None else torch.zeros_like(bias_V, dtype=precise)
        for rows in _chunks(len(target_N), len(weight_VD)):
            logits_grad_CV = _logits_grad(
                rows, head, kept_NV, reference, target_N, ctx.temperature, logp_grad_N, entropy, kl
            )
            hidden_grad_ND[rows] = logits_grad_CV @ head.weight_VD
            if weight_grad_VD is not None:
                weight_grad_VD += logits_grad_CV.mT @ head.hidden_ND[rows]
            if bias_grad_V is not None:
                bias_grad_V += logits_grad_CV.sum(0)
            del logits_grad_CV  # before the next chunk's logits are computed
        return hidden_grad_ND, weight_grad_VD, bias_grad_V, *[None] * 5


class _Pull(NamedTuple):
    """A score of N tokens, and the gradient of the loss by it, divided by the temperature."""

    score_N: Tensor
    grad_N: Tensor

    def columns(self, rows: slice) -> tuple[Tensor, Tensor]:
        """Those of one chunk, C x 1 each."""
        return self.score_N[rows, None], self.grad_N[rows, None]


def _scores_of(
    rows: slice,
    head: Head,
    kept_NV: Tensor | None,
    others: Mapping[str, Head],
    target_N: Tensor,
    temperature: float,
    kl: bool,
) -> list[Tensor]:
    """Scores of one chunk: log-probability, entropy, KL if requested, log-probability under others.

    kept_NV: log-probabilities of all tokens, if the forward pass keeps them."""
    target_C = target_N[rows]
    logp_CV = head.logp(rows, temperature) if kept_NV is None else kept_NV[rows]
    reference_CV, other_logp = None, []
    for name, other in others.items():
        other_CV = other.logp(rows, temperature)
        other_logp.append(at_target(other_CV, target_C))
        if kl and name == REFERENCE:
            reference_CV = other_CV
        del other_CV  # before the next policy's logits are computed
    scores = (at_target(logp_CV, target_C), *entropy_and_kl(logp_CV, reference_CV), *other_logp)
    return [x_C for x_C in scores if x_C is not None]


def _logits_grad(
    rows: slice,
    head: Head,
    kept_NV: Tensor | None,
    reference: Head | None,
    target_N: Tensor,
    temperature: float,
    logp_grad_N: Tensor,
    entropy: _Pull | None,
    kl: _Pull | None,
) -> Tensor:
    """The gradient of the loss by one chunk's logits, C x V, in the dtype of its products.

    By logits / temperature: ∂ log p(y) = 1[y] − p, ∂H = −p (log p + H), and
    ∂KL(p ‖ q) = p (log p − log q − KL). All but 1[y] is p times a slope. kept_NV: as in
    `_scores_of`; its rows are overwritten.
    """
    logp_CV = head.logp(rows, temperature) if kept_NV is None else kept_NV[rows]
    slope_CX = -logp_grad_N[rows, None]  # of V columns as soon as they differ
    if entropy is not None:
        entropy_C1, grad_C1 = entropy.columns(rows)
        slope_CX = slope_CX - (logp_CV + entropy_C1).mul_(grad_C1)
    if kl is not None and reference is not None:
        kl_C1, grad_C1 = kl.columns(rows)
        minus_CV = reference.logp(rows, temperature).sub_(logp_CV).add_(kl_C1)
        slope_CX = slope_CX - minus_CV.mul_(grad_C1)
        del minus_CV
    logits_grad_CV = logp_CV.exp_().mul_(slope_CX)
    logits_grad_CV.scatter_add_(1, target_N[rows, None], logp_grad_N[rows, None])
    return logits_grad_CV.to(head.hidden_ND.dtype)


def _autocast_dtype(device: torch.device) -> torch.dtype | None:
    """The dtype that autocast gives a linear layer; None if it is off."""
    on = torch.is_autocast_enabled(device.type)
    return torch.get_autocast_dtype(device.type) if on else None


def _chunks(tokens: int, vocabulary: int) -> Iterator[slice]:
    size = max(1, LOGITS_AT_ONCE // vocabulary)
    return (slice(start, start + size) for start in range(0, tokens, size))
