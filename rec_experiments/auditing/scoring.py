"""The batch in the eyes of the model that drew it.

For tokens drawn by a policy p, the likelihood ratio of any other policy to p has mean 1 over
batches: it is above 1/α with probability α at most. So one of other temperatures, or of a
truncated p, whose likelihood ratio is above 10^6, says what the sampler did, at a known risk.
"""

import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor
from transformers import PreTrainedModel

from rec_experiments.auditing.batch import Batch, Missing
from rec_experiments.auditing.report import Finding
from rec_experiments.auditing.siblings import BFLOAT16_ROUNDING
from rec_experiments.common.batch import Sequences
from rec_experiments.common.errors import UserError
from rec_experiments.policy.batching import collate
from rec_experiments.policy.logprobs import head_output
from rec_experiments.policy.models import Pretrained

TEMPERATURES = (0.3, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 1.05, 1.1, 1.2, 1.3, 1.5, 2.0)
TOP_P = (0.5, 0.7, 0.8, 0.9, 0.95, 0.98, 0.99)
TOP_K = (1, 2, 3, 5, 10, 20, 50, 100)
OUTSIDE = 1e-3  # the share of draws that an alternative takes from p itself, for rounding's sake
LEVEL = 1e-6
ROWS_AT_ONCE = 2**24  # logits


class Scores(NamedTuple):
    """logp_BT: log-probability under the model. gains: log-likelihood ratio of all tokens, of each
    alternative against the model."""

    logp_BT: Tensor
    gains: dict[tuple[str, float], float]


def load(folder: Path) -> PreTrainedModel:
    """Raises UserError if the folder holds no model."""
    if not folder.is_dir():
        raise UserError(f"model={folder}: no such folder; give one as save_pretrained writes it")
    choice = Pretrained(
        path=str(folder), dtype="float32", compute_dtype="float32", attention="sdpa",
        gradient_checkpointing=False, packed=False, shared_prompts=False, compile_layers=False,
        chat_template_kwargs={},
    )  # fmt: skip
    return choice.model().eval()


def with_model(batch: Batch, folder: Path) -> tuple[Batch, Scores]:
    """The batch with what the model adds: its log-probabilities, unless the trainer's are given,
    and its special tokens. Raises UserError without tokens and prompts."""
    if batch.tokens_BT is None or batch.prompts is None or not all(batch.prompts):
        raise UserError(f"model={folder}: needs tokens, and the tokens of each prompt in prompts")
    model = load(folder)
    scores = score(batch, model)
    special = model.generation_config or model.config
    return (
        replace(
            batch,
            logps={"behavior": scores.logp_BT, **batch.logps},
            eos=batch.eos or _ids(special.eos_token_id),
            bos=batch.bos or _ids(special.bos_token_id),
        ),
        scores,
    )


def _ids(value: int | list[int] | None) -> tuple[int, ...]:
    if value is None:
        return ()
    return (value,) if isinstance(value, int) else tuple(value)


@torch.inference_mode()
def score(batch: Batch, model: PreTrainedModel) -> Scores:
    """Every token that counts, given prompt and response before it."""
    tokens_BT, live_BT = batch.tokens_BT, batch.mask_BT
    assert tokens_BT is not None
    assert batch.prompts is not None
    place_BT = torch.arange(live_BT.shape[1]) * live_BT
    start_B = live_BT.int().argmax(1) if _whole(batch) else torch.zeros(len(live_BT)).long()
    responses = [
        tokens[start : last + 1].tolist()
        for tokens, start, last in zip(tokens_BT, start_B, place_BT.amax(1), strict=True)
    ]
    logp_BT = torch.zeros(live_BT.shape, dtype=torch.float64)
    gains: dict[tuple[str, float], float] = {}
    size = max(1, ROWS_AT_ONCE // (model.config.vocab_size * live_BT.shape[1]))
    for first in range(0, len(responses), size):
        rows = range(first, min(first + size, len(responses)))
        inputs = collate(
            Sequences.of([batch.prompts[b] for b in rows], [responses[b] for b in rows])
        )
        logits_XTV = head_output(model, inputs).float()
        for row, logits_TV in zip(rows, logits_XTV, strict=True):
            start, written = int(start_B[row]), len(responses[row])
            live_T = live_BT[row, start : start + written]
            target_T = tokens_BT[row, start : start + written]
            logits_NV, target_N = logits_TV[:written][live_T], target_T[live_T]
            own_N = _at(logits_NV.log_softmax(-1), target_N)
            logp_BT[row, start : start + written][live_T] = own_N
            for name, gain in _gains(logits_NV, target_N, own_N):
                gains[name] = gains.get(name, 0.0) + gain
    return Scores(logp_BT, gains)


def _whole(batch: Batch) -> bool:
    """Whether tokens hold the prompts, too, before the mask."""
    return not batch.mask_BT[:, 0].any()


def _at(values_NV: Tensor, target_N: Tensor) -> Tensor:
    return values_NV.gather(1, target_N[:, None]).squeeze(1).double()


def _gains(
    logits_NV: Tensor, target_N: Tensor, own_N: Tensor
) -> Iterator[tuple[tuple[str, float], float]]:
    """log q/p of the drawn tokens, summed, for each alternative q."""
    for temperature in TEMPERATURES:
        other_N = _at((logits_NV / temperature).log_softmax(-1), target_N)
        yield ("temperature", temperature), float((other_N - own_N).sum())
    sorted_NV = logits_NV.softmax(-1).sort(-1, descending=True).values.double()
    mass_NV = sorted_NV.cumsum(-1)
    rank_N = (sorted_NV > own_N.exp()[:, None] * (1 + 1e-6)).sum(1)
    for share in TOP_P:
        kept_N = (mass_NV < share).sum(1) + 1  # tokens that reach the share together
        yield ("top_p", share), _truncated(mass_NV, rank_N, kept_N)
    for kept in TOP_K:
        if kept < logits_NV.shape[1]:
            yield ("top_k", kept), _truncated(mass_NV, rank_N, torch.full_like(rank_N, kept))


def _truncated(mass_NV: Tensor, rank_N: Tensor, kept_N: Tensor) -> float:
    """Of p without all but its kept_N most probable tokens."""
    kept_N = kept_N.clamp(max=mass_NV.shape[1])
    mass_N = mass_NV.gather(1, kept_N[:, None] - 1).squeeze(1).clamp(max=1.0)
    inside_N = (rank_N < kept_N).double()
    return float(((1 - OUTSIDE) * inside_N / mass_N + OUTSIDE).log().sum())


def sampling(batch: Batch, scores: Scores) -> list[Finding]:
    """Another temperature, or top-p or top-k, that explains the tokens better than the model does.
    Raises Missing if the batch was drawn by another model."""
    gap_N = (batch.logps["behavior"] - scores.logp_BT)[batch.mask_BT].abs()
    if float(gap_N.quantile(0.9)) > BFLOAT16_ROUNDING:
        raise Missing(
            f"the model that drew the batch: its log-probabilities differ by {gap_N.max():.2g}"
        )
    (kind, value), gain = max(scores.gains.items(), key=lambda each: each[1])
    if gain - math.log(len(scores.gains)) < -math.log(LEVEL):
        return []
    return [
        Finding(
            "temperature" if kind == "temperature" else "truncated sampling",
            f"the tokens are e^{gain:.0f} times as likely under {kind}={value:g} as under the "
            f"model (likelihood ratio, P < {LEVEL:g})",
            "the policy that is trained is not the one that draws; ρ does not show it if the "
            "sampler reports log-probabilities of the model as it is",
        )
    ]
