"""The language-model head and what is read off its logits, a chunk of tokens at a time.

Logits are the largest tensor of a training step: 4,096 tokens of a vocabulary of 151,936 take
2.5 GB in float32, and log-softmax with its gradient holds several tensors of that size. Here no
more than `LOGITS_AT_ONCE` of them exist at a time: the forward pass keeps three numbers a token,
and the backward pass makes the logits of each chunk again.

Shape suffixes: N tokens, C tokens of one chunk, D hidden size, V vocabulary entries.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional

# 256 MiB in float32, 441 tokens of a vocabulary of 151,936. Fewer would save little beside the
# weights of a model with such a vocabulary, and every chunk reads the head's weight and adds to its
# gradient, which takes longer than the products themselves once a chunk has few tokens.
LOGITS_AT_ONCE = 2**26


class Head(NamedTuple):
    """A linear head and the hidden states that it reads: logits = hidden · weightᵀ + bias."""

    hidden_ND: Tensor
    weight_VD: Tensor
    bias_V: Tensor | None

    def logits(self, rows: slice) -> Tensor:
        return functional.linear(self.hidden_ND[rows], self.weight_VD, self.bias_V)

    def lowered(self) -> "Head":
        """In the dtype that autocast gives a linear layer, cast once for all chunks."""
        device = self.hidden_ND.device.type
        if not torch.is_autocast_enabled(device):
            return self
        return self.to(torch.get_autocast_dtype(device))

    def to(self, dtype: torch.dtype) -> "Head":
        bias_V = None if self.bias_V is None else self.bias_V.to(dtype)
        return Head(self.hidden_ND.to(dtype), self.weight_VD.to(dtype), bias_V)


def tempered_logp(logits: Tensor, temperature: float) -> Tensor:
    """log softmax(logits / temperature) over the last dimension, in float32 at least."""
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    if temperature != 1:  # a division by 1 would copy the largest tensor of the step
        logits = logits / temperature
    return torch.log_softmax(logits, dim=-1)


def entropy_and_kl(logp: Tensor, reference_logp: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """Entropy and KL(p ‖ reference) in nats over the last dimension; None without a reference."""
    p = logp.exp()
    entropy = -(p * logp).sum(-1)
    if reference_logp is None:
        return entropy, None
    return entropy, (p * (logp - reference_logp)).sum(-1)


def token_scores(
    head: Head, reference: Head | None, target_N: Tensor, temperature: float
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Log-probability of each target (differentiable), entropy and KL to the reference (not).

    The same numbers as from all logits at once, up to rounding. Of the gradient, the part of the
    weight is summed over the chunks in float32 at least.
    """
    other = None if reference is None else reference.lowered()
    return _TokenScores.apply(*head, target_N, temperature, other)


class _TokenScores(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden_ND: Tensor,
        weight_VD: Tensor,
        bias_V: Tensor | None,
        target_N: Tensor,
        temperature: float,
        reference: Head | None,
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        head = Head(hidden_ND, weight_VD, bias_V).lowered()
        ctx.low, ctx.temperature = head.hidden_ND.dtype, temperature
        ctx.save_for_backward(hidden_ND, weight_VD, bias_V, target_N)
        parts = [
            _scores_of(rows, head, reference, target_N, temperature)
            for rows in _chunks(len(target_N), len(weight_VD))
        ]
        logp_N, entropy_N, *kl = (torch.cat(part) for part in zip(*parts, strict=True))
        ctx.mark_non_differentiable(entropy_N, *kl)
        return logp_N, entropy_N, kl[0] if kl else None

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_N: Tensor, *_: Tensor | None) -> tuple[Tensor | None, ...]:
        """∂ log p(y) / ∂ logits = (1[y] − p) / temperature, and on through the linear layer."""
        hidden_ND, weight_VD, bias_V, target_N = ctx.saved_tensors
        head = Head(hidden_ND, weight_VD, bias_V).to(ctx.low)
        grad_N = grad_N / ctx.temperature
        precise = torch.promote_types(weight_VD.dtype, torch.float32)
        hidden_grad_ND = torch.empty_like(hidden_ND)
        weight_grad_VD = torch.zeros_like(weight_VD, dtype=precise)
        bias_grad_V = None if bias_V is None else torch.zeros_like(bias_V, dtype=precise)
        for rows in _chunks(len(target_N), len(weight_VD)):
            logits_grad_CV = _logits_grad(rows, head, target_N, grad_N, ctx.temperature)
            hidden_grad_ND[rows] = logits_grad_CV @ head.weight_VD
            weight_grad_VD += logits_grad_CV.mT @ head.hidden_ND[rows]
            if bias_grad_V is not None:
                bias_grad_V += logits_grad_CV.sum(0)
            del logits_grad_CV  # before the next chunk's logits are made
        return hidden_grad_ND, weight_grad_VD, bias_grad_V, None, None, None


def _scores_of(
    rows: slice, head: Head, reference: Head | None, target_N: Tensor, temperature: float
) -> list[Tensor]:
    """Of one chunk: log-probability, entropy and, with a reference, KL."""
    logp_CV = tempered_logp(head.logits(rows), temperature)
    other_CV = None
    if reference is not None:
        other_CV = tempered_logp(reference.logits(rows), temperature)
    scores = (logp_CV.gather(1, target_N[rows, None])[:, 0], *entropy_and_kl(logp_CV, other_CV))
    return [x_C for x_C in scores if x_C is not None]


def _logits_grad(
    rows: slice, head: Head, target_N: Tensor, grad_N: Tensor, temperature: float
) -> Tensor:
    """(1[y] − p) · grad of one chunk, C x V, in the dtype of its products."""
    p_CV = tempered_logp(head.logits(rows), temperature).exp_()
    logits_grad_CV = p_CV.mul_(-grad_N[rows, None])
    logits_grad_CV.scatter_add_(1, target_N[rows, None], grad_N[rows, None])
    return logits_grad_CV.to(head.hidden_ND.dtype)


def _chunks(tokens: int, vocabulary: int) -> Iterator[slice]:
    size = max(1, LOGITS_AT_ONCE // vocabulary)
    return (slice(start, start + size) for start in range(0, tokens, size))
