"""The algorithms for people who bring their own trainer."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from numbers import Integral
from typing import Any, NamedTuple

import torch
from torch import Tensor

from rec_experiments import rng
from rec_experiments.algo.advantages import AsGiven
from rec_experiments.algo.surrogate import Algorithm
from rec_experiments.algo.truncation import PenaliseTruncated
from rec_experiments.config import schema
from rec_experiments.config.composition import compose, composing
from rec_experiments.config.experiment import Pieces
from rec_experiments.errors import UserError
from rec_experiments.training.metrics import TokenLog
from rec_experiments.training.policies import Proximal
from rec_experiments.types import LossInput, Outcomes, StepIndex

OF_A_RUN = ("updates", "buffer", "reward", "reference")


class Result(NamedTuple):
    """loss: a scalar that can be differentiated. metrics: numbers, named as in metrics.jsonl."""

    loss: Tensor
    metrics: dict[str, float]


@dataclass(frozen=True, slots=True)
class StandaloneAlgorithm:
    """One call a mini-batch. `parts` are the pieces that the trainer uses, `proximal` gives that
    policy where it follows from versions alone."""

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

        Whatever the algorithm does not read may be given all the same, so that one call serves all.

        Args:
            logp: B x T, log-probabilities under the current policy, differentiable.
            behavior_logp: B x T, under the policy that drew the tokens, at the same temperature.
            groups: B integers; responses to one prompt share a number.
            mask: B x T, true or 1 at response tokens, false or 0 elsewhere, where log-probabilities
                may be anything.
            rewards: B scalars.
            advantages: B scalars in their place: another estimator's. They stand where the
                algorithm's advantage of the rewards would; its data weighting still applies.
            sampler_logp, proximal_logp, reference_logp: B x T, under further policies.
            finished, judged: B, whether a response came to its end, and whether its reward is
                one; all, where they are not given.
            versions: B integers, gradient steps that the policy which drew each response had
                taken; `step`, where they are not given.
            step: gradient steps that the current policy has taken; 0, where it is not given.
            seed: names the randomness of algorithms that drop samples, together with `step`.
        Raises:
            ValueError: shapes or kinds of tensors do not fit, something that the algorithm needs
                is missing, both rewards and advantages are given, a number that counts is not
                finite, or a version lies beyond `step`.
        """
        given = {
            "behavior": behavior_logp,
            "sampler": sampler_logp,
            "proximal": proximal_logp,
            "reference": reference_logp,
        }
        _check_given({"logp": logp, "groups": groups, "mask": mask})
        _check_tensors(
            {f"{role}_logp": tensor for role, tensor in given.items()}
            | {"logp": logp, "groups": groups, "mask": mask, "rewards": rewards}
            | {"advantages": advantages, "finished": finished, "judged": judged}
            | {"versions": versions}
        )
        _check_counts({"seed": seed, "step": 0 if step is None else step})
        logps = {role: tensor.detach() for role, tensor in given.items() if tensor is not None}
        self._check_policies(logps)
        self._check_versions(logps, versions, step)
        _check_one_shape(logp, {"mask": mask} | {f"{r}_logp": x for r, x in logps.items()})
        _check_kinds(mask, {"groups": groups, "versions": versions})
        read = {"logp": logp, **{f"{r}_logp": logps[r] for r in self._reads() & logps.keys()}}
        for given_name, tensor in read.items():
            _check_finite(given_name, tensor, mask.bool())
        name, values = self._outcome(rewards, advantages)
        step = 0 if step is None else step
        every = torch.ones_like(groups, dtype=torch.bool)
        finished = every if finished is None else finished
        judged = every if judged is None else judged
        versions = torch.full_like(groups, step) if versions is None else versions
        rows = {
            name: values, "groups": groups, "finished": finished, "judged": judged,
            "versions": versions,
        }  # fmt: skip
        _check_rows(logp, rows)
        outcomes = Outcomes(values.double(), groups, mask.bool(), finished.bool(), judged.bool())
        if not torch.isfinite(outcomes.rewards_B[outcomes.judged_B]).all():
            raise ValueError(f"{name} must be finite where judged is true")
        parts = replace(self.parts, advantage=AsGiven()) if name == "advantages" else self.parts
        batch = LossInput(
            logp_BT=logp,
            logps=logps,
            advantages=parts.advantages(outcomes, rng.generator(seed, rng.DROP, step)),
            groups_B=groups,
            versions_B=versions,
            index=StepIndex(batch=step, epoch=0, mini_batch=0, step=step),
        )
        if "proximal" in self.parts.needs.logps - logps.keys():
            batch = replace(batch, logps={**logps, "proximal": self.proximal.logp(batch)})
        out = parts.loss(batch)
        log = TokenLog()
        log.add(out, batch)
        return Result(out.loss, log.reduce())

    def _reads(self) -> frozenset[str]:
        return self.parts.needs.logps | {"behavior"}

    def _check_policies(self, logps: Mapping[str, Tensor]) -> None:
        computed = not (self.proximal.of_batch or self.proximal.has_weights)
        for role in sorted(self._reads() - logps.keys()):
            if role != "proximal" or not computed:
                raise ValueError(f"{role}_logp is missing: this algorithm needs it")
        if self.parts.needs.dense:
            raise ValueError("this algorithm needs all logits: it runs in the trainer only")

    def _check_versions(
        self, logps: Mapping[str, Tensor], versions: Tensor | None, step: int | None
    ) -> None:
        if "proximal" in self._reads() - logps.keys() and self.proximal.of_versions:
            _check_given({"versions": versions, "step": step})
        if versions is not None and step is not None and (versions > step).any():
            raise ValueError(f"versions must be at most step={step}: one is {int(versions.max())}")

    def _outcome(self, rewards: Tensor | None, advantages: Tensor | None) -> tuple[str, Tensor]:
        """What stands for the outcomes, and its name."""
        if rewards is not None and advantages is not None:
            raise ValueError("rewards and advantages are both given: one of them is enough")
        if rewards is not None:
            return "rewards", rewards
        if advantages is None:
            raise ValueError("rewards is missing: give rewards, or advantages in their place")
        if isinstance(self.parts.truncation, PenaliseTruncated):
            raise ValueError("truncation=penalise changes rewards: it cannot use advantages")
        return "advantages", advantages

    def describe(self) -> str:
        """The formula in words."""
        return "\n".join(self.parts.describe())


def _check_given(values: Mapping[str, object]) -> None:
    for name, value in values.items():
        if value is None:
            raise ValueError(f"{name} is missing: this algorithm needs it")


def _check_tensors(values: Mapping[str, object]) -> None:
    for name, value in values.items():
        if not isinstance(value, Tensor | None):
            raise ValueError(f"{name} must be a tensor, it is of {type(value).__name__}")


def _check_kinds(mask: Tensor, integers: Mapping[str, Tensor | None]) -> None:
    if not ((mask == 0) | (mask == 1)).all():
        raise ValueError("mask must be true or false, or 1 or 0, at every token")
    for name, tensor in integers.items():
        if tensor is not None and (tensor.is_floating_point() or tensor.dtype == torch.bool):
            raise ValueError(f"{name} must be integers, they are {tensor.dtype}")


def _check_finite(name: str, tensor: Tensor, mask: Tensor) -> None:
    """Where the mask is true; a policy that may be NaN there would drop tokens without a word."""
    odd = (~torch.isfinite(tensor.detach()) & mask).nonzero()
    if len(odd):
        row, token = odd[0].tolist()
        value = float(tensor.detach()[row, token])
        raise ValueError(
            f"{name} must be finite where mask is true: row {row}, token {token} is {value}"
        )


def _check_counts(given: Mapping[str, Any]) -> None:
    for name, count in given.items():
        if not isinstance(count, Integral) or count < 0:
            raise ValueError(f"{name}={count}: must be an integer, at least 0")


def _check_one_shape(logp: Tensor, others: Mapping[str, Tensor]) -> None:
    shapes = {"logp": logp.shape} | {name: tensor.shape for name, tensor in others.items()}
    if logp.ndim != 2 or len(set(shapes.values())) > 1:
        written = ", ".join(f"{name} {tuple(shape)}" for name, shape in shapes.items())
        raise ValueError(f"{written} must have one shape B x T")


def _check_rows(logp: Tensor, rows: Mapping[str, Tensor]) -> None:
    for name, tensor in rows.items():
        if tensor.shape != logp.shape[:1]:
            raise ValueError(
                f"{name} {tuple(tensor.shape)} must have {logp.shape[0]} rows, as logp"
            )


def algorithm(preset: str, *overrides: str) -> StandaloneAlgorithm:
    """A preset of conf/algo with Hydra overrides, as in `algorithm("rec_ring", "clip=wide")`.

    Raises UserError for an unknown preset, a misspelt override, a value out of range, or a group
    that says how a run goes and nothing of a loss.
    """
    for override in overrides:
        group = override.lstrip("+~").partition("=")[0].partition(".")[0]
        if group in OF_A_RUN:
            raise UserError(f"{override}: says how a run goes; here there is only its loss")
    with composing():
        config = compose("algorithm", [f"algo={preset}", *overrides])
    pieces = schema.build(config, Pieces)
    return StandaloneAlgorithm(pieces.algorithm(), pieces.proximal)
