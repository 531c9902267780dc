"""Log-probabilities of the same weights that differ: by another temperature, by truncated sampling,
by a shift, by rounding, or because the weights are not the same after all.

Two columns should agree up to rounding if both are of the policy that drew a token, in the trainer
and in the sampler, and if the current policy is the one that drew it.
"""

import math
from collections.abc import Iterator
from typing import NamedTuple

from scipy import stats
from torch import Tensor

from rec_experiments.auditing.batch import Batch, Missing
from rec_experiments.auditing.report import Finding
from rec_experiments.auditing.siblings import precision, rounding, siblings
from rec_experiments.auditing.statistics import log_ratio, relative_change

LEVEL = 1e-6  # of each test: how often it finds something in a correct batch
UNCERTAIN = math.log(0.99)  # log-probabilities above this say nothing about weights
ENOUGH = 20  # tokens for a quantile
NAMES = {"current": "logp"}  # of columns; others are ROLE_logp


class Pair(NamedTuple):
    """Two roles that should agree where `where_BT` is true. why: in words."""

    trainer: str
    sampler: str
    where_BT: Tensor
    why: str

    def gap(self, batch: Batch) -> Tensor:
        """log π_trainer − log π_sampler, B x T."""
        return batch.logps[self.trainer] - batch.logps[self.sampler]


def pairs(batch: Batch) -> Iterator[Pair]:
    """Raises Missing if there is none."""
    roles = batch.logps.keys()
    if {"behavior", "sampler"} <= roles and not _behavior_is_current(batch):
        yield Pair("behavior", "sampler", batch.mask_BT, "the policy that drew the tokens")
    drawn = "behavior" if "behavior" in roles else "sampler"
    if {"current", drawn} <= roles:
        if batch.learning_rate == 0:
            yield Pair("current", drawn, batch.mask_BT, "weights that a learning rate of 0 keeps")
        elif batch.versions_BT is not None and batch.step is not None:
            yield Pair("current", drawn, batch.mask_BT & (batch.age_BT == 0), "tokens of age 0")
    if not {"behavior", "sampler"} <= roles and not {"current", drawn} <= roles:
        raise Missing("two of logp, behavior_logp, sampler_logp")


def same_weights(batch: Batch) -> list[Finding]:
    """What explains a difference beyond rounding, for each pair."""
    found = []
    for pair in pairs(batch):
        if pair.where_BT.any() and not _shifted(batch, pair.trainer, pair.sampler):
            cause = _temperature(batch, pair) or _truncation(batch, pair) or _weights(batch, pair)
            found += [cause] if cause else []
    return found


def column(role: str) -> str:
    return NAMES.get(role, f"{role}_logp")


# Causes ------------------------------------------------------------------------------------------


def shift(batch: Batch) -> list[Finding]:
    """Log-probabilities that fit those of another role one token on, or one token back."""
    roles = [role for role in batch.logps if role != "proximal"]
    if len(roles) < 2:
        raise Missing("a second column of log-probabilities")
    found = []
    for other in roles[1:]:
        if lag := _shifted(batch, roles[0], other):
            gap_BT = (batch.logps[roles[0]] - batch.logps[other]).where(batch.mask_BT, 0.0)
            side = "after" if lag > 0 else "before"
            found.append(
                Finding(
                    "shifted log-probabilities",
                    f"{column(roles[0])} of a token fits {column(other)} of the token {side} it, "
                    f"in nearly all responses (sign test, P < {LEVEL:g})",
                    f"ratios are of different tokens: weights change by "
                    f"{relative_change(batch, gap_BT):.0%}",
                    f"shift {column(other)} by {-lag:+d} token where it is cut out of the logits",
                )
            )
    return found


def _shifted(batch: Batch, first: str, second: str) -> int:
    """The lag at which the second role fits the first one better than at 0; 0 if there is none."""
    for lag in (-1, 1):
        wins, rows = 0, 0
        for a_T, b_T, live_T in zip(
            batch.logps[first], batch.logps[second], batch.mask_BT, strict=True
        ):
            a_N, b_N = a_T[live_T], b_T[live_T]
            if len(a_N) < 4:
                continue
            ahead_N, behind_N = (a_N[:-1], b_N[1:]) if lag > 0 else (a_N[1:], b_N[:-1])
            rows += 1
            wins += bool((ahead_N - behind_N).abs().mean() < (a_N - b_N).abs().mean() / 2)
        if rows and stats.binom.sf(wins - 1, rows, 0.5) < LEVEL:
            return lag
    return 0


def _temperature(batch: Batch, pair: Pair) -> Finding | None:
    """In one context, differences of log-probabilities at temperature T are 1/T times as large."""
    try:
        parted = siblings(batch)
    except Missing:
        return None
    here_X = pair.where_BT[parted.first_X, parted.place_X]
    trainer_X = parted.difference(batch.logps[pair.trainer])[here_X]
    sampler_X = parted.difference(batch.logps[pair.sampler])[here_X]
    if len(trainer_X) < 4:
        return None
    slope = float((trainer_X * sampler_X).sum() / trainer_X.square().sum())
    left_X = (sampler_X - slope * trainer_X).abs()
    error = 1.5 * float(left_X.median()) / float(trainer_X.square().sum().sqrt())
    explained = left_X.median() < 0.2 * (sampler_X - trainer_X).abs().median()
    if not explained or abs(slope - 1) < max(0.02, 6 * error) or slope <= 0:
        return None
    gap_BT = pair.gap(batch).where(pair.where_BT, 0.0)
    return Finding(
        "temperature",
        f"{column(pair.sampler)} is at temperature {1 / slope:.3f} ± {error / slope**2:.1g} "
        f"relative to {column(pair.trainer)} (log-ratios of two tokens in "
        f"{len(trainer_X)} contexts, 6 standard errors)",
        f"weights of tokens change by {relative_change(batch, gap_BT):.0%} on fresh data, and the "
        "policy that is trained is not the one that draws",
        f"divide the trainer's logits by {1 / slope:.3g}, or sample at temperature 1",
    )


def _truncation(batch: Batch, pair: Pair) -> Finding | None:
    """The mean of π_trainer/π_sampler is 1 for any two distributions of one support; it is the kept
    mass where the sampler cuts its distribution and reports what it has left."""
    gap_BT = pair.gap(batch).where(pair.where_BT, 0.0)
    gap_N = gap_BT[pair.where_BT]
    excess_BT = gap_BT.clamp(max=2.0).expm1()
    rows_B = excess_BT.sum(1)
    deviation = float(rows_B.sum() / rows_B.square().sum().sqrt().clamp(min=1e-12))
    mean = 1 + float(excess_BT.sum()) / len(gap_N)
    above = float((gap_N > rounding(batch, pair.trainer, pair.sampler)).double().mean())
    if mean > 0.999 or deviation > -6 or above > 0.01:
        return None
    return Finding(
        "truncated sampling",
        f"the mean of π({column(pair.trainer)})/π({column(pair.sampler)}) is {mean:.4f}, "
        f"{-deviation:.0f} standard errors below 1, and no token's ratio is above 1: the sampler "
        f"keeps {math.exp(float(gap_N.min())):.2f} to 1 of the mass (top-p or top-k)",
        f"{1 - mean:.1%} of the policy is never drawn and cannot be pushed up or down; weights of "
        f"tokens change by {relative_change(batch, gap_BT):.0%}",
        "sample with top_p=1 and top_k off",
    )


def _weights(batch: Batch, pair: Pair) -> Finding | None:
    """The rest: other weights."""
    gap_BT = pair.gap(batch).where(pair.where_BT, 0.0)
    live_BT = pair.where_BT & (batch.logps[pair.sampler] < UNCERTAIN)
    gap_N = gap_BT[live_BT].abs()
    if len(gap_N) < ENOUGH:
        return None
    size, allowed = float(gap_N.quantile(0.9)), rounding(batch, pair.trainer, pair.sampler)
    if size <= allowed:
        return None
    evidence = (
        f"{column(pair.trainer)} and {column(pair.sampler)} are both of {pair.why}, yet 90 % of "
        f"uncertain tokens differ by up to {size:.2g}; rounding explains {allowed:g}"
    )
    effect = f"weights of tokens change by {relative_change(batch, gap_BT):.0%}"
    if batch.learning_rate == 0 and pair.trainer == "current":
        return Finding(
            "drift at learning rate 0", evidence, effect,
            "score twice with the same weights: dropout, padding, position ids, or kernels differ",
        )  # fmt: skip
    if pair.trainer == "current":
        return Finding(
            "miscounted age", evidence, effect,
            "let versions count gradient steps of the weights that drew a token, and take step "
            "before the update; if they do, the sampler's weights are older than it says",
        )  # fmt: skip
    return Finding(
        "weights of the sampler", evidence, effect,
        "wait for the weight transfer before drawing, and compare a checksum of every tensor after "
        "it: the sampler's weights are older, or damaged",
    )  # fmt: skip


def dtypes(batch: Batch) -> list[Finding]:
    """bfloat16 in one computation and float32 in the other, or bfloat16 log-probabilities."""
    roles = [role for role in ("current", "behavior", "sampler") if role in batch.logps]
    if not roles:
        raise Missing("logp, behavior_logp or sampler_logp")
    found = {role: precision(batch, role) for role in roles}
    names = {kind: [column(r) for r in roles if found[r] == kind] for kind in found.values()}
    effect = "log-ratios have the rounding of bfloat16"
    if kept := names.get("stored bfloat16"):
        return [
            Finding(
                "precision",
                f"{', '.join(kept)}: every value is a bfloat16 number (exact)",
                f"{effect}: an error of up to 0.4 % of each log-probability",
                "convert logits to float32 before log_softmax, and keep its result in float32",
            )
        ]
    if "bfloat16" in names and "float32" in names:
        low, high = ", ".join(names["bfloat16"]), ", ".join(names["float32"])
        gap_BT = batch.logps[_role(names["float32"][0])] - batch.logps[_role(names["bfloat16"][0])]
        return [
            Finding(
                "precision",
                f"logits of {low} are bfloat16, those of {high} are not: differences of "
                "log-probabilities in one context are multiples of 2^-10 in one only (P < 4e-9)",
                f"{effect}: weights of tokens change by "
                f"{relative_change(batch, gap_BT.where(batch.mask_BT, 0.0)):.1%} on fresh data",
                "compute the head of both in float32, as vLLM's fp32 head and TRL's "
                "cast_lm_head_to_fp32 do",
            )
        ]
    return []


def _role(name: str) -> str:
    return "current" if name == "logp" else name.removesuffix("_logp")


# Ages and the reference --------------------------------------------------------------------------


def ages(batch: Batch) -> list[Finding]:
    """Ages that are negative, and old tokens whose policy is the current one."""
    age_BT = batch.age_BT
    live_N = age_BT[batch.mask_BT]
    advice = "let versions count gradient steps of the weights that drew a token"
    if len(live_N) and int(live_N.min()) < 0:
        return [
            Finding(
                "miscounted age",
                f"a token is of version {int(batch.step or 0) - int(live_N.min())}, the current "
                f"policy of {batch.step} (exact)",
                "whatever depends on age is wrong; the loss is not",
                advice,
            )
        ]
    if _behavior_is_current(batch):
        return [
            Finding(
                "miscounted age",
                f"tokens of ages up to {int(live_N.max())} have ρ = 1 to 1e-6: behavior_logp is of "
                "the current policy (exact)",
                "clips and importance weights do nothing, and stale data counts as fresh",
                f"{advice}; take behavior_logp when tokens are drawn, not when they are used",
            )
        ]
    return []


def _behavior_is_current(batch: Batch) -> bool:
    """Whether tokens that are said to be old have the current policy's log-probabilities."""
    if batch.versions_BT is None or batch.step is None or "current" not in batch.logps:
        return False
    old_BT = batch.mask_BT & (batch.age_BT > 0) & (batch.logps["current"] < UNCERTAIN)
    gap_N = log_ratio(batch)[old_BT].abs()
    return batch.step > 1 and len(gap_N) >= ENOUGH and float(gap_N.max()) < 1e-6


def reference(batch: Batch) -> list[Finding]:
    """The reference is the policy at step 0, as far as tokens of version 0 tell."""
    (reference_BT,) = batch.need("reference_logp")
    versions_BT, step = batch.need("versions", "step")
    first = "behavior" if "behavior" in batch.logps else "sampler"
    if first in batch.logps and bool(((versions_BT == 0) & batch.mask_BT).any()):
        pair = Pair("reference", first, batch.mask_BT & (versions_BT == 0), "version 0")
        found = None if _shifted(batch, "reference", first) else _weights(batch, pair)
        return [] if found is None else [_not_the_start(batch, pair.gap(batch), found.evidence)]
    current_BT = batch.logps.get("current")
    if current_BT is not None and step >= 10:
        gap_N = (reference_BT - current_BT)[batch.mask_BT].abs()
        if float(gap_N.max()) < 1e-6:
            evidence = f"reference_logp is logp after {step} gradient steps, to 1e-6 (exact)"
            return [_not_the_start(batch, reference_BT - current_BT, evidence)]
        return []
    raise Missing("tokens of version 0, as in the first batch")


def _not_the_start(batch: Batch, gap_BT: Tensor, evidence: str) -> Finding:
    gap = float(gap_BT[batch.mask_BT].abs().mean())
    return Finding(
        "reference",
        evidence,
        f"the penalty pulls towards another policy, {gap:.2g} nats a token away from the start",
        "load the reference from the weights that training starts from, and leave it alone",
    )
