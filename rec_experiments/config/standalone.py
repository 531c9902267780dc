"""The losses for users who bring their own trainer."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from omegaconf import DictConfig
from torch import Tensor

from rec_experiments.algo.advantages import AsGiven, PenaliseTruncated, with_lengths
from rec_experiments.algo.inputs import LossInput, Outcomes
from rec_experiments.algo.loss import Algorithm
from rec_experiments.common import rng
from rec_experiments.common.batch import StepIndex
from rec_experiments.common.errors import UserError
from rec_experiments.config import schema
from rec_experiments.config.composition import composing
from rec_experiments.config.experiment import Pieces
from rec_experiments.training.metrics import TokenLog
from rec_experiments.training.policies import Proximal

OF_A_RUN = ("updates", "buffer", "reward", "reference")


def algorithm(preset: str, *overrides: str) -> "StandaloneAlgorithm":
    """A preset of conf/algo with Hydra overrides, as in `algorithm("rec_ring", "clip.high=0.25")`.

    Raises UserError for an unknown preset, a misspelt override, a value out of range, a piece that
    breaks its protocol, or a group that configures a run and not its loss.
    """
    for override in overrides:
        group = override.lstrip("+~").partition("=")[0].partition(".")[0]
        if group in OF_A_RUN:
            raise UserError(f"{override}: configures a run; this is only a loss")
    with composing() as compose:
        config = compose("algorithm", [f"algo={preset}", *overrides])
    return of_configuration(config)


def of_configuration(config: DictConfig) -> "StandaloneAlgorithm":
    """The loss of a composed configuration. Raises UserError as `algorithm` does."""
    pieces = schema.build(config, Pieces)
    return StandaloneAlgorithm(pieces.checked_algorithm(), pieces.proximal)


class Result(NamedTuple):
    """loss: a scalar that can be differentiated. metrics: numbers, named as in metrics.jsonl."""

    loss: Tensor
    metrics: dict[str, float]


@dataclass(frozen=True, slots=True)
class StandaloneAlgorithm:
    """A loss, called once per mini-batch. `parts` are its pieces; `proximal` computes the proximal
    policy's log-probabilities if they follow from versions alone."""

    parts: Algorithm
    proximal: Proximal

    def __call__(
        self,
        *,
        logp: Tensor,
        behavior_logp: Tensor,
        groups: Tensor,
        mask: Tensor,
        rewards: Tensor | None = None,
        advantages: Tensor | None = None,
        sampler_logp: Tensor | None = None,
        proximal_logp: Tensor | None = None,
        reference_logp: Tensor | None = None,
        finished: Tensor | None = None,
        judged: Tensor | None = None,
        versions: Tensor | None = None,
        seed: int = 0,
        step: int | None = None,
    ) -> Result:
        """Loss and metrics of a whole mini-batch of B responses of up to T tokens.

        Arguments that the algorithm does not read are ignored, so one call serves all algorithms.

        Args:
            logp: B x T, log-probabilities under the current policy, differentiable.
            behavior_logp: B x T, under the policy that drew the tokens, at the same temperature.
            groups: B integers; responses to one prompt share a number.
            mask: B x T, true or 1 at response tokens, false or 0 elsewhere, where log-probabilities
                may be anything.
            rewards: B scalars.
            advantages: B scalars instead of rewards, from another estimator or from `advantages`.
                They replace the algorithm's own advantage; its data weighting still applies.
                B x T with one value for all live tokens of a response will do as well.
            sampler_logp: B x T, as the sampler computed them.
            proximal_logp: B x T, under the proximal policy.
            reference_logp: B x T, under the reference.
            finished: B, whether a response ended before the length limit. Default: all.
            judged: B, whether the reward of a response is valid. Default: all.
            versions: B integers, gradient steps that the policy which drew each response had
                taken. Default: `step`.
            step: gradient steps that the current policy has taken. Default: 0.
            seed: names the randomness of algorithms that drop samples, together with `step`.

        Raises:
            ValueError: a tensor has the wrong shape or type, an argument that the algorithm needs
                is missing, both rewards and advantages are given, the advantages of a response
                differ, a number that counts is not finite, or a version is greater than `step`.
        """
        policies = {
            "behavior": behavior_logp,
            "sampler": sampler_logp,
            "proximal": proximal_logp,
            "reference": reference_logp,
        }
        logps = {role: tensor.detach() for role, tensor in policies.items() if tensor is not None}
        self._check_policies(logps, versions, step)
        _check_token_tensors({"logp": logp, "mask": mask}, logps, self._reads())
        if advantages is not None and advantages.ndim == 2:
            advantages = _of_responses(advantages, mask.bool())
        outcome, values = self._outcome(rewards, advantages)
        step = 0 if step is None else step
        every = torch.ones_like(groups, dtype=torch.bool)
        finished = every if finished is None else finished
        judged = every if judged is None else judged
        versions = torch.full_like(groups, step) if versions is None else versions
        _check_rows(
            len(logp),
            {"groups": groups, "versions": versions},
            {outcome: values, "finished": finished, "judged": judged},
        )
        outcomes = Outcomes(values.double(), groups, mask.bool(), finished.bool(), judged.bool())
        if not torch.isfinite(outcomes.rewards_B[outcomes.judged_B]).all():
            raise ValueError(f"{outcome} must be finite where judged is true")
        parts = self.parts if rewards is not None else replace(self.parts, advantage=AsGiven())
        batch = LossInput(
            logp_BT=logp,
            logps=logps,
            advantages=parts.advantages(outcomes, rng.generator(seed, rng.DROP, step)),
            groups_B=groups,
            version_BX=versions[:, None],
            index=StepIndex(batch=step, epoch=0, mini_batch=0, step=step),
        )
        if "proximal" in self._reads() - logps.keys():
            batch = replace(batch, logps={**logps, "proximal": self.proximal.logp(batch)})
        out = parts.loss(batch)
        log = TokenLog()
        log.add(out, batch)
        return Result(out.loss, log.reduce())

    def advantages(self, rewards: Tensor, groups: Tensor, lengths: Tensor) -> Tensor:
        """The algorithm's own advantages before its data weighting: B scalars, float64.

        Args:
            rewards: B scalars, of all responses of each group.
            groups: B integers; responses to one prompt share a number.
            lengths: B integers, the number of tokens of each response.
        """
        return with_lengths(self.parts.advantage, lengths)(rewards.double(), groups)

    def describe(self) -> str:
        """The formula in words."""
        return "\n".join(self.parts.describe())

    def _reads(self) -> frozenset[str]:
        return self.parts.needs.logps | {"behavior"}

    def _check_policies(
        self, logps: Mapping[str, Tensor], versions: Tensor | None, step: int | None
    ) -> None:
        """Every policy that the algorithm reads is given, or follows from the versions."""
        computed = not (self.proximal.of_batch or self.proximal.has_weights)
        for role in sorted(self._reads() - logps.keys()):
            if role != "proximal" or not computed:
                raise ValueError(f"{role}_logp is missing: this algorithm needs it")
            if self.proximal.of_versions and (versions is None or step is None):
                name = "versions" if versions is None else "step"
                raise ValueError(f"{name} is missing: this algorithm needs it")
        if self.parts.needs.dense:
            raise ValueError("this algorithm needs all logits: it runs in the trainer only")
        if versions is not None and step is not None and (versions > step).any():
            raise ValueError(f"versions must be at most step={step}: one is {int(versions.max())}")

    def _outcome(self, rewards: Tensor | None, advantages: Tensor | None) -> tuple[str, Tensor]:
        """Rewards or advantages, whichever is given, and its name."""
        if rewards is not None and advantages is not None:
            raise ValueError("rewards and advantages are both given: one of them is enough")
        if rewards is not None:
            return "rewards", rewards
        if advantages is None:
            raise ValueError("rewards is missing: give rewards, or advantages in their place")
        if isinstance(self.parts.truncation, PenaliseTruncated):
            raise ValueError("truncation=penalise changes rewards: it cannot use advantages")
        return "advantages", advantages


def _of_responses(advantages_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """The advantage of each response's live tokens, 0 if there are none. Raises ValueError if they
    differ."""
    if advantages_BT.shape != mask_BT.shape:
        raise ValueError(
            f"advantages {tuple(advantages_BT.shape)} must have B rows, or the shape of mask, "
            f"{tuple(mask_BT.shape)}"
        )
    first_B1 = mask_BT.int().argmax(1, keepdim=True)
    advantage_B1 = advantages_BT.gather(1, first_B1).where(mask_BT.any(1, keepdim=True), 0.0)
    if ((advantages_BT != advantage_B1) & mask_BT).any():
        raise ValueError("advantages must be the same at all live tokens of a response")
    return advantage_B1.squeeze(1)


def _check_token_tensors(
    given: Mapping[str, Tensor], logps: Mapping[str, Tensor], read: frozenset[str]
) -> None:
    """logp, mask and other policies have one shape; what is read is finite where the mask is true:
    a NaN there would drop tokens without an error."""
    logp, mask = given["logp"], given["mask"]
    named = {**given, **{f"{role}_logp": tensor for role, tensor in logps.items()}}
    if logp.ndim != 2 or any(tensor.shape != logp.shape for tensor in named.values()):
        shapes = ", ".join(f"{name} {tuple(tensor.shape)}" for name, tensor in named.items())
        raise ValueError(f"{shapes} must have one shape B x T")
    if not ((mask == 0) | (mask == 1)).all():
        raise ValueError("mask must be true or false, or 1 or 0, at every token")
    for name in ("logp", *(f"{role}_logp" for role in sorted(read & logps.keys()))):
        tensor = named[name].detach()
        odd = (~torch.isfinite(tensor) & mask.bool()).nonzero()
        if len(odd):
            row, token = odd[0].tolist()
            raise ValueError(
                f"{name} must be finite where mask is true: row {row}, token {token} is "
                f"{float(tensor[row, token])}"
            )


def _check_rows(count: int, integers: Mapping[str, Tensor], others: Mapping[str, Tensor]) -> None:
    for name, tensor in integers.items():
        if tensor.is_floating_point() or tensor.dtype == torch.bool:
            raise ValueError(f"{name} must be integers, they are {tensor.dtype}")
    for name, tensor in {**integers, **others}.items():
        if tensor.shape != (count,):
            raise ValueError(f"{name} {tuple(tensor.shape)} must have {count} rows, as logp")
