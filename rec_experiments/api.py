"""The algorithms for people who bring their own trainer."""

from dataclasses import dataclass
from typing import NamedTuple

from hydra import compose
from torch import Tensor

from rec_experiments import rng, schema
from rec_experiments.algo.surrogate import Algorithm
from rec_experiments.composition import composing
from rec_experiments.experiment import Pieces
from rec_experiments.training.metrics import TokenLog
from rec_experiments.types import LossInput


class Result(NamedTuple):
    """loss: a scalar that can be differentiated. metrics: numbers, named as in metrics.jsonl."""

    loss: Tensor
    metrics: dict[str, float]


@dataclass(frozen=True, slots=True)
class StandaloneAlgorithm:
    """One call a mini-batch. `parts` are the pieces that the trainer uses."""

    parts: Algorithm

    def __call__(
        self,
        *,
        logp: Tensor,
        behavior_logp: Tensor,
        rewards: Tensor,
        groups: Tensor,
        mask: Tensor,
        seed: int = 0,
        step: int = 0,
    ) -> Result:
        """Loss and metrics of a whole mini-batch of B responses of up to T tokens.

        Args:
            logp: B x T, log-probabilities under the current policy, differentiable.
            behavior_logp: B x T, under the policy that drew the tokens, at the same temperature.
            rewards: B scalars.
            groups: B integers; responses to one prompt share a number.
            mask: B x T, true (or 1) at response tokens; elsewhere anything may stand.
            seed, step: name the randomness of algorithms that drop samples.
        Raises:
            ValueError: the shapes do not fit together.
        """
        if not logp.shape == behavior_logp.shape == mask.shape or logp.ndim != 2:
            raise ValueError(
                f"logp {tuple(logp.shape)}, behavior_logp {tuple(behavior_logp.shape)} and mask "
                f"{tuple(mask.shape)} must have one shape B x T"
            )
        if not rewards.shape == groups.shape == logp.shape[:1]:
            raise ValueError(
                f"rewards {tuple(rewards.shape)} and groups {tuple(groups.shape)} must have "
                f"{logp.shape[0]} rows, as logp"
            )
        dropping = rng.generator(seed, rng.DROP, step)
        credit = self.parts.credit(rewards, groups, mask, dropping)
        out = self.parts.loss(LossInput(logp, behavior_logp, credit))
        log = TokenLog()
        log.add(out, credit.mask_BT)
        return Result(out.loss, log.reduce())

    def describe(self) -> str:
        """The formula in words."""
        return "\n".join(self.parts.describe())


def algorithm(preset: str, *overrides: str) -> StandaloneAlgorithm:
    """A preset of conf/algo with Hydra overrides, as in `algorithm("rec_ring", "clip=wide")`.

    Raises UserError for an unknown preset, a misspelt override, or a value out of range.
    """
    with composing():
        config = compose("algorithm", [f"algo={preset}", *overrides])
    return StandaloneAlgorithm(schema.build(config, Pieces).algorithm())
