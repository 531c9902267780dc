"""Pure reductions from tensors and rollouts to the numbers of one row of metrics.jsonl."""

import math
from dataclasses import dataclass, field, fields

import torch
from torch import Tensor

from rec_experiments.types import (
    Advantages,
    LossInput,
    LossOutput,
    Response,
    Rollouts,
    StepIndex,
    VerifierResult,
)

PERCENTILES = {"p01": 0.01, "p50": 0.5, "p99": 0.99}


@dataclass(slots=True)
class TokenLog:
    """Per-token values of a mini-batch, collected micro-batch by micro-batch, reduced once."""

    log_ratio: list[Tensor] = field(default_factory=list)
    sequence_log_ratio: list[Tensor] = field(default_factory=list)
    kept: list[Tensor] = field(default_factory=list)
    above: list[Tensor] = field(default_factory=list)  # the clip's ratio is above 1
    positive: list[Tensor] = field(default_factory=list)  # the advantage is
    entropy: list[Tensor] = field(default_factory=list)
    kl: list[Tensor] = field(default_factory=list)
    kl_response: list[Tensor] = field(default_factory=list)
    loss: list[Tensor] = field(default_factory=list)
    mismatch: list[Tensor] = field(default_factory=list)

    def add(self, out: LossOutput, batch: LossInput) -> None:
        """The loss of some rows; of their tokens only those that count for it."""
        live_BT = batch.mask_BT
        positive_BT = (batch.advantage_B > 0)[:, None].expand_as(live_BT)
        self.loss.append(out.loss.detach())
        self.above.append(out.clip_log_ratio_BT[live_BT] > 0)
        self.positive.append(positive_BT[live_BT])
        self.log_ratio.append(out.log_ratio_BT[live_BT])
        self.kept.append(out.keep_BT[live_BT])
        self.sequence_log_ratio.append(out.log_ratio_BT.sum(1)[live_BT.any(1)])

    def add_policy(self, entropy_BT: Tensor, kl_BT: Tensor | None, mask_BT: Tensor) -> None:
        """mask_BT: all tokens of the policy, dropped or not."""
        self.entropy.append(entropy_BT[mask_BT])
        if kl_BT is not None:
            self.kl.append(kl_BT[mask_BT])
            self.kl_response.append(torch.where(mask_BT, kl_BT, 0.0).double().sum(1))

    @property
    def is_finite(self) -> bool:
        """Whether the policy gave every token a log-ratio that is a number."""
        return all(bool(part.isfinite().all()) for part in self.log_ratio)

    def cpu(self) -> "TokenLog":
        """The same values on the CPU, where ranks can exchange them."""
        return TokenLog(*([value.cpu() for value in getattr(self, f.name)] for f in fields(self)))

    @classmethod
    def joined(cls, logs: list["TokenLog"]) -> "TokenLog":
        """The log of a mini-batch that ranks have shared."""
        columns = ([getattr(log, f.name) for log in logs] for f in fields(cls))
        return cls(*([value for part in column for value in part] for column in columns))

    def add_mismatch(self, gap_BT: Tensor, live_BT: Tensor) -> None:
        """gap_BT: log π of trainer minus sampler, both at the version that drew the tokens."""
        self.mismatch.append(gap_BT[live_BT].abs())

    def reduce(self) -> dict[str, float]:
        row = {
            "train/loss": float(torch.stack(self.loss).sum()),
            **ratio_metrics(
                torch.cat(self.log_ratio), torch.cat(self.kept), torch.cat(self.sequence_log_ratio)
            ),
            **clip_metrics(torch.cat(self.kept), torch.cat(self.above), torch.cat(self.positive)),
        }
        for name in ("entropy", "kl", "kl_response"):
            if values := getattr(self, name):
                row[f"train/{name}"] = float(torch.cat(values).double().mean())
        if self.mismatch and len(gap_N := torch.cat(self.mismatch).double()):
            row |= {"train/mismatch": float(gap_N.mean()), "train/mismatch_max": float(gap_N.max())}
        return row


def ratio_metrics(
    log_ratio_N: Tensor, kept_N: Tensor, sequence_log_ratio_B: Tensor
) -> dict[str, float]:
    """Clip fraction, ratio percentiles and effective sample size of the N live tokens, B sequences.

    train/ess is (Σw)² / (B Σw²) of the sequences' ratios w: 1 on-policy, 1/B at worst.
    train/log_ratio_second_moment is the mean of (log ρ)², which M2PO bounds (arXiv 2510.01161).
    """
    if not len(log_ratio_N):
        return {}
    log_ratio_N = log_ratio_N.double()
    ratio_N = log_ratio_N.clamp(max=700.0).exp()  # exp(700) is the last that fits in float64
    points = quantiles(log_ratio_N, list(PERCENTILES.values()))
    log_w_B = sequence_log_ratio_B.double()
    log_ess = 2 * log_w_B.logsumexp(0) - (2 * log_w_B).logsumexp(0) - math.log(len(log_w_B))
    return {
        "train/clip_fraction": float(1 - kept_N.double().mean()),
        "train/ratio_mean": float(ratio_N.mean()),
        "train/ratio_max": float(ratio_N.max()),
        **{
            f"train/ratio_{name}": float(point.clamp(max=700.0).exp())
            for name, point in zip(PERCENTILES, points, strict=True)
        },
        "train/ess": float(log_ess.exp()),
        "train/log_ratio_second_moment": float(log_ratio_N.square().mean()),
    }


def clip_metrics(kept_N: Tensor, above_N: Tensor, positive_N: Tensor) -> dict[str, float]:
    """Shares of all N live tokens that are clipped, by side and by sign of the advantage.

    above_N: the ratio that the clip looks at is above 1. positive_N: the advantage is above 0. Each
    pair of shares adds up to train/clip_fraction.
    """
    if not len(kept_N):
        return {}
    shares = {
        "high": ~kept_N & above_N,
        "low": ~kept_N & ~above_N,
        "positive": ~kept_N & positive_N,
        "negative": ~kept_N & ~positive_N,
    }
    return {
        f"train/clip_fraction_{name}": float(clipped_N.double().mean())
        for name, clipped_N in shares.items()
    }


def quantiles(values_N: Tensor, shares: list[float]) -> Tensor:
    """As torch.quantile with linear interpolation, which takes no more than 2^24 values."""
    ordered_N = values_N.sort().values
    place = torch.tensor(shares, dtype=torch.float64, device=values_N.device) * (len(values_N) - 1)
    below, above = place.floor().long(), place.ceil().long()
    return ordered_N[below].lerp(ordered_N[above], (place - below).to(values_N.dtype))


def response_metrics(
    prefix: str, responses: list[Response], results: list[VerifierResult]
) -> dict[str, float]:
    """Means over responses: reward, accuracy, the policy's tokens and turns, share cut; and how
    many could not be judged, which have no reward and count as wrong."""
    rewards = [result.reward for result in results if result.judged]
    return {
        **({f"{prefix}/reward": _mean(rewards)} if rewards else {}),
        f"{prefix}/accuracy": _mean([v.accuracy for v in results]),
        f"{prefix}/response_length": _mean([r.length for r in responses]),
        f"{prefix}/turns": _mean([r.turns for r in responses]),
        f"{prefix}/truncated": _mean([not r.finished for r in responses]),
        f"{prefix}/verifier_timeouts": sum(v.timed_out for v in results),
        f"{prefix}/verifier_crashes": sum(v.crashed for v in results),
    }


def rollout_metrics(rollouts: Rollouts, index: StepIndex) -> dict[str, float]:
    """What can be said of a mini-batch before it is trained on.

    train/staleness: gradient steps since the policy that drew a response, mean over responses.
    train/policy_version: gradient steps that the oldest of these policies had taken.
    """
    staleness = [index.step - version for version in rollouts.versions]
    return {
        **response_metrics("train", rollouts.responses, rollouts.results),
        "train/staleness": _mean(staleness),
        "train/staleness_min": min(staleness),
        "train/staleness_max": max(staleness),
        "train/policy_version": min(rollouts.versions),
    }


def throughput_metrics(
    batch: Rollouts, mini_batch: Rollouts, index: StepIndex, seconds: float
) -> dict[str, float]:
    """Times, and tokens of the policy per second; at a batch's first update also those of drawing
    it. seconds: duration of the update."""
    tokens = sum(response.length for response in mini_batch.responses)
    row = {
        "tokens/response": tokens,
        "tokens/train_per_second": tokens / seconds,
        "time/train": seconds,
    }
    if index.epoch == index.mini_batch == 0:
        row |= {f"time/{name}": value for name, value in batch.seconds.items()}
        row["train/redrawn_groups"] = batch.redrawn
        row["tokens/rollout_per_second"] = batch.drawn / batch.seconds["rollout"]
    return row


def group_metrics(rollouts: Rollouts, advantages: Advantages) -> dict[str, float]:
    """train/live_groups: share of the groups with a live token whose advantage is not 0.
    train/distinct_responses: responses that differ within their group, as a share of all."""
    moving = ((advantages.advantage_B != 0) & advantages.mask_BT.any(1)).tolist()
    live = {group for group, moves in zip(rollouts.groups, moving, strict=True) if moves}
    rows = zip(rollouts.groups, rollouts.responses, strict=True)
    distinct = {(group, tuple(response.tokens)) for group, response in rows}
    return {
        "train/live_groups": len(live) / len(set(rollouts.groups)),
        "train/distinct_responses": len(distinct) / len(rollouts.responses),
    }


def _mean(values: list) -> float:
    return sum(values) / len(values)
