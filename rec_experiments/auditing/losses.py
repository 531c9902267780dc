"""Which loss a number is: it is computed by every clip, correction and normalisation known here."""

import math
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from rec_experiments.algo.advantages import group_sum
from rec_experiments.algo.inputs import Advantages, LossInput, Totals
from rec_experiments.auditing.batch import Batch
from rec_experiments.auditing.pieces import choices
from rec_experiments.auditing.report import Finding
from rec_experiments.auditing.statistics import as_input, log_ratio, relative_change

CLOSE = 1e-6  # of a loss to a candidate, relative to the mean size of a token's loss
CLIPS = ("none", "one_side", "clip_higher")


class Candidate(NamedTuple):
    """A loss by the names of its pieces in conf. value: of the surrogate −ρA, as most trainers
    report it, or of −wA log π. twice: the correction is squared. micro: responses in each
    micro-batch that is normalised by itself; 0 for the whole batch."""

    value: float
    surrogate: str
    clip: str
    correction: str
    twice: bool
    aggregation: str
    micro: int

    def __str__(self) -> str:
        twice = " twice" if self.twice else ""
        part = f" in micro-batches of {self.micro} responses" if self.micro else ""
        return (
            f"{self.surrogate}, clip={self.clip} correction={self.correction}{twice} "
            f"aggregation={self.aggregation}{part}"
        )


def match(batch: Batch) -> tuple[list[Candidate], str]:
    """The candidates that give the batch's loss, the plainest first, and the probability that one
    does by chance. Raises Missing."""
    (loss,) = batch.need("loss")
    batch.need("advantages")
    found, values = [], set()
    for scale, candidate in candidates(batch):
        values.add(round(candidate.value / max(scale, 1e-12) / CLOSE))
        if abs(candidate.value - loss) <= CLOSE * scale + 1e-7 * abs(loss):
            found.append(candidate)
    return found, f"one of {len(values)} values, P < {len(values) * 2 * CLOSE:.1g}"


def candidates(batch: Batch) -> Iterator[tuple[float, Candidate]]:
    """Each with the mean size of a token's loss."""
    (advantages_BT,) = batch.need("advantages")
    log_ratio_BT = log_ratio(batch)
    rows = as_input(batch, log_ratio_BT, advantages_BT)
    denominators = _denominators(batch, rows)
    for surrogate, clip, loss_BT in _surrogates(batch, rows, log_ratio_BT, advantages_BT):
        for correction, twice, factor_BT in _corrections(batch, rows):
            corrected_BT = (loss_BT * factor_BT).where(batch.mask_BT, 0.0)
            scale = float(corrected_BT.abs().sum() / batch.mask_BT.sum())
            for name, aggregation in choices("aggregation").items():
                value = float(aggregation(corrected_BT, denominators))
                yield scale, Candidate(value, surrogate, clip, correction, twice, name, 0)
            for size in _micro_sizes(len(corrected_BT)):
                sums_M = corrected_BT.sum(1).reshape(-1, size).sum(1)
                tokens_M = batch.lengths_B.reshape(-1, size).sum(1).clamp(min=1)
                value = float((sums_M / tokens_M).mean())
                yield (
                    scale,
                    Candidate(value, surrogate, clip, correction, twice, "token_mean", size),
                )


def _micro_sizes(rows: int) -> list[int]:
    """Powers of two below half of the rows that divide them. 1 is a mean for each response."""
    sizes = [2**n for n in range(1, 1 + int(math.log2(max(2, rows))))]
    return [size for size in sizes if size < rows and rows % size == 0]


def _surrogates(
    batch: Batch, rows: LossInput, log_ratio_BT: Tensor, advantages_BT: Tensor
) -> Iterator[tuple[str, str, Tensor]]:
    """A name, the clip, and the loss of each token. −ρA with a clip is PPO's minimum."""
    ratio_BT, logp_BT = log_ratio_BT.clamp(max=50.0).exp(), batch.logps["current"]
    yield "−A log π", "none", -advantages_BT * logp_BT
    for name in CLIPS:
        clip, objective_BT = choices("clip")[name], ratio_BT * advantages_BT
        kept_BT = clip(log_ratio_BT, rows)
        if name != "none":
            bounded_BT = ratio_BT.clamp(1 - clip.low, 1 + clip.high) * advantages_BT
            objective_BT = objective_BT.minimum(bounded_BT)
        yield "−ρA", name, -objective_BT
        yield "−ρA log π", name, (-ratio_BT * advantages_BT * logp_BT).where(kept_BT, 0.0)


def _corrections(batch: Batch, rows: LossInput) -> Iterator[tuple[str, bool, Tensor]]:
    """A name, whether it is squared, and the factor of each token."""
    yield "none", False, torch.ones_like(batch.mask_BT, dtype=torch.float64)
    if not {"behavior", "sampler"} <= batch.logps.keys():
        return
    given = LossInput(
        logp_BT=rows.logp_BT, logps=dict(batch.logps), advantages=rows.advantages,
        groups_B=rows.groups_B, version_BX=rows.version_BX, index=rows.index,
    )  # fmt: skip
    for twice in (False, True):
        for name, correction in choices("correction").items():
            factor_BT = correction(given) if correction.needs.logps <= batch.logps.keys() else None
            if factor_BT is not None and not (twice and set(factor_BT.unique().tolist()) <= {0, 1}):
                yield name, twice, factor_BT.square() if twice else factor_BT


def _denominators(batch: Batch, rows: LossInput) -> Advantages:
    """Those of the whole batch; without groups, every response is one."""
    groups_B = batch.groups_B if batch.groups_B is not None else torch.arange(len(batch.mask_BT))
    used_B = batch.used_B
    return Advantages(
        advantage_B=rows.advantage_B,
        mask_BT=batch.mask_BT,
        counted_B=group_sum(used_B.long(), groups_B),
        group_tokens_B=group_sum(batch.lengths_B, groups_B),
        totals=Totals(int(batch.mask_BT.sum()), len(groups_B[used_B].unique())),
    )


def normalisation(batch: Batch) -> list[Finding]:
    """The loss has another denominator than the declared one, or one for each micro-batch."""
    matches, chance = match(batch)
    whole = [each for each in matches if not each.micro]
    if not matches or (whole and batch.aggregation in (None, *(x.aggregation for x in whole))):
        return []
    found = (whole or matches)[0]
    tokens_M = batch.lengths_B.reshape(-1, found.micro or 1).sum(1).clamp(min=1)
    declared = f", declared is {batch.aggregation}" if whole else ""
    return [
        Finding(
            "normalisation",
            f"the loss is {found}{declared} ({chance})",
            "weights of tokens differ by up to a factor of "
            f"{float(tokens_M.max() / tokens_M.min()):.2f} between "
            f"{'long and short responses' if whole else 'micro-batches'}",
        )
    ]


def double_correction(batch: Batch) -> list[Finding]:
    """The loss fits only with the square of a correction."""
    behavior_BT, sampler_BT = batch.need("behavior_logp", "sampler_logp")
    matches, chance = match(batch)
    if not matches or not all(each.twice for each in matches):
        return []
    change = relative_change(batch, behavior_BT - sampler_BT)
    evidence = f"the loss is {matches[0]} ({chance})"
    return [Finding("double correction", evidence, f"weights change once more, by {change:.1%}")]
