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

from rec_experiments.auditing.batch import Batch, Missing, column
from rec_experiments.auditing.report import Finding
from rec_experiments.auditing.siblings import precision, rounding, siblings
from rec_experiments.auditing.statistics import drawn_by, log_ratio, relative_change

LEVEL = 1e-6  # of the sign test: how often it finds something in a correct batch
STANDARD_ERRORS = 6  # of a slope or a mean from what a correct batch has
UNCERTAIN = math.log(0.99)  # log-probabilities above this say nothing about weights
EQUAL = 1e-6  # log-probabilities that are no nearer than this were computed anew
ENOUGH = 20  # tokens for a quantile


class Pair(NamedTuple):
    """Two roles that should agree where `where_BT` is true. why: in words."""

    trainer: str
    sampler: str
    where_BT: Tensor
    why: str

    def gap(self, batch: Batch) -> Tensor:
        """log π_trainer − log π_sampler where they should agree, 0 elsewhere. B x T."""
        gap_BT = batch.logps[self.trainer] - batch.logps[self.sampler]
        return gap_BT.where(self.where_BT, 0.0)

    def __str__(self) -> str:
        return f"{column(self.trainer)} and {column(self.sampler)}"


def pairs(batch: Batch) -> Iterator[Pair]:
    """Raises Missing if there is none."""
    roles, drawn = batch.logps.keys(), drawn_by(batch)
    if drawn is None or len(roles & {"current", "behavior", "sampler"}) < 2:
        raise Missing("two of logp, behavior_logp, sampler_logp")
    if {"behavior", "sampler"} <= roles and not _behavior_is_current(batch):
        yield Pair("behavior", "sampler", batch.mask_BT, "of the policy that drew the tokens")
    if "current" not in roles:
        return
    if batch.learning_rate == 0:
        yield Pair("current", drawn, batch.mask_BT, "of weights that a learning rate of 0 keeps")
    elif batch.versions_BT is not None and batch.step is not None:
        yield Pair("current", drawn, batch.mask_BT & (batch.age_BT == 0), "of age 0")


def same_weights(batch: Batch) -> list[Finding]:
    """What explains a difference beyond rounding, for each pair."""
    found = []
    for pair in pairs(batch):
        if pair.where_BT.any() and not _lag(batch, pair.trainer, pair.sampler):
            cause = _temperature(batch, pair) or _truncation(batch, pair) or _weights(batch, pair)
            found += [cause] if cause else []
    return found


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
    error = 1.5 * float(left_X.median()) / float(trainer_X.norm())
    explained = left_X.median() < 0.2 * (sampler_X - trainer_X).abs().median()
    if not explained or slope <= 0 or abs(slope - 1) < max(0.02, STANDARD_ERRORS * error):
        return None
    return Finding(
        "temperature",
        f"{column(pair.sampler)} is at temperature {1 / slope:.3f} ± {error / slope**2:.1g} "
        f"relative to {column(pair.trainer)}: log-ratios of two tokens in {len(trainer_X)} "
        f"contexts, more than {STANDARD_ERRORS} standard errors from 1",
        f"weights of tokens change by {relative_change(batch, pair.gap(batch)):.0%}, and the "
        "policy that is trained is not the one that draws",
    )


def _truncation(batch: Batch, pair: Pair) -> Finding | None:
    """The mean of π_trainer/π_sampler is 1 for any two distributions of one support; it is the kept
    mass where the sampler cuts its distribution and reports what it has left."""
    gap_BT = pair.gap(batch)
    gap_N, excess_BT = gap_BT[pair.where_BT], gap_BT.clamp(max=2.0).expm1()
    rows_B = excess_BT.sum(1)
    deviation = float(rows_B.sum() / rows_B.norm().clamp(min=1e-12))
    lost = -float(excess_BT.sum()) / len(gap_N)
    allowed = rounding(batch, pair.trainer, pair.sampler)
    above = float((gap_N > allowed).double().mean())
    if lost < 1e-3 or deviation > -STANDARD_ERRORS or above > 0.01:
        return None
    return Finding(
        "truncated sampling",
        f"the mean ratio of {pair} is {1 - lost:.4f}, {-deviation:.0f} standard errors below 1, "
        f"and none is above: the sampler keeps {math.exp(float(gap_N.min())):.2f} to 1 of the "
        "mass, as by top-p or top-k",
        f"{lost:.1%} of the policy is never drawn and cannot be pushed down; weights of tokens "
        f"change by {relative_change(batch, gap_BT):.0%}",
    )


def _weights(batch: Batch, pair: Pair) -> Finding | None:
    """The rest: other weights."""
    gap_BT = pair.gap(batch)
    gap_N = gap_BT[pair.where_BT & (batch.logps[pair.sampler] < UNCERTAIN)].abs()
    allowed = rounding(batch, pair.trainer, pair.sampler)
    if len(gap_N) < ENOUGH or float(gap_N.quantile(0.9)) <= allowed:
        return None
    fault = "miscounted age" if pair.trainer == "current" else "weights of the sampler"
    if pair.trainer == "reference":
        fault = "reference"
    elif pair.trainer == "current" and batch.learning_rate == 0:
        fault = "drift at learning rate 0"
    return Finding(
        fault,
        f"{pair} are {pair.why}, yet 90 % of uncertain tokens differ by up to "
        f"{float(gap_N.quantile(0.9)):.2g}; rounding explains {allowed:g}",
        f"weights of tokens change by {relative_change(batch, gap_BT):.0%}",
    )


# Shift and precision -----------------------------------------------------------------------------


def shift(batch: Batch) -> list[Finding]:
    """Log-probabilities that fit those of another role one token on, or one token back."""
    first, *others = [role for role in batch.logps if role != "proximal"] or [""]
    if not others:
        raise Missing("a second column of log-probabilities")
    found = []
    for other in others:
        if lag := _lag(batch, first, other):
            gap_BT = (batch.logps[first] - batch.logps[other]).where(batch.mask_BT, 0.0)
            found.append(
                Finding(
                    "shifted log-probabilities",
                    f"{column(first)} of a token fits {column(other)} of the token "
                    f"{'after' if lag > 0 else 'before'} it, in nearly all responses (sign test, "
                    f"P < {LEVEL:g})",
                    "ratios are of different tokens: their weights change by "
                    f"{relative_change(batch, gap_BT):.0%}",
                )
            )
    return found


def _lag(batch: Batch, first: str, second: str) -> int:
    """The lag, −1 or 1, at which the second role fits the first one twice as well as at 0 in most
    responses; 0 if there is none."""
    rows = [
        (batch.logps[first][b][live_T], batch.logps[second][b][live_T])
        for b, live_T in enumerate(batch.mask_BT)
        if int(live_T.sum()) > 3
    ]
    for lag in (-1, 1):
        wins = 0
        for a_N, b_N in rows:
            near_N = a_N[:-1] - b_N[1:] if lag > 0 else a_N[1:] - b_N[:-1]
            wins += bool(near_N.abs().mean() < (a_N - b_N).abs().mean() / 2)
        if rows and stats.binom.sf(wins - 1, len(rows), 0.5) < LEVEL:
            return lag
    return 0


def dtypes(batch: Batch) -> list[Finding]:
    """bfloat16 in one computation and float32 in the other, or bfloat16 log-probabilities."""
    roles = [role for role in ("current", "behavior", "sampler") if role in batch.logps]
    if not roles:
        raise Missing("logp, behavior_logp or sampler_logp")
    kinds = {role: precision(batch, role) for role in roles}

    def of(kind: str) -> str:
        return ", ".join(column(role) for role in roles if kinds[role] == kind)

    effect = "log-ratios have the rounding of bfloat16"
    if kept := of("stored bfloat16"):
        evidence = f"every value of {kept} is a bfloat16 number (exact)"
        return [Finding("precision", evidence, f"{effect}, .4 % of a log-probability")]
    if not (of("bfloat16") and of("float32")):
        return []
    low, high = (next(r for r in roles if kinds[r] == x) for x in ("bfloat16", "float32"))
    gap_BT = (batch.logps[high] - batch.logps[low]).where(batch.mask_BT, 0.0)
    return [
        Finding(
            "precision",
            f"logits of {of('bfloat16')} are bfloat16, those of {of('float32')} are not: only the "
            "former's differences in one context are multiples of 2^-10 (P < 4e-9)",
            f"{effect}: weights of tokens change by {relative_change(batch, gap_BT):.1%}",
        )
    ]


# Ages and the reference --------------------------------------------------------------------------


def ages(batch: Batch) -> list[Finding]:
    """Ages that are negative, and old tokens whose policy is the current one."""
    live_N = batch.age_BT[batch.mask_BT]
    if len(live_N) and int(live_N.min()) < 0:
        evidence = f"a token is {-int(live_N.min())} versions newer than the current policy (exact)"
        return [Finding("miscounted age", evidence, "what depends on age is wrong")]
    if not _behavior_is_current(batch):
        return []
    return [
        Finding(
            "miscounted age",
            f"tokens of ages up to {int(live_N.max())} have ρ = 1 to {EQUAL:g}: behavior_logp is "
            "of the current policy (exact)",
            "clips and importance weights do nothing, and stale data counts as fresh",
        )
    ]


def _behavior_is_current(batch: Batch) -> bool:
    """Whether tokens that are said to be old have the current policy's log-probabilities."""
    if batch.versions_BT is None or batch.step is None or "current" not in batch.logps:
        return False
    old_BT = batch.mask_BT & (batch.age_BT > 0) & (batch.logps["current"] < UNCERTAIN)
    gap_N = log_ratio(batch)[old_BT].abs()
    return batch.step > 1 and len(gap_N) >= ENOUGH and float(gap_N.max()) < EQUAL


def reference(batch: Batch) -> list[Finding]:
    """The reference is the policy at step 0, as far as tokens of version 0 tell."""
    reference_BT, versions_BT, step = batch.need("reference_logp", "versions", "step")
    drawn, current_BT = drawn_by(batch), batch.logps.get("current")
    first_BT = batch.mask_BT & (versions_BT == 0)
    if drawn is not None and first_BT.any():
        pair = Pair("reference", drawn, first_BT, "of version 0")
        found = None if _lag(batch, "reference", drawn) else _weights(batch, pair)
        return [found] if found else []
    if current_BT is None or step < 10:
        raise Missing("tokens of version 0, as in the first batch")
    if float((reference_BT - current_BT)[batch.mask_BT].abs().max()) > EQUAL:
        return []
    evidence = f"reference_logp is logp after {step} gradient steps, to {EQUAL:g} (exact)"
    return [Finding("reference", evidence, "the penalty is 0 whatever the policy does")]
