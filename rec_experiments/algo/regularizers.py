"""Extra loss added to the surrogate, outside its mask (Section 4.2). B x T per-token terms."""

import math
from typing import ClassVar

from pydantic import NonNegativeFloat, PositiveFloat

from rec_experiments.algo.advantages import group_max, group_size, group_sum
from rec_experiments.algo.inputs import LossInput
from rec_experiments.algo.weights import MAX_LOG_WEIGHT
from rec_experiments.common.batch import Tensor
from rec_experiments.common.pieces import Needs, Piece


class SequenceSquare(Piece):
    """τ/2 (log π_θ(y|x) − log π_old(y|x))² of each sequence: OPMD as the paper writes it.

    A sequence's term is spread evenly over its live tokens, so that any aggregation that sums
    tokens counts it once, on the scale of the sequence's surrogate.
    """

    formula = "{tau:g}/2 · (log π_θ(y) − log π_old(y))² per sequence"

    tau: NonNegativeFloat

    def __call__(self, batch: LossInput) -> Tensor | None:
        mask_BT = batch.mask_BT
        drift_B = batch.difference_BT().sum(1)
        length_B = mask_BT.sum(1).clamp(min=1)
        return (self.tau / 2 * drift_B**2 / length_B)[:, None] * mask_BT


class TokenSquare(Piece):
    """τ (log π_θ − log π_old)² of each token: OPMD as the paper's framework computes it."""

    formula = "{tau:g} · (log π_θ − log π_old)² per token"

    tau: NonNegativeFloat

    def __call__(self, batch: LossInput) -> Tensor | None:
        return self.tau * batch.difference_BT() ** 2


class ReferencePenalty(Piece):
    """beta times an estimate of KL(π_θ ‖ π_ref) at each sampled token. The estimators' numbers are
    Schulman's (joschu.net/blog/kl-approx.html)."""

    needs: ClassVar[Needs] = Needs(logps=frozenset({"reference"}))
    beta: NonNegativeFloat

    def estimate(self, log_ratio_BT: Tensor) -> Tensor:
        """Of log_ratio_BT = log π_θ − log π_ref, differentiable; 0 at 0."""
        raise NotImplementedError

    def __call__(self, batch: LossInput) -> Tensor | None:
        return self.beta * self.estimate(batch.difference_BT("reference"))


class K1(ReferencePenalty):
    """log π_θ/π_ref: unbiased as a value, but its gradient has mean 0 on-policy."""

    formula = "{beta:g} · log π_θ/π_ref per token (k1)"

    def estimate(self, log_ratio_BT: Tensor) -> Tensor:
        return log_ratio_BT


class K2(ReferencePenalty):
    """½ (log π_θ/π_ref)²: its gradient on-policy is that of KL(π_θ ‖ π_ref)."""

    formula = "{beta:g} · ½(log π_θ/π_ref)² per token (k2)"

    def estimate(self, log_ratio_BT: Tensor) -> Tensor:
        return log_ratio_BT**2 / 2


class K3(ReferencePenalty):
    """q − 1 − log q with q = π_ref/π_θ, which is at least 0: GRPO's penalty (arXiv 2402.03300,
    Eq. 4). Beyond q = e^20 it continues as a straight line in log q, to stay finite."""

    formula = "{beta:g} · (π_ref/π_θ − 1 + log π_θ/π_ref) per token (k3)"

    def estimate(self, log_ratio_BT: Tensor) -> Tensor:
        log_q_BT = -log_ratio_BT
        curve_BT = log_q_BT.clamp(max=MAX_LOG_WEIGHT).expm1()
        line_BT = math.exp(MAX_LOG_WEIGHT) * (log_q_BT - MAX_LOG_WEIGHT + 1) - 1
        return curve_BT.where(log_q_BT <= MAX_LOG_WEIGHT, line_BT) - log_q_BT


class UnbiasedKl(ReferencePenalty):
    """ρ (q − 1 − log q) with q = π_ref/π_θ, differentiated through ρ = π_θ/π_behavior too. The
    gradient ρ log(π_θ/π_ref) ∇log π_θ is unbiased for KL(π_θ ‖ π_ref) of a token whatever policy
    drew it, which that of K3 is not (DeepSeek-V3.2, arXiv 2512.02556)."""

    formula = "{beta:g} · ρ (π_ref/π_θ − 1 + log π_θ/π_ref) per token (unbiased)"

    def __call__(self, batch: LossInput) -> Tensor:
        log_ratio_BT = batch.difference_BT().clamp(max=MAX_LOG_WEIGHT)
        from_reference_BT = batch.difference_BT("reference")
        # ρ q = π_ref/π_behavior does not depend on π_θ.
        constant_BT = (log_ratio_BT - from_reference_BT).detach().clamp(max=MAX_LOG_WEIGHT).exp()
        return self.beta * (constant_BT + log_ratio_BT.exp() * (from_reference_BT - 1))


class Distillation(UnbiasedKl):
    """UnbiasedKl to a teacher as the reference, and a small square: on-policy distillation on data
    that may be old. Its gradient is −ρ log(π_ref/π_θ) ∇log π_θ, as if log π_ref/π_θ were the
    advantage of a token (prime-rl's ref_kl_loss_fn).

    fall: drops the divergence of a token with π_behavior − π_θ above it; null for no bound. tau: of
    (log ρ)², on all tokens.
    """

    formula = (
        "{beta:g} · ρ (π_ref/π_θ − 1 + log π_θ/π_ref), dropped where π_behavior − π_θ > {fall}, "
        "+ {tau:g} · (log ρ)² per token"
    )

    fall: NonNegativeFloat | None
    tau: NonNegativeFloat

    def __call__(self, batch: LossInput) -> Tensor:
        divergence_BT = super().__call__(batch)
        if self.fall is not None:
            behavior_BT = batch.of_live_BT(batch.logps["behavior"])
            fallen_BT = behavior_BT.exp() - batch.logp_BT.detach().exp() > self.fall
            divergence_BT = divergence_BT.where(~fallen_BT, 0.0)
        return divergence_BT + self.tau * batch.difference_BT() ** 2


class ExactKl(Piece):
    """beta · KL(π_θ ‖ π_ref) of each token, exact over the vocabulary."""

    formula = "{beta:g} · KL(π_θ ‖ π_ref) per token, exact"

    needs: ClassVar[Needs] = Needs(dense=frozenset({"kl"}))
    beta: NonNegativeFloat

    def __call__(self, batch: LossInput) -> Tensor | None:
        return batch.of_live_BT(self.beta * batch.dense["kl"])


class PairSquare(Piece):
    """beta/4 · (d_i − d_j)², d = log π_θ(y)/π_ref(y), mean over the ordered pairs of a group's
    responses. With leave-one-out rewards it gives half the contrastive policy gradient
    (R_i − R_j)(∇log π(y_i) − ∇log π(y_j)), R = r − β d (CoPG, arXiv 2406.19185).

    A response without a live token takes part with d = 0, as it does in the others' baseline;
    without it, nothing would restrain a shift that all d of a group share. Up to a factor the sum
    over pairs is Σ d_i (d_i − d̄). A response's term is spread evenly over its live tokens, so that
    sequence_mean sums it.
    """

    formula = "{beta:g}/4 · (d_i − d_j)² over the pairs of a group, d = log π_θ(y)/π_ref(y)"

    needs: ClassVar[Needs] = Needs(logps=frozenset({"reference"}), whole_batch=True)
    beta: NonNegativeFloat

    def __call__(self, batch: LossInput) -> Tensor | None:
        mask_BT = batch.mask_BT
        count_B = group_size(batch.groups_B).to(batch.logp_BT.dtype)
        drift_B = batch.difference_BT("reference").sum(1)
        mean_B = group_sum(drift_B, batch.groups_B) / count_B
        share_B = count_B / (count_B - 1).clamp(min=1) * drift_B * (drift_B - mean_B)
        length_B = mask_BT.sum(1).clamp(min=1)
        return (self.beta / 2 * share_B / length_B)[:, None] * mask_BT


class RewardsAsLabels(Piece):
    """log(1 + Σ₊ exp(−s̄/τ)) + log(1 + Σ₋ exp(s̄/τ)) of each group, with s̄ the mean of log ρ over a
    response, + its live responses with A > 0 and − the others: rewards as labels of a
    classification (REAL, arXiv 2602.05630). Groups without responses of both labels add nothing.

    Every live token carries its group's loss, so that sequence_token_mean is the mean over groups.
    tau: the temperature; the weight of a response is below 1/tau.
    """

    formula = "log(1 + Σ₊ exp(−s̄/{tau:g})) + log(1 + Σ₋ exp(s̄/{tau:g})), s̄ = mean of log ρ"

    needs: ClassVar[Needs] = Needs(whole_batch=True)
    tau: PositiveFloat

    def __call__(self, batch: LossInput) -> Tensor | None:
        length_B, groups_B = batch.mask_BT.sum(1), batch.groups_B
        logit_B = batch.mean_B(batch.difference_BT()) / self.tau
        good_B = (batch.advantage_B > 0) & (length_B > 0)
        bad_B = (batch.advantage_B <= 0) & (length_B > 0)
        loss_B = _log_1_plus_sum_exp(-logit_B, good_B, groups_B) + _log_1_plus_sum_exp(
            logit_B, bad_B, groups_B
        )
        both_B = (group_sum(good_B.long(), groups_B) > 0) & (group_sum(bad_B.long(), groups_B) > 0)
        return loss_B[:, None].where(both_B[:, None] & batch.mask_BT, 0.0)


def _log_1_plus_sum_exp(values_B: Tensor, chosen_B: Tensor, groups_B: Tensor) -> Tensor:
    """For each row log(1 + Σ exp(value)) over the chosen rows of its group, without overflow."""
    values_B = values_B.where(chosen_B, -math.inf)
    top_B = group_max(values_B.detach(), groups_B).clamp(min=0.0)
    return top_B + ((-top_B).exp() + group_sum((values_B - top_B).exp(), groups_B)).log()
