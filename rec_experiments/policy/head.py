"""The language-model head and the scores read off its logits, one chunk of tokens at a time.

Logits are the largest tensor of a training step: 4,096 tokens of a vocabulary of 151,936 take
2.5 GB in float32, and log-softmax with its gradient holds several tensors of that size. Here at
most `LOGITS_AT_ONCE` logits exist at a time: the backward pass recomputes the logits of each chunk,
unless there are few.
"""

import functools
from collections.abc import Mapping, Set
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

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
    tokens, vocabulary = len(target_N), len(head.weight_VD)
    size = max(1, LOGITS_AT_ONCE // vocabulary)
    chunks = [slice(start, start + size) for start in range(0, tokens, size)]
    total, low = _Sum(len(chunks)), head._replace(weight_VD=head.weight_VD.detach()).low()
    low_others = {name: other.low() for name, other in others.items()}  # once for all chunks

    def scores_of(hidden_CD: Tensor, chunk: slice) -> list[Tensor]:
        logits_CV = _Linear.apply(hidden_CD, head.weight_VD, low.weight_VD, total)
        if low.bias_V is not None:
            logits_CV = logits_CV + low.bias_V
        logp_CV = tempered_logp(logits_CV, temperature)
        del logits_CV
        theirs = {
            name: other._replace(hidden_ND=other.hidden_ND[chunk])
            for name, other in low_others.items()
        }
        return _scores_of(logp_CV, theirs, target_N[chunk], temperature, kl, differentiable)

    pieces = zip(low.hidden_ND.split(size), chunks, strict=True)
    if tokens * vocabulary <= min(LOGITS_KEPT, LOGITS_AT_ONCE):  # one chunk
        found = [scores_of(*piece) for piece in pieces]
    else:
        again = functools.partial(checkpoint, use_reentrant=False, preserve_rng_state=False)
        found = [again(scores_of, *piece) for piece in pieces]
    logp_N, entropy_N, *rest = map(torch.cat, zip(*found, strict=True))
    kl_N = rest.pop(0) if kl else None
    return TokenScores(logp_N, entropy_N, kl_N, dict(zip(others, rest, strict=True)))


def _scores_of(
    logp_CV: Tensor,
    others: Mapping[str, Head],
    target_C: Tensor,
    temperature: float,
    kl: bool,
    differentiable: Set[str],
) -> list[Tensor]:
    """Scores of one chunk: log-probability, entropy, KL if requested, log-probability under others.

    logp_CV: of the policy. What has no gradient comes last: a checkpoint recomputes nothing after
    the last operation that has one.
    """
    logp_C = at_target(logp_CV, target_C)
    reference_CV, other_logp = None, {}
    with torch.no_grad():
        if kl:
            reference_CV = others[REFERENCE].logp(temperature)
            other_logp[REFERENCE] = at_target(reference_CV, target_C)
    with torch.set_grad_enabled(torch.is_grad_enabled() and bool(differentiable)):
        entropy_C, kl_C = entropy_and_kl(logp_CV, reference_CV)
    del logp_CV, reference_CV  # before the next policy's logits are computed
    with torch.no_grad():
        for name, other in others.items():
            if name not in other_logp:
                other_logp[name] = at_target(other.logp(temperature), target_C)
    entropy_C = entropy_C if "entropy" in differentiable else entropy_C.detach()
    kl_C = kl_C if kl_C is None or "kl" in differentiable else kl_C.detach()
    divergence = [] if kl_C is None else [kl_C]
    return [logp_C, entropy_C, *divergence, *(other_logp[name] for name in others)]
