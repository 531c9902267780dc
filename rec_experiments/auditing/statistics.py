"""How far off-policy a batch is: ages, importance ratios, effective sample size, clipped shares."""

import contextlib
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from rec_experiments.algo.inputs import LossInput
from rec_experiments.algo.loss import SequenceRatio, TokenRatio, tokens
from rec_experiments.auditing.batch import Batch, Missing, column
from rec_experiments.auditing.pieces import choices

LARGEST = 700.0  # of a log-ratio; exp(709) is the largest in float64
SHOWN_AGES = 8
OF_SEQUENCES = ("sequence", "sequence_wide")  # clips of conf for the ratio of a sequence


def measure(batch: Batch) -> dict[str, Any]:
    """What the columns of a batch allow to be measured, by name."""
    found: dict[str, Any] = {
        "responses": int(batch.used_B.sum()),
        "tokens": int(batch.mask_BT.sum()),
        "length": _range(batch.lengths_B[batch.used_B]),
    }
    parts: dict[str, Callable[[Batch], Any]] = {
        "age": lambda batch: _range(batch.age_BT[batch.mask_BT]),
        "ratio": ratios,
        "ratio_by_age": ratios_by_age,
        "mismatch": mismatch,
        "clipped": clipped,
    }
    for name, part in parts.items():
        with contextlib.suppress(Missing):
            found[name] = part(batch)
    return found


def _range(values_X: Tensor) -> dict[str, float]:
    ordered_X = values_X.double().sort().values
    return {
        "min": float(ordered_X[0]), "mean": float(ordered_X.mean()), "max": float(ordered_X[-1]),
    }  # fmt: skip


def drawn_by(batch: Batch) -> str | None:
    """The role of the policy that drew the tokens: in the trainer's computation, if that is
    known."""
    return next((role for role in ("behavior", "sampler") if role in batch.logps), None)


def log_ratio(batch: Batch) -> Tensor:
    """log π_current/π_behavior of each token that counts, 0 elsewhere. B x T. Raises Missing."""
    current_BT, drawn_BT = batch.need("logp", column(drawn_by(batch) or "behavior"))
    return current_BT - drawn_BT


def mismatch(batch: Batch) -> dict[str, float]:
    """|log π_trainer − log π_sampler| of the policy that drew the tokens."""
    behavior_BT, sampler_BT = batch.need("behavior_logp", "sampler_logp")
    gap_N = (behavior_BT - sampler_BT)[batch.mask_BT].abs()
    return {"mean": float(gap_N.mean()), "median": float(gap_N.median()), "max": float(gap_N.max())}


def ratios(batch: Batch) -> dict[str, float]:
    """Importance ratios of tokens, their squared logarithms, and effective sample sizes."""
    log_ratio_BT = log_ratio(batch)
    log_N = log_ratio_BT[batch.mask_BT]
    return {
        **_moments(log_N),
        "median": float(log_N.median().exp()),
        "max": float(log_N.max().clamp(max=LARGEST).exp()),
        "ess_tokens": effective_share(log_N),
        "ess_responses": effective_share(log_ratio_BT.sum(1)[batch.used_B]),
    }


def _moments(log_N: Tensor) -> dict[str, float]:
    """The median of (log ρ)² beside its mean, which has a heavy tail."""
    return {
        "mean": float(log_N.clamp(max=LARGEST).exp().mean()),
        "mean_square": float(log_N.square().mean()),
        "median_square": float(log_N.square().median()),
    }


def effective_share(log_weight_X: Tensor) -> float:
    """(Σw)² / (n Σw²): 1 if all weights are equal, 1/n if one of them is everything."""
    log_sum, log_squares = log_weight_X.logsumexp(0), (2 * log_weight_X).logsumexp(0)
    return float((2 * log_sum - log_squares).exp() / len(log_weight_X))


def ratios_by_age(batch: Batch) -> list[dict[str, float]]:
    """Ratios of the tokens of each age. More than SHOWN_AGES ages are joined into as many bins."""
    log_N, age_N = log_ratio(batch)[batch.mask_BT], batch.age_BT[batch.mask_BT]
    found = []
    for part in age_N.unique().tensor_split(SHOWN_AGES):
        if len(part):
            here_N = log_N[(age_N >= part[0]) & (age_N <= part[-1])]
            ages = {"min": int(part[0]), "max": int(part[-1]), "tokens": len(here_N)}
            found.append({**ages, **_moments(here_N)})
    return found


def clipped(batch: Batch) -> dict[str, float]:
    """The share of tokens with a gradient whose gradient each clip of conf drops. Without
    advantages each token counts twice: as pushed up, and as pushed down."""
    log_ratio_BT, ones_BT = log_ratio(batch), batch.mask_BT.double()
    given = [ones_BT, -ones_BT] if batch.advantages_BT is None else [batch.advantages_BT]
    inputs = [as_input(batch, log_ratio_BT, advantages_BT) for advantages_BT in given]
    found: dict[str, float] = {}
    for name, clip in choices("clip").items():
        if clip.needs.logps:
            continue
        ratio = SequenceRatio() if name in OF_SEQUENCES else TokenRatio()
        dropped = [~clip(ratio(rows), rows)[moving(rows)] for rows in inputs]
        if sum(map(len, dropped)):
            found[name] = float(torch.cat(dropped).double().mean())
    return found


def relative_change(batch: Batch, gap_BT: Tensor) -> float:
    """‖A (e^gap − 1)‖ / ‖A‖ over tokens that count: how far token weights e^gap change the gradient
    with respect to log-probabilities. Without advantages, of equal ones."""
    advantages_BT = batch.mask_BT.double() if batch.advantages_BT is None else batch.advantages_BT
    changed_BT = advantages_BT * gap_BT.where(batch.mask_BT, 0.0).clamp(max=LARGEST / 2).expm1()
    return float(changed_BT.norm() / advantages_BT.norm().clamp(min=1e-12))


def moving(rows: LossInput) -> Tensor:
    """Tokens with a gradient: those that count and have an advantage. Boolean, B x T."""
    return rows.mask_BT & (rows.advantage_B != 0)[:, None]


def as_input(batch: Batch, log_ratio_BT: Tensor, advantages_BT: Tensor) -> LossInput:
    """The batch as a piece of a loss sees it. A response has the advantage of its largest token."""
    place_B1 = advantages_BT.abs().argmax(1, keepdim=True)
    rows = tokens(log_ratio_BT, advantages_BT.gather(1, place_B1).squeeze(1))
    rows.advantages.mask_BT.copy_(batch.mask_BT)
    return rows
