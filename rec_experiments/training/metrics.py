"""The numbers of a row of metrics.jsonl, computed from tensors and rollouts."""

import math
from collections import defaultdict

import torch
from torch import Tensor, nn

from rec_experiments.algo.inputs import Advantages, LossInput, LossOutput
from rec_experiments.common.batch import Rollouts, StepIndex
from rec_experiments.common.distributed import World
from rec_experiments.policy.lora import trained

PERCENTILES = {"p01": 0.01, "p50": 0.5, "p99": 0.99}


class TokenLog:
    """Values of a mini-batch's tokens by name, collected pass by pass and reduced once."""

    def __init__(self) -> None:
        self.values: dict[str, list[Tensor]] = defaultdict(list)

    def add(self, out: LossOutput, batch: LossInput) -> None:
        """The loss of some rows, and values of their live tokens."""
        live_BT = batch.mask_BT
        positive_BT = (batch.advantage_B > 0)[:, None].expand_as(live_BT)
        for name, value in {
            "loss": out.loss.detach()[None],
            "log_ratio": out.log_ratio_BT[live_BT],
            "sequence_log_ratio": out.log_ratio_BT.sum(1)[live_BT.any(1)],
            "kept": out.keep_BT[live_BT],
            "above": out.clip_log_ratio_BT[live_BT] > 0,  # the clip's ratio is above 1
            "positive": positive_BT[live_BT],  # the advantage is
        }.items():
            self.values[name].append(value)

    def add_policy(self, entropy_BT: Tensor, kl_BT: Tensor | None, mask_BT: Tensor) -> None:
        """mask_BT: all tokens sampled by the policy, dropped or not."""
        self.values["entropy"].append(entropy_BT[mask_BT])
        if kl_BT is not None:
            self.values["kl"].append(kl_BT[mask_BT])
            self.values["kl_response"].append(torch.where(mask_BT, kl_BT, 0.0).double().sum(1))

    def add_mismatch(self, gap_BT: Tensor, live_BT: Tensor) -> None:
        """gap_BT: log π of the trainer minus that of the sampler, by the version that drew the
        tokens."""
        self.values["mismatch"].append(gap_BT[live_BT].abs())

    @property
    def is_finite(self) -> bool:
        """Whether all log-ratios are finite."""
        return all(bool(part.isfinite().all()) for part in self.values["log_ratio"])

    @classmethod
    def joined(cls, logs: list["TokenLog"]) -> "TokenLog":
        """The log of a mini-batch that several ranks computed."""
        whole = cls()
        for log in logs:
            for name, values in log.values.items():
                whole.values[name] += values
        return whole

    def cpu(self) -> "TokenLog":
        """The same values on the CPU, where ranks can exchange them."""
        log = TokenLog()
        for name, values in self.values.items():
            log.values[name] = [value.cpu() for value in values]
        return log

    def reduce(self) -> dict[str, float]:
        """Metrics of the mini-batch."""
        of = {name: torch.cat(values) for name, values in self.values.items()}
        row = {"train/loss": float(of["loss"].sum())}
        if len(of["kept"]):
            row |= ratio_metrics(of["log_ratio"], of["kept"], of["sequence_log_ratio"])
            row |= clip_metrics(of["kept"], of["above"], of["positive"])
        for name in ("entropy", "kl", "kl_response"):
            if name in of:
                row[f"train/{name}"] = float(of[name].double().mean())
        if "mismatch" in of and len(gap_N := of["mismatch"].double()):
            row |= {"train/mismatch": float(gap_N.mean()), "train/mismatch_max": float(gap_N.max())}
        return row


def ratio_metrics(
    log_ratio_N: Tensor, kept_N: Tensor, sequence_log_ratio_B: Tensor
) -> dict[str, float]:
    """Clip fraction, importance ratios and effective sample size, of N live tokens in B sequences.

    train/ess is (Σw)² / (B Σw²) over the sequences' ratios w: 1 on-policy, 1/B at worst.
    train/log_ratio_second_moment is the mean of (log ρ)², which M2PO bounds (arXiv 2510.01161).
    """
    log_ratio_N = log_ratio_N.double()
    ratio_N = log_ratio_N.clamp(max=700.0).exp()  # exp(709) is the largest in float64
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
    """Clipped tokens as a share of all N live tokens, by side and by sign of the advantage.

    above_N: the clip's ratio is above 1. positive_N: the advantage is above 0. Each pair of shares
    sums to train/clip_fraction.
    """
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
    """As torch.quantile, which is limited to 2^24 values, with linear interpolation."""
    ordered_N = values_N.sort().values
    place = torch.tensor(shares, dtype=torch.float64, device=values_N.device) * (len(values_N) - 1)
    below, above = place.floor().long(), place.ceil().long()
    return ordered_N[below].lerp(ordered_N[above], (place - below).to(values_N.dtype))


def response_metrics(prefix: str, rollouts: Rollouts) -> dict[str, float]:
    """Means over responses, and the number of verifier failures. Responses that could not be
    verified count as wrong and are left out of the mean reward."""
    reward_B = rollouts.reward_B[rollouts.judged_B]
    return {
        **({f"{prefix}/reward": _mean(reward_B)} if len(reward_B) else {}),
        f"{prefix}/accuracy": _mean(rollouts.accuracy_B),
        f"{prefix}/response_length": _mean(rollouts.written_B),
        f"{prefix}/turns": _mean(rollouts.turns_B),
        f"{prefix}/truncated": _mean(~rollouts.finished_B),
        f"{prefix}/verifier_timeouts": int(rollouts.timed_out_B.sum()),
        f"{prefix}/verifier_crashes": int(rollouts.crashed_B.sum()),
    }


def rollout_metrics(rollouts: Rollouts, index: StepIndex) -> dict[str, float]:
    """Responses and staleness of a mini-batch.

    train/staleness: gradient steps since the policy that drew a response, mean over responses.
    train/policy_version: gradient steps of the oldest of these policies.
    """
    version_B = rollouts.version_BX[:, 0]
    staleness_B = index.step - version_B
    return {
        **response_metrics("train", rollouts),
        "train/staleness": _mean(staleness_B),
        "train/staleness_min": int(staleness_B.min()),
        "train/staleness_max": int(staleness_B.max()),
        "train/policy_version": int(version_B.min()),
    }


def throughput_metrics(
    batch: Rollouts, mini_batch: Rollouts, index: StepIndex, seconds: float
) -> dict[str, float]:
    """Times, and tokens of the policy per second; at a batch's first update also those of drawing
    it. seconds: duration of the update."""
    tokens = int(mini_batch.written_B.sum())
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
    """train/live_groups: share of groups with a live token of nonzero advantage.
    train/distinct_responses: distinct responses in each group, as a share of all responses."""
    moving_B = ((advantages.advantage_B != 0) & advantages.mask_BT.any(1)).cpu()
    columns = rollouts.group_B[:, None], rollouts.length_B[:, None], rollouts.token_BT
    return {
        "train/live_groups": len(rollouts.group_B[moving_B].unique()) / rollouts.groups,
        "train/distinct_responses": len(torch.cat(columns, 1).unique(dim=0)) / len(rollouts),
    }


def _mean(values_B: Tensor) -> float:
    """Summed in order, so that it has the same bits on every machine."""
    return sum(values_B.tolist()) / len(values_B)


@torch.no_grad()
def relative_distance(model: nn.Module, start: dict[str, Tensor], world: World) -> float:
    """‖θ − θ_start‖ / ‖θ_start‖ over the parameters that training changes. Every rank must
    call it.

    start: the parameters by name, on any device, either split among the ranks as the model is or
    whole on every rank.
    """
    squares = []
    for name, parameter in trained(model).items():
        now = world.part(parameter)
        then = world.part(start[name]).to(now.device)
        norms = [torch.linalg.vector_norm(x, dtype=torch.float64) for x in (now - then, then)]
        squares.append(torch.stack(norms) ** 2)
    ours = torch.stack(squares).sum(0).cpu()
    moved, whole = torch.stack(world.gather(ours)).sum(0).sqrt().tolist()
    return moved / whole
